// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Waiting until no worker uses what was just removed.

use crossbeam_utils::CachePadded;

use super::sync::{fence, AtomicU64, Condvar, Mutex, Ordering};

/// One counter a worker, and one for all other threads: odd while there is a turn.
///
/// A worker that looks an object up does so within a turn and forgets the object before its turn
/// ends. So once every worker that had a turn when the object was removed has ended it, nobody uses
/// the object. Beginning and ending a turn touches only a counter of the worker's own.
#[derive(Debug)]
pub(crate) struct Quiesce {
    turns: Box<[CachePadded<AtomicU64>]>,
    /// Held by a thread that has a turn and is no worker.
    outside: Mutex<()>,
    waiters: AtomicU64,
    /// Calls of [`synchronize`](Self::synchronize).
    periods: AtomicU64,
    lock: Mutex<()>,
    ended: Condvar,
}

/// A turn of a worker or another thread.
pub(crate) struct Turn<'a> {
    quiesce: &'a Quiesce,
    counter: usize,
}

impl Quiesce {
    /// For `workers` workers.
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            turns: (0..=workers)
                .map(|_| CachePadded::new(AtomicU64::new(0)))
                .collect(),
            outside: Mutex::new(()),
            waiters: AtomicU64::new(0),
            periods: AtomicU64::new(0),
            lock: Mutex::new(()),
            ended: Condvar::new(),
        }
    }

    /// How often a thread waited for the turns that were going on.
    pub(crate) fn periods(&self) -> u64 {
        self.periods.load(Ordering::Relaxed)
    }

    /// Begins a turn of `worker`, which is not in one.
    #[inline]
    pub(crate) fn begin(&self, worker: usize) -> Turn<'_> {
        self.turns[worker].fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence in `synchronize`: either it sees this turn, or this turn sees the
        // removal.
        fence(Ordering::SeqCst);
        Turn {
            quiesce: self,
            counter: worker,
        }
    }

    /// Has a thread that is no worker take a turn. Such threads take theirs one after the other.
    pub(crate) fn outside<T>(&self, turn: impl FnOnce() -> T) -> T {
        let _outside = self.outside.lock();
        let _turn = self.begin(self.turns.len() - 1);
        turn()
    }

    /// The same, unless another such thread has its turn now. Returns whether this one had.
    pub(crate) fn try_outside(&self, turn: impl FnOnce()) -> bool {
        let Some(_outside) = self.outside.try_lock() else {
            return false;
        };
        let _turn = self.begin(self.turns.len() - 1);
        turn();
        true
    }

    /// Returns when every turn that was going on has ended. Not to be called within a turn.
    pub(crate) fn synchronize(&self) {
        self.periods.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        for turn in &self.turns {
            let before = turn.load(Ordering::SeqCst);
            if before % 2 == 0 {
                continue;
            }
            self.waiters.fetch_add(1, Ordering::SeqCst);
            // Pairs with the fence at the end of a turn: it sees a waiter, or the waiter sees its
            // end.
            fence(Ordering::SeqCst);
            let mut guard = self.lock.lock();
            while turn.load(Ordering::SeqCst) == before {
                self.ended.wait(&mut guard);
            }
            drop(guard);
            self.waiters.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        self.quiesce.turns[self.counter].fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.quiesce.waiters.load(Ordering::SeqCst) != 0 {
            // With the lock taken, a waiter is either before its look at the counter or waits
            // already.
            drop(self.quiesce.lock.lock());
            self.quiesce.ended.notify_all();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::{mpsc, Arc};
    use std::time::Duration;

    use super::*;

    #[test]
    fn nobody_uses_what_was_removed() {
        let quiesce = Quiesce::new(2);
        let present = AtomicBool::new(true);
        let freed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for worker in 0..2 {
                let (quiesce, present, freed) = (&quiesce, &present, &freed);
                scope.spawn(move || loop {
                    let turn = quiesce.begin(worker);
                    if !present.load(Ordering::Acquire) {
                        break;
                    }
                    std::thread::yield_now();
                    assert!(!freed.load(Ordering::Acquire), "used after it was freed");
                    drop(turn);
                });
            }
            present.store(false, Ordering::Release);
            quiesce.synchronize();
            freed.store(true, Ordering::Release);
        });
    }

    /// A worker that always has a turn is waited for until the end of the one that is going on.
    #[test]
    fn one_turn_of_a_worker_is_waited_for() {
        for worker in 0..2 {
            let quiesce = Arc::new(Quiesce::new(2));
            let turn = quiesce.begin(worker);
            let (done, returned) = mpsc::channel();
            let waiter = Arc::clone(&quiesce);
            std::thread::spawn(move || {
                waiter.synchronize();
                done.send(()).unwrap();
            });
            while quiesce.waiters.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            assert!(returned.try_recv().is_err(), "before the end of the turn");
            drop(turn);
            let _next = quiesce.begin(worker);
            let patience = Duration::from_secs(20);
            returned
                .recv_timeout(patience)
                .expect("not to wait for the next turn");
        }
    }

    #[test]
    fn idle_workers_are_not_waited_for() {
        Quiesce::new(4).synchronize();
    }
}
