// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Where workers wait for work.

use std::time::Instant;

use super::sync::{fence, AtomicUsize, Condvar, Mutex, Ordering};
use super::worker_kind::WorkerKind;
use super::Clock;

/// Sleeping workers. Waking costs one load when none sleeps, so a storm of doorbells at a busy
/// device costs little.
#[derive(Debug)]
pub(super) struct Sleep {
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    bell: Bell,
}

/// How sleepers are woken.
#[derive(Debug)]
enum Bell {
    /// They are threads.
    Threads(Condvar),
    /// They are stepped: wake-ups that none of them has taken yet.
    Steps(AtomicUsize),
}

/// The sleep of a worker that is stepped.
#[derive(Debug)]
pub(super) struct Nap {
    /// When it ends at the latest.
    deadline: Option<Instant>,
}

impl Sleep {
    /// For workers of this kind.
    pub(super) fn new(kind: WorkerKind) -> Self {
        Self {
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            bell: match kind {
                WorkerKind::Threads => Bell::Threads(Condvar::new()),
                WorkerKind::Stepped => Bell::Steps(AtomicUsize::new(0)),
            },
        }
    }

    /// Sleeps until woken or until the time that `deadline` returns, unless `busy` is true by now.
    /// Both are called when a wake-up can no longer be missed. A thread has slept on return; a
    /// worker that is stepped begins to, and its caller asks whether that [is over](Self::is_over).
    pub(super) fn sleep(
        &self,
        clock: &Clock,
        busy: impl FnOnce() -> bool,
        deadline: impl FnOnce() -> Option<Instant>,
    ) -> Option<Nap> {
        let mut guard = self.lock.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence in `wake`: it sees a sleeper, or the sleeper sees the work.
        fence(Ordering::SeqCst);
        if !busy() {
            let deadline = deadline();
            match &self.bell {
                Bell::Steps(_) => return Some(Nap { deadline }),
                Bell::Threads(woken) => match deadline.and_then(|at| clock.alarm(at)) {
                    Some(alarm) => {
                        woken.wait_until(&mut guard, alarm);
                    }
                    None => woken.wait(&mut guard),
                },
            }
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        None
    }

    /// Whether a stepped worker must wake up: its deadline is over at `now`, or there is a
    /// wake-up.
    pub(super) fn is_due(&self, nap: &Nap, now: Instant) -> bool {
        match &self.bell {
            Bell::Threads(_) => true,
            Bell::Steps(rung) => {
                rung.load(Ordering::SeqCst) > 0
                    || nap.deadline.is_some_and(|deadline| deadline <= now)
            }
        }
    }

    /// Ends the sleep of a stepped worker if that [is due](Self::is_due) at `now`, and uses up one
    /// wake-up. Returns whether it was due.
    pub(super) fn is_over(&self, nap: &Nap, now: Instant) -> bool {
        let _guard = self.lock.lock();
        let due = self.is_due(nap, now);
        if let (true, Bell::Steps(rung)) = (due, &self.bell) {
            let left = rung.load(Ordering::SeqCst);
            rung.store(left.saturating_sub(1), Ordering::SeqCst);
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        due
    }

    fn ring(&self, all: bool) {
        let guard = self.lock.lock();
        match &self.bell {
            Bell::Threads(woken) => {
                // Workers that wake take it.
                drop(guard);
                if all {
                    woken.notify_all();
                } else {
                    woken.notify_one();
                }
            }
            Bell::Steps(rung) => {
                let sleepers = self.sleepers.load(Ordering::SeqCst);
                let more = if all { sleepers } else { 1 };
                let now = rung.load(Ordering::SeqCst).saturating_add(more);
                rung.store(now.min(sleepers), Ordering::SeqCst);
            }
        }
    }

    /// Wakes one worker if any sleeps, after work was made visible.
    #[inline]
    pub(super) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            self.ring(false);
        }
    }

    /// Whether so many threads sleep, or were woken and do not run yet, and `idle` is true. None of
    /// them runs before `idle` has returned.
    #[cfg(feature = "testing")]
    pub(super) fn all_sleep(&self, threads: usize, idle: impl FnOnce() -> bool) -> bool {
        // A worker that is about to sleep and finds work instead holds the lock until it is no
        // sleeper any more.
        let _guard = self.lock.lock();
        self.have_gone(threads) && idle()
    }

    /// Whether so many threads sleep, or were woken and do not run yet.
    #[inline]
    pub(super) fn have_gone(&self, threads: usize) -> bool {
        self.sleepers.load(Ordering::SeqCst) == threads
    }

    /// Wakes all workers.
    pub(super) fn wake_all(&self) {
        self.ring(true);
    }
}
