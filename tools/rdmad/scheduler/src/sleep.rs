// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sleep and wake-up of workers.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_utils::CachePadded;

use crate::sync::{fence, AtomicU64, Condvar, Mutex, Ordering};

/// Maximum number of workers of a runtime: [`Sleep`] has a bit for each.
pub const MAX_WORKERS: usize = u64::BITS as usize;

/// The sleeping workers. A storm of doorbells is cheap: to wake a worker that is awake, or that
/// another thread has just woken, costs only a fence and a load.
#[derive(Debug)]
pub(crate) struct Sleep {
    /// Bit n is set while worker n sleeps, no thread has woken it, and no thread stands in for it.
    sleepers: AtomicU64,
    beds: Box<[Arc<Bed>]>,
}

/// The wake-up flag and condition variable of one worker.
#[derive(Debug)]
pub(crate) struct Bed(CachePadded<Bell>);

#[derive(Debug)]
struct Bell {
    /// Whether there is a wake-up that the worker has not seen.
    rung: Mutex<bool>,
    bell: Condvar,
}

/// The sleep of a worker.
#[derive(Debug)]
pub(crate) struct Nap {
    /// Time at which the sleep ends if no wake-up ends it before.
    pub deadline: Option<Instant>,
}

/// The bit of `worker` in `sleepers`.
const fn bit(worker: usize) -> u64 {
    1 << worker
}

impl Bed {
    fn new() -> Self {
        Self(CachePadded::new(Bell {
            rung: Mutex::new(false),
            bell: Condvar::new(),
        }))
    }

    /// Blocks the worker's thread until the worker is woken, or until `alarm`. May return early.
    pub(crate) fn wait(&self, alarm: Option<Instant>) {
        let mut rung = self.0.rung.lock();
        if *rung {
            return;
        }
        match alarm {
            Some(alarm) => {
                self.0.bell.wait_until(&mut rung, alarm);
            }
            None => self.0.bell.wait(&mut rung),
        }
    }

    fn ring(&self) {
        *self.0.rung.lock() = true;
        // Notify without the lock, which the worker takes when it wakes up.
        self.0.bell.notify_one();
    }
}

impl Sleep {
    /// State for `workers` workers, all awake.
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            sleepers: AtomicU64::new(0),
            beds: (0..workers).map(|_| Arc::new(Bed::new())).collect(),
        }
    }

    pub(crate) fn bed(&self, worker: usize) -> &Arc<Bed> {
        &self.beds[worker]
    }

    /// Marks `worker` as a sleeper until it is woken or until the time that `deadline` returns,
    /// unless `busy` returns true. `busy` and `deadline` are called after the worker is marked, so
    /// no wake-up is missed. The caller lets the worker rest until the nap [is
    /// over](Self::is_over).
    pub(crate) fn lie_down(
        &self,
        worker: usize,
        busy: impl FnOnce() -> bool,
        deadline: impl FnOnce() -> Option<Instant>,
    ) -> Option<Nap> {
        let mut rung = self.beds[worker].0.rung.lock();
        self.mark(worker);
        if *rung || busy() {
            self.get_up(worker, &mut rung);
            return None;
        }
        let deadline = deadline();
        Some(Nap { deadline })
    }

    /// Marks `worker` as a sleeper. Work that is made visible to the worker later wakes it.
    fn mark(&self, worker: usize) {
        self.sleepers.fetch_or(bit(worker), Ordering::SeqCst);
        // Pairs with the fence in `wake`: either `wake` sees a sleeper, or the sleeper sees the
        // work.
        fence(Ordering::SeqCst);
    }

    /// Marks `worker` as awake, although its thread sleeps on: the current thread stands in for it.
    /// Returns false if the worker is awake or was woken.
    pub(crate) fn begin_stand_in(&self, worker: usize) -> bool {
        self.sleepers.fetch_and(!bit(worker), Ordering::SeqCst) & bit(worker) != 0
    }

    /// Marks `worker`, for which the current thread stood in, as a sleeper again. `busy` returns
    /// whether the worker must wake up, and is called after the worker is marked.
    pub(crate) fn end_stand_in(&self, worker: usize, busy: impl FnOnce() -> bool) {
        self.mark(worker);
        if busy() {
            self.call(worker);
        }
    }

    /// Marks `worker` as awake and clears its wake-up flag.
    fn get_up(&self, worker: usize, rung: &mut bool) {
        self.sleepers.fetch_and(!bit(worker), Ordering::SeqCst);
        *rung = false;
    }

    /// Whether sleeping worker `worker` must wake up: it was woken, or its deadline has passed.
    pub(crate) fn is_due(&self, worker: usize, nap: &Nap, now: Instant) -> bool {
        nap.deadline.is_some_and(|deadline| deadline <= now) || *self.beds[worker].0.rung.lock()
    }

    /// Ends the sleep of worker `worker` if its wake-up [is due](Self::is_due) at `now`.
    /// Returns whether the sleep has ended.
    pub(crate) fn is_over(&self, worker: usize, nap: &Nap, now: Instant) -> bool {
        let due = self.is_due(worker, nap, now);
        if due {
            self.get_up(worker, &mut self.beds[worker].0.rung.lock());
        }
        due
    }

    /// Wakes `worker` if it sleeps. The caller must have made the work visible. Returns whether
    /// this call woke the worker.
    #[inline]
    pub(crate) fn wake(&self, worker: usize) -> bool {
        fence(Ordering::SeqCst);
        self.sleepers.load(Ordering::SeqCst) & bit(worker) != 0 && self.call(worker)
    }

    /// Wakes one sleeping worker, if any.
    #[inline]
    pub(crate) fn wake_any(&self) {
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
    pub(crate) fn wake_all(&self) {
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
        self.beds[worker].ring();
        true
    }

    /// Whether `worker` is marked as a sleeper.
    pub(crate) fn sleeps(&self, worker: usize) -> bool {
        self.sleepers.load(Ordering::Relaxed) & bit(worker) != 0
    }

    /// Whether any worker sleeps.
    #[inline]
    pub(crate) fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) != 0
    }

    /// Whether all workers sleep, and no thread is waking one of them or stands in for one.
    #[inline]
    pub(crate) fn all_sleep(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst).count_ones() as usize == self.beds.len()
    }

    /// Whether all workers sleep and `idle` returns true. No worker's thread wakes up before `idle`
    /// returns. Another thread may begin to stand in meanwhile, so the result tells nothing beside
    /// a switch that has a thread.
    #[cfg(feature = "testing")]
    pub(crate) fn all_sleep_while(&self, idle: impl FnOnce() -> bool) -> bool {
        // A worker that finds work when it is about to sleep holds its bed's lock until it is no
        // longer marked as a sleeper. So while all these locks are held, no marked worker works.
        let rung = Vec::from_iter(self.beds.iter().map(|bed| bed.0.rung.lock()));
        self.all_sleep() && rung.iter().all(|rung| !**rung) && idle()
    }
}
