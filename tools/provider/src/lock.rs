// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The lock of a queue: held for a few hundred instructions, never across a system call.

use std::cell::UnsafeCell;
use std::hint;
use std::mem;
use std::ops::Deref;
use std::ops::DerefMut;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;

/// Whether queues are used by one thread at a time without locking.
#[derive(Clone, Copy, Debug)]
pub struct Threads {
    many: bool,
}

impl Threads {
    /// Any thread may use a queue at any time.
    pub const MANY: Self = Self { many: true };

    /// The program itself sees to it that no two threads use the verbs of one context at a time.
    ///
    /// # Safety
    ///
    /// That is so for every [`Lock`] made with the result.
    pub const unsafe fn one() -> Self {
        Self { many: false }
    }
}

/// A value that one thread uses at a time.
pub struct Lock<T> {
    held: AtomicBool,
    threads: Threads,
    value: UnsafeCell<T>,
}

// SAFETY: a guard gives access to one thread at a time: by `held`, or by the promise of `Threads::one`.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// Protects `value`.
    pub const fn new(value: T, threads: Threads) -> Self {
        Self {
            held: AtomicBool::new(false),
            threads,
            value: UnsafeCell::new(value),
        }
    }

    /// The value, which nobody else uses any more.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        if self.threads.many && self.held.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Guard { lock: self }
    }

    /// Goes on with a lock that a guard was [kept](Guard::keep) of, by the thread that holds it.
    ///
    /// # Safety
    ///
    /// The last guard of this thread was kept, and nobody has gone on since.
    #[inline]
    pub unsafe fn resume(&self) -> Guard<'_, T> {
        Guard { lock: self }
    }

    /// Spins for about as long as a holder needs; a holder that takes longer is not running, so its thread gets the
    /// processor.
    #[cold]
    fn wait(&self) {
        loop {
            for _ in 0..100 {
                if !self.held.load(Ordering::Relaxed) && !self.held.swap(true, Ordering::Acquire) {
                    return;
                }
                hint::spin_loop();
            }
            thread::yield_now();
        }
    }
}

/// Access to the value of a [`Lock`] that is held until this is dropped.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Guard<'_, T> {
    /// Leaves the lock held until [`Lock::resume`]: for interfaces that lock in one call and unlock in another.
    #[inline]
    pub fn keep(self) {
        mem::forget(self);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // One thread alone does not look at it.
        self.lock.held.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        let lock = Lock::new(0u64, Threads::MANY);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 40_000);
    }

    #[test]
    fn a_kept_guard_holds_the_lock() {
        let lock = Lock::new(0, Threads::MANY);
        lock.lock().keep();
        thread::scope(|scope| {
            let other = scope.spawn(|| *lock.lock());
            // SAFETY: kept above.
            let mut guard = unsafe { lock.resume() };
            *guard = 1;
            drop(guard);
            assert_eq!(other.join().unwrap(), 1);
        });
    }
}
