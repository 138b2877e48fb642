// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Gates: places at which threads can be held between two pieces of work.
//!
//! A thread passes its gate before each piece of work, which costs one load. The thread that closes
//! the gate waits until all others are held there. So nothing of what they do is half done, without
//! any of them having to end.

use std::collections::BTreeMap;
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
    /// For each thread that passes the gate again and again whether it is held.
    held: BTreeMap<u64, bool>,
    next: u64,
}

impl Threads {
    fn are_held(&self) -> bool {
        self.held.values().all(|held| *held)
    }
}

/// A thread's promise to [pass](Gate::pass) a gate again and again, until this value is dropped.
#[derive(Debug)]
pub struct Passer {
    gate: Arc<Gate>,
    number: u64,
}

impl Gate {
    /// Makes the current thread one that the gate holds.
    pub fn enter(self: &Arc<Self>) -> Passer {
        let mut threads = self.threads.lock();
        let number = threads.next;
        threads.next += 1;
        threads.held.insert(number, false);
        Passer {
            gate: self.clone(),
            number,
        }
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
        while !threads.are_held() {
            if self.changed.wait_until(&mut threads, deadline).timed_out() {
                return threads.are_held();
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

    /// Forgets the thread with this [number](Passer::number), which may never come again.
    pub fn forget(&self, number: u64) {
        self.threads.lock().held.remove(&number);
        self.changed.notify_all();
    }
}

impl Passer {
    /// Passes the gate: waits as long as it is closed.
    #[inline]
    pub fn pass(&self) {
        if self.is_closed() {
            self.while_held(|| ());
        }
    }

    /// Whether the gate is closed.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.gate.is_closed()
    }

    /// Calls `wait`, during which the gate may hold this thread: `wait` does no work. Then passes
    /// the gate.
    #[cold]
    pub fn while_held<T>(&self, wait: impl FnOnce() -> T) -> T {
        let set = |threads: &mut Threads, is_held| {
            if let Some(held) = threads.held.get_mut(&self.number) {
                *held = is_held;
            }
        };
        set(&mut self.gate.threads.lock(), true);
        self.gate.changed.notify_all();
        let result = wait();
        let mut threads = self.gate.threads.lock();
        let is_closed = |_: &mut Threads| self.is_closed();
        self.gate.changed.wait_while(&mut threads, is_closed);
        set(&mut threads, false);
        result
    }

    /// The number by which the gate knows this thread.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Passer {
    fn drop(&mut self) {
        self.gate.forget(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::channel;
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
        let passer = gate.enter();
        gate.close();
        assert!(!gate.holds_all(Instant::now()));
        gate.forget(passer.number());
        assert!(gate.holds_all(Instant::now()));
    }

    #[test]
    fn a_thread_that_waits_for_others_is_held() {
        let gate = Arc::new(Gate::default());
        let passer = gate.enter();
        let (sender, receiver) = channel();
        gate.close();
        let (works, worked) = channel();
        let waiting = thread::spawn(move || {
            passer.while_held(|| receiver.recv().unwrap());
            works.send(()).unwrap();
        });
        let holds_all = gate.holds_all(soon());
        sender.send(()).unwrap();
        // It has got what it waited for, and may not work.
        let is_held = worked.recv_timeout(Duration::from_millis(50)).is_err();
        gate.open();
        waiting.join().unwrap();
        assert!(holds_all && is_held && worked.recv().is_ok());
    }
}
