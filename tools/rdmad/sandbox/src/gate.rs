// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Gates: places at which threads can be held between two pieces of work.
//!
//! A thread passes its gate before each piece of work, which costs one load. The thread that closes
//! the gate waits until all others are held there. So nothing of what they do is half done, without
//! any of them having to end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// A gate for threads.
#[derive(Debug, Default)]
pub struct Gate {
    is_closed: AtomicBool,
    threads: Mutex<Threads>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Threads {
    /// Number of threads that pass the gate again and again.
    all: usize,
    /// Number of threads that are held.
    held: usize,
}

/// A thread's promise to [pass](Gate::pass) a gate again and again, until this value is dropped.
#[derive(Debug)]
pub struct Passer(Arc<Gate>);

impl Gate {
    /// Makes the current thread one that the gate holds.
    pub fn enter(self: &Arc<Self>) -> Passer {
        self.threads.lock().all += 1;
        Passer(self.clone())
    }

    /// Whether the gate is closed: the current thread should pass it soon.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Closes the gate. The caller then wakes threads that sleep.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    /// Waits until the gate, which is closed, holds all threads. Returns false if some are not held
    /// at `deadline`.
    pub fn holds_all(&self, deadline: Instant) -> bool {
        let mut threads = self.threads.lock();
        let missing = |threads: &mut Threads| threads.held < threads.all;
        while missing(&mut threads) {
            if self.changed.wait_until(&mut threads, deadline).timed_out() {
                return !missing(&mut threads);
            }
        }
        true
    }

    /// Opens the gate: threads that it holds go on.
    pub fn open(&self) {
        let _threads = self.threads.lock();
        self.is_closed.store(false, Ordering::SeqCst);
        self.changed.notify_all();
    }
}

impl Passer {
    /// Passes the gate: waits as long as it is closed.
    #[inline]
    pub fn pass(&self) {
        if self.0.is_closed() {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        let mut threads = self.0.threads.lock();
        threads.held += 1;
        self.0.changed.notify_all();
        self.0
            .changed
            .wait_while(&mut threads, |_| self.0.is_closed());
        threads.held -= 1;
    }
}

impl Drop for Passer {
    fn drop(&mut self) {
        self.0.threads.lock().all -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[test]
    fn threads_stand_still_until_the_gate_opens() {
        let gate = Arc::new(Gate::default());
        let (rounds, ends) = (AtomicUsize::new(0), AtomicBool::new(false));
        // Checked at the end: the threads would not end after a panic.
        let (mut holds_all, mut stand_still) = (true, true);
        thread::scope(|scope| {
            for _ in 0..3 {
                let passer = gate.enter();
                let (rounds, ends) = (&rounds, &ends);
                scope.spawn(move || {
                    while !ends.load(Ordering::SeqCst) {
                        passer.pass();
                        rounds.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            for _ in 0..100 {
                gate.close();
                holds_all &= gate.holds_all(soon());
                let before = rounds.load(Ordering::SeqCst);
                thread::yield_now();
                stand_still &= rounds.load(Ordering::SeqCst) == before;
                gate.open();
                while rounds.load(Ordering::SeqCst) == before {
                    thread::yield_now();
                }
            }
            ends.store(true, Ordering::SeqCst);
        });
        assert!(holds_all && stand_still);
        gate.close();
        assert!(
            gate.holds_all(soon()),
            "threads that have ended don't count"
        );
    }

    #[test]
    fn a_thread_that_does_not_come_is_not_waited_for() {
        let gate = Arc::new(Gate::default());
        let _passer = gate.enter();
        gate.close();
        assert!(!gate.holds_all(Instant::now()));
    }
}
