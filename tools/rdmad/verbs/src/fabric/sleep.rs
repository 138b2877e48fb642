// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Where workers wait for work.

use std::time::Instant;

use super::sync::{fence, AtomicUsize, Condvar, Mutex, Ordering};

/// Sleeping workers. Waking costs one load when none sleeps, so a storm of doorbells at a busy device costs little.
#[derive(Debug, Default)]
pub(crate) struct Sleep {
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    woken: Condvar,
}

impl Sleep {
    /// Sleeps until woken or until the time that `deadline` returns, unless `busy` is true by now. Both are called when a
    /// wake-up can no longer be missed.
    pub(crate) fn sleep(
        &self,
        busy: impl FnOnce() -> bool,
        deadline: impl FnOnce() -> Option<Instant>,
    ) {
        let mut guard = self.lock.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence in `wake`: it sees a sleeper, or the sleeper sees the work.
        fence(Ordering::SeqCst);
        if !busy() {
            match deadline() {
                Some(deadline) => {
                    self.woken.wait_until(&mut guard, deadline);
                }
                None => self.woken.wait(&mut guard),
            }
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes one worker if any sleeps, after work was made visible.
    #[inline]
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            drop(self.lock.lock());
            self.woken.notify_one();
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
        drop(self.lock.lock());
        self.woken.notify_all();
    }
}
