// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Where workers wait for work.

use std::time::Instant;

use crossbeam_utils::CachePadded;

use super::limits::MAX_WORKERS;
use super::sync::{fence, AtomicU64, Condvar, Mutex, Ordering};
use super::worker_kind::WorkerKind;
use super::Clock;

/// Sleeping workers. A wake-up costs one load when its worker is awake, or when another thread has
/// woken it already, so a storm of doorbells costs little.
#[derive(Debug)]
pub(super) struct Sleep {
    kind: WorkerKind,
    /// Bit n is set while worker n sleeps and nobody has woken it.
    sleepers: AtomicU64,
    beds: Box<[CachePadded<Bed>]>,
}

const _: () = assert!(MAX_WORKERS <= u64::BITS as usize);

/// The place where one worker sleeps.
#[derive(Debug)]
struct Bed {
    /// A wake-up that the worker has not seen.
    rung: Mutex<bool>,
    bell: Condvar,
}

/// The sleep of a worker that is stepped.
#[derive(Debug)]
pub(super) struct Nap {
    /// When it ends at the latest.
    deadline: Option<Instant>,
}

/// The bit of `worker`.
const fn bit(worker: usize) -> u64 {
    1 << worker
}

impl Sleep {
    /// For so many workers of this kind.
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

    /// Has `worker` sleep until it is woken or until the time that `deadline` returns, unless
    /// `busy` is true by now. Both are called when a wake-up can no longer be missed. A thread has
    /// slept on return; a worker that is stepped begins to, and its caller asks whether that
    /// [is over](Self::is_over).
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
        // Pairs with the fence in `wake`: it sees a sleeper, or the sleeper sees the work.
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

    /// Worker `worker` is awake. Wake-ups until now are over.
    fn get_up(&self, worker: usize, rung: &mut bool) {
        self.sleepers.fetch_and(!bit(worker), Ordering::SeqCst);
        *rung = false;
    }

    /// Whether stepped worker `worker` must wake up: its deadline is over at `now`, or there is a
    /// wake-up.
    pub(super) fn is_due(&self, worker: usize, nap: &Nap, now: Instant) -> bool {
        nap.deadline.is_some_and(|deadline| deadline <= now) || *self.beds[worker].rung.lock()
    }

    /// Ends the sleep of stepped worker `worker` if that [is due](Self::is_due) at `now`. Returns
    /// whether it was.
    pub(super) fn is_over(&self, worker: usize, nap: &Nap, now: Instant) -> bool {
        let due = self.is_due(worker, nap, now);
        if due {
            self.get_up(worker, &mut self.beds[worker].rung.lock());
        }
        due
    }

    /// Wakes `worker` if it sleeps, after work was made visible. Returns whether it did and nobody
    /// else has woken it.
    #[inline]
    pub(super) fn wake(&self, worker: usize) -> bool {
        fence(Ordering::SeqCst);
        self.sleepers.load(Ordering::SeqCst) & bit(worker) != 0 && self.call(worker)
    }

    /// Wakes one worker if any sleeps.
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

    /// Rings for `worker` if its bit is set, which ends.
    fn call(&self, worker: usize) -> bool {
        let before = self.sleepers.fetch_and(!bit(worker), Ordering::SeqCst);
        if before & bit(worker) == 0 {
            return false;
        }
        let bed = &self.beds[worker];
        *bed.rung.lock() = true;
        // The worker takes the lock when it wakes up.
        bed.bell.notify_one();
        true
    }

    /// Whether any worker sleeps.
    #[inline]
    pub(super) fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) != 0
    }

    /// Whether all workers sleep and nobody has woken any.
    #[inline]
    pub(super) fn all_sleep(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst).count_ones() as usize == self.beds.len()
    }

    /// Whether all workers sleep and `idle` is true. None of them wakes up before `idle` has
    /// returned.
    #[cfg(feature = "testing")]
    pub(super) fn all_sleep_while(&self, idle: impl FnOnce() -> bool) -> bool {
        // A worker that is about to sleep and finds work instead holds its lock until it is no
        // sleeper any more.
        let rung = Vec::from_iter(self.beds.iter().map(|bed| bed.rung.lock()));
        self.all_sleep() && rung.iter().all(|rung| !**rung) && idle()
    }
}
