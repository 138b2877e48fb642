// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sleep and wake-up of workers.

use std::time::Instant;

use crossbeam_utils::CachePadded;

use super::limits::MAX_WORKERS;
use super::sync::{fence, AtomicU64, Condvar, Mutex, Ordering};
use super::worker_kind::WorkerKind;
use super::Clock;

/// The sleeping workers. A storm of doorbells is cheap: to wake a worker that is awake, or that
/// another thread has just woken, costs only a fence and a load.
#[derive(Debug)]
pub(super) struct Sleep {
    kind: WorkerKind,
    /// Bit n is set while worker n sleeps and no thread has woken it.
    sleepers: AtomicU64,
    beds: Box<[CachePadded<Bed>]>,
}

const _: () = assert!(MAX_WORKERS <= u64::BITS as usize);

/// The wake-up flag and condition variable of one worker.
#[derive(Debug)]
struct Bed {
    /// Whether there is a wake-up that the worker has not seen.
    rung: Mutex<bool>,
    bell: Condvar,
}

/// The sleep of a stepped worker.
#[derive(Debug)]
pub(super) struct Nap {
    /// Time at which the sleep ends if no wake-up ends it before.
    deadline: Option<Instant>,
}

/// The bit of `worker` in `sleepers`.
const fn bit(worker: usize) -> u64 {
    1 << worker
}

impl Sleep {
    /// State for `workers` workers of this kind, all awake.
    pub(super) fn new(kind: WorkerKind, workers: usize) -> Self {
        let bed = || Bed {
            rung: Mutex::new(false),
            bell: Condvar::new(),
        };
        Self {
            kind,
            sleepers: AtomicU64::new(0),
            beds: (0..workers).map(|_| CachePadded::new(bed())).collect(),
        }
    }

    /// Puts `worker` to sleep until it is woken or until the time that `deadline` returns, unless
    /// `busy` returns true. `busy` and `deadline` are called after the worker is marked as a
    /// sleeper, so no wake-up is missed. For a worker that is a thread, returns after the sleep.
    /// For a stepped worker, returns a [`Nap`] at once, and the caller polls
    /// [`is_over`](Self::is_over).
    pub(super) fn sleep(
        &self,
        worker: usize,
        clock: &Clock,
        busy: impl FnOnce() -> bool,
        deadline: impl FnOnce() -> Option<Instant>,
    ) -> Option<Nap> {
        let bed = &self.beds[worker];
        let mut rung = bed.rung.lock();
        self.sleepers.fetch_or(bit(worker), Ordering::SeqCst);
        // Pairs with the fence in `wake`: either `wake` sees a sleeper, or the sleeper sees the
        // work.
        fence(Ordering::SeqCst);
        if !*rung && !busy() {
            let deadline = deadline();
            match self.kind {
                WorkerKind::Stepped => return Some(Nap { deadline }),
                WorkerKind::Threads => match deadline.and_then(|at| clock.alarm(at)) {
                    Some(alarm) => {
                        bed.bell.wait_until(&mut rung, alarm);
                    }
                    None => bed.bell.wait(&mut rung),
                },
            }
        }
        self.get_up(worker, &mut rung);
        None
    }

    /// Marks `worker` as awake and clears its wake-up flag.
    fn get_up(&self, worker: usize, rung: &mut bool) {
        self.sleepers.fetch_and(!bit(worker), Ordering::SeqCst);
        *rung = false;
    }

    /// Whether stepped worker `worker` must wake up: it was woken, or its deadline has passed.
    pub(super) fn is_due(&self, worker: usize, nap: &Nap, now: Instant) -> bool {
        nap.deadline.is_some_and(|deadline| deadline <= now) || *self.beds[worker].rung.lock()
    }

    /// Ends the sleep of stepped worker `worker` if its wake-up [is due](Self::is_due) at `now`.
    /// Returns whether the sleep has ended.
    pub(super) fn is_over(&self, worker: usize, nap: &Nap, now: Instant) -> bool {
        let due = self.is_due(worker, nap, now);
        if due {
            self.get_up(worker, &mut self.beds[worker].rung.lock());
        }
        due
    }

    /// Wakes `worker` if it sleeps. The caller must have made the work visible. Returns whether
    /// this call woke the worker.
    #[inline]
    pub(super) fn wake(&self, worker: usize) -> bool {
        fence(Ordering::SeqCst);
        self.sleepers.load(Ordering::SeqCst) & bit(worker) != 0 && self.call(worker)
    }

    /// Wakes one sleeping worker, if any.
    #[inline]
    pub(super) fn wake_any(&self) {
        let mut sleepers = self.sleepers.load(Ordering::SeqCst);
        while sleepers != 0 {
            let worker = sleepers.trailing_zeros() as usize;
            if self.call(worker) {
                return;
            }
            sleepers &= !bit(worker);
        }
    }

    /// Wakes all workers.
    pub(super) fn wake_all(&self) {
        for worker in 0..self.beds.len() {
            self.wake(worker);
        }
    }

    /// If the bit of `worker` in `sleepers` is set, clears the bit and notifies the worker. Returns
    /// whether the bit was set.
    fn call(&self, worker: usize) -> bool {
        let before = self.sleepers.fetch_and(!bit(worker), Ordering::SeqCst);
        if before & bit(worker) == 0 {
            return false;
        }
        let bed = &self.beds[worker];
        *bed.rung.lock() = true;
        // Notify without the lock, which the worker takes when it wakes up.
        bed.bell.notify_one();
        true
    }

    /// Whether any worker sleeps.
    #[inline]
    pub(super) fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) != 0
    }

    /// Whether all workers sleep, and no thread is waking one of them.
    #[inline]
    pub(super) fn all_sleep(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst).count_ones() as usize == self.beds.len()
    }

    /// Whether all workers sleep and `idle` returns true. No worker wakes up before `idle` returns.
    #[cfg(feature = "testing")]
    pub(super) fn all_sleep_while(&self, idle: impl FnOnce() -> bool) -> bool {
        // A worker that finds work when it is about to sleep holds its bed's lock until it is no
        // longer marked as a sleeper. So while all these locks are held, no marked worker works.
        let rung = Vec::from_iter(self.beds.iter().map(|bed| bed.rung.lock()));
        self.all_sleep() && rung.iter().all(|rung| !**rung) && idle()
    }
}
