// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counts of requested and completed resets, for threads that wait for a reset.
//!
//! The socket thread requests resets, and the service thread executes them. As soon as the
//! registers show that a reset is done, the next reset can be requested, possibly before the
//! service thread has reported the end of the first. A flag could not distinguish the two resets,
//! so resets are counted: a thread waits for the resets that were requested before its wait began.

use std::fmt;

use parking_lot::{Condvar, Mutex};

/// Counts resets.
#[derive(Debug, Default)]
pub(crate) struct Resets {
    counts: Mutex<Counts>,
    done: Condvar,
}

#[derive(Default)]
struct Counts {
    requested: u64,
    done: u64,
    /// A function that the service thread calls when the given number of resets is done.
    observer: Option<(u64, Box<dyn Fn() + Send>)>,
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} done", self.done, self.requested)
    }
}

impl Resets {
    /// Counts a requested reset.
    pub(crate) fn request(&self) {
        self.counts.lock().requested += 1;
    }

    /// Counts a completed reset.
    pub(crate) fn finish(&self) {
        let mut counts = self.counts.lock();
        counts.done += 1;
        self.done.notify_all();
        let done = counts.done;
        if let Some((_, observer)) = counts.observer.take_if(|(at, _)| *at <= done) {
            drop(counts);
            observer();
        }
    }

    /// Registers `observer` and removes the previous observer. `observer` is called when all resets
    /// requested so far are done, possibly before this function returns.
    pub(crate) fn observe(&self, observer: Box<dyn Fn() + Send>) {
        let mut counts = self.counts.lock();
        if counts.done == counts.requested {
            counts.observer = None;
            drop(counts);
            observer();
        } else {
            counts.observer = Some((counts.requested, observer));
        }
    }

    /// Waits until all resets requested so far are done.
    pub(crate) fn wait(&self) {
        let mut counts = self.counts.lock();
        let requested = counts.requested;
        self.done
            .wait_while(&mut counts, |counts| counts.done < requested);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::Arc;

    #[test]
    fn the_end_of_a_reset_is_not_taken_for_that_of_the_next() {
        let resets = Arc::new(Resets::default());
        let calls = Arc::new(AtomicU32::new(0));
        let observer = || -> Box<dyn Fn() + Send> {
            let calls = calls.clone();
            Box::new(move || {
                calls.fetch_add(1, Ordering::SeqCst);
            })
        };
        // The second reset is requested before the end of the first is reported.
        resets.request();
        resets.request();
        resets.observe(observer());
        let waiter = std::thread::spawn({
            let resets = resets.clone();
            move || resets.wait()
        });
        resets.finish();
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        assert!(!waiter.is_finished());
        resets.finish();
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        waiter.join().unwrap();
        resets.observe(observer());
        assert_eq!(calls.load(Ordering::SeqCst), 2, "nothing to wait for");
    }
}
