// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Turns that only one worker at a time may execute.

use crate::sync::{AtomicU8, Ordering};

/// Flag: a worker is executing a turn.
const BUSY: u8 = 1;
/// Flag: another worker tried to execute a turn during the turn in progress.
const AGAIN: u8 = 2;

/// Lets one worker at a time execute turns on an object. A second worker does not wait. Instead,
/// the first worker learns at the end of its turn that there may be more work.
#[derive(Debug, Default)]
pub struct Exclusive(AtomicU8);

/// The end of a turn.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended<T> {
    pub result: T,
    /// Whether another worker tried to execute a turn meanwhile, so there may be more work.
    pub again: bool,
}

impl Exclusive {
    /// Whether a worker is executing a turn.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.0.load(Ordering::Relaxed) & BUSY != 0
    }

    /// Executes `turn`. If another worker is executing a turn, returns `None`, and that worker gets
    /// [`again`](Ended::again).
    pub fn run<T>(&self, turn: impl FnOnce() -> T) -> Option<Ended<T>> {
        while self.0.fetch_or(BUSY, Ordering::AcqRel) & BUSY != 0 {
            if self.0.fetch_or(AGAIN, Ordering::AcqRel) & BUSY != 0 {
                return None;
            }
            // The other turn ended after this worker found BUSY set and before it set AGAIN, so
            // the other worker did not see AGAIN.
            self.0.fetch_and(!AGAIN, Ordering::AcqRel);
        }
        let busy = Busy(&self.0);
        let result = turn();
        let again = busy.end();
        Some(Ended { result, again })
    }
}

/// Marks a turn in progress until it is dropped, even by a panic.
struct Busy<'a>(&'a AtomicU8);

impl Busy<'_> {
    /// Ends the turn. Returns whether another worker tried to execute a turn meanwhile.
    #[inline]
    fn end(self) -> bool {
        let state = self.0.fetch_and(!(BUSY | AGAIN), Ordering::AcqRel);
        std::mem::forget(self);
        state & AGAIN != 0
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_and(!(BUSY | AGAIN), Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const fn ended<T>(result: T, again: bool) -> Option<Ended<T>> {
        Some(Ended { result, again })
    }

    #[test]
    fn turns_do_not_overlap_and_no_request_is_lost() {
        let exclusive = Exclusive::default();
        assert_eq!(exclusive.run(|| 5), ended(5, false));
        let nested = exclusive.run(|| (exclusive.run(|| ()), exclusive.run(|| ())));
        assert_eq!(nested, ended((None, None), true));
        assert_eq!(exclusive.run(|| ()), ended((), false));
    }

    #[test]
    fn a_turn_that_panics_ends() {
        let exclusive = Exclusive::default();
        let panics = || exclusive.run(|| panic!("in a turn"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert_eq!(exclusive.run(|| 5), ended(5, false));
    }

    #[test]
    fn many_workers() {
        use std::sync::atomic::AtomicU32;
        let exclusive = Exclusive::default();
        let [asked, inside, seen] = [0, 0, 0].map(AtomicU32::new);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        asked.fetch_add(1, Ordering::SeqCst);
                        let turn = || {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            seen.store(asked.load(Ordering::SeqCst), Ordering::SeqCst);
                            inside.fetch_sub(1, Ordering::SeqCst);
                        };
                        while exclusive.run(turn).is_some_and(|ended| ended.again) {}
                    }
                });
            }
        });
        assert_eq!(seen.into_inner(), 40_000, "the last request was served");
    }
}
