// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Where workers wait for work.

use std::time::Instant;

use super::sync::{fence, AtomicUsize, Condvar, Mutex, Ordering};

/// Sleeping workers. Waking costs one load when none sleeps, so a storm of doorbells at a busy device costs little.
#[derive(Debug, Default)]
pub(crate) struct Sleep {
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

impl Default for Bell {
    fn default() -> Self {
        Self::Threads(Condvar::new())
    }
}

impl Sleep {
    /// For workers that are stepped.
    pub(crate) fn stepped() -> Self {
        Self {
            bell: Bell::Steps(AtomicUsize::new(0)),
            ..Self::default()
        }
    }

    /// Sleeps until woken or until the time that `deadline` returns, unless `busy` is true by now. Both are called when a
    /// wake-up can no longer be missed.
    pub(crate) fn sleep(
        &self,
        busy: impl FnOnce() -> bool,
        deadline: impl FnOnce() -> Option<Instant>,
    ) {
        let Bell::Threads(woken) = &self.bell else {
            return;
        };
        let mut guard = self.lock.lock();
        if self.lie_down(busy) {
            match deadline() {
                Some(deadline) => {
                    woken.wait_until(&mut guard, deadline);
                }
                None => woken.wait(&mut guard),
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Becomes a sleeper unless `busy` is true by now. With the lock held. Returns whether it has.
    fn lie_down(&self, busy: impl FnOnce() -> bool) -> bool {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence in `wake`: it sees a sleeper, or the sleeper sees the work.
        fence(Ordering::SeqCst);
        let asleep = !busy();
        if !asleep {
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        asleep
    }

    /// The first half of [`sleep`](Self::sleep), of a worker that is stepped. Returns whether it sleeps
    /// now.
    pub(crate) fn fall_asleep(&self, busy: impl FnOnce() -> bool) -> bool {
        let _guard = self.lock.lock();
        self.lie_down(busy)
    }

    /// The second half: ends the sleep of a worker that is stepped if its deadline `is_over`, or by taking
    /// a wake-up. Returns whether it has.
    pub(crate) fn wake_up(&self, is_over: bool) -> bool {
        let Bell::Steps(rung) = &self.bell else {
            return false;
        };
        let _guard = self.lock.lock();
        let left = rung.load(Ordering::SeqCst);
        if left == 0 && !is_over {
            return false;
        }
        rung.store(left.saturating_sub(1), Ordering::SeqCst);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        true
    }

    fn ring(&self, all: bool) {
        let guard = self.lock.lock();
        match &self.bell {
            Bell::Threads(woken) => {
                // Those that wake take it.
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
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            self.ring(false);
        }
    }

    /// Whether so many threads sleep, or were woken and do not run yet, and `idle` is true. None of them runs before `idle` has
    /// returned.
    pub(crate) fn all_sleep(&self, threads: usize, idle: impl FnOnce() -> bool) -> bool {
        // Who is about to sleep and finds work instead holds the lock until it is no sleeper any more.
        let _guard = self.lock.lock();
        self.have_gone(threads) && idle()
    }

    /// Whether so many threads sleep, or were woken and do not run yet.
    #[inline]
    pub(crate) fn have_gone(&self, threads: usize) -> bool {
        self.sleepers.load(Ordering::SeqCst) == threads
    }

    /// Wakes all workers.
    pub(crate) fn wake_all(&self) {
        self.ring(true);
    }
}
