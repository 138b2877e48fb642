// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Waiting until no worker uses a removed object any more.

use crossbeam_utils::CachePadded;

use crate::sync::{fence, AtomicU64, Condvar, Mutex, Ordering};

/// Grace periods, as in RCU. There is one counter for each worker, and one for all other threads. A
/// counter is odd during a turn.
///
/// A worker looks an object up within a turn and drops it before the turn ends. So a removed object
/// is unused once every turn that was in progress at its removal has ended. The begin and the end
/// of a turn write only the worker's own counter.
#[derive(Debug)]
pub struct Quiesce {
    turns: Box<[CachePadded<AtomicU64>]>,
    /// Lock that is held during a turn of a thread that is not a worker.
    outside: Mutex<()>,
    waiters: AtomicU64,
    /// Number of calls of [`synchronize`](Self::synchronize).
    periods: AtomicU64,
    lock: Mutex<()>,
    ended: Condvar,
}

/// A turn in progress, of a worker or another thread. The drop ends the turn.
pub struct Turn<'a> {
    quiesce: &'a Quiesce,
    counter: usize,
}

impl Quiesce {
    /// State for `workers` workers, without turns in progress.
    pub fn new(workers: usize) -> Self {
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

    /// Number of calls of [`synchronize`](Self::synchronize).
    pub fn periods(&self) -> u64 {
        self.periods.load(Ordering::Relaxed)
    }

    /// Begins a turn of `worker`, which must not be in a turn.
    #[inline]
    pub fn begin(&self, worker: usize) -> Turn<'_> {
        self.turns[worker].fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence in `synchronize`: either `synchronize` sees this turn, or this turn
        // sees the removal.
        fence(Ordering::SeqCst);
        Turn {
            quiesce: self,
            counter: worker,
        }
    }

    /// Executes a turn in a thread that is not a worker. Such turns exclude each other.
    pub fn outside<T>(&self, turn: impl FnOnce() -> T) -> T {
        let _outside = self.outside.lock();
        let _turn = self.begin(self.turns.len() - 1);
        turn()
    }

    /// Like [`outside`](Self::outside), but returns false if another such turn is in progress.
    pub fn try_outside(&self, turn: impl FnOnce()) -> bool {
        let Some(_outside) = self.outside.try_lock() else {
            return false;
        };
        let _turn = self.begin(self.turns.len() - 1);
        turn();
        true
    }

    /// Waits until every turn now in progress has ended. Must not be called within a turn.
    pub fn synchronize(&self) {
        self.periods.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        for turn in &self.turns {
            let before = turn.load(Ordering::SeqCst);
            if before % 2 == 0 {
                continue;
            }
            self.waiters.fetch_add(1, Ordering::SeqCst);
            // Pairs with the fence at the end of a turn: either the turn sees a waiter, or the
            // waiter sees the end of the turn.
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
            // When this thread has got the lock, each waiter either has yet to read the counter, or
            // sleeps and gets the notification.
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

    /// `synchronize` waits only for the turn in progress, even if the worker begins another turn
    /// right after it.
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
