// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The lock of a queue. Except in batches, it is held for a few hundred instructions.
//!
//! In a batch, one call of the program takes the lock and a later call releases it, with the
//! program's own code between these calls. Posting and polling wait for the end of a batch. Control
//! verbs must not wait, since the thread of the batch may call them: they
//! [try](Lock::lock_unless_kept) to take the lock. The end of the batch [reports](Guard::end) a
//! failed attempt to its thread.

use std::cell::UnsafeCell;
use std::mem;
use std::ops::Deref;
use std::ops::DerefMut;
use std::process;

use crate::sync::spin_loop;
use crate::sync::yield_now;
use crate::sync::AtomicU8;
use crate::sync::Ordering;

/// No thread has the lock.
const FREE: u8 = 0;
/// A thread has the lock and releases it soon.
const HELD: u8 = 1;
/// A batch has the lock.
const KEPT: u8 = 2;
/// A batch has the lock, and a control verb has tried to take it.
const WANTED: u8 = 3;

/// Whether several threads may use a queue. If so, the queue is locked.
#[derive(Clone, Copy, Debug)]
pub struct Threads {
    many: bool,
}

impl Threads {
    /// Any thread may use a queue at any time.
    pub const MANY: Self = Self { many: true };

    /// Whether queues are locked.
    pub const fn are_many(self) -> bool {
        self.many
    }

    /// Queues are not locked: the program ensures that no two threads use a queue at a time.
    ///
    /// # Safety
    ///
    /// No two threads at a time use a [`Lock`] that is made with the result.
    pub const unsafe fn one() -> Self {
        Self { many: false }
    }
}

/// A value that only one thread at a time uses.
pub struct Lock<T> {
    state: AtomicU8,
    threads: Threads,
    value: UnsafeCell<T>,
}

// SAFETY: a guard gives access to one thread at a time: by `state`, or by the promise of
// `Threads::one`.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// Protects `value`.
    pub fn new(value: T, threads: Threads) -> Self {
        Self {
            state: AtomicU8::new(FREE),
            threads,
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        if !self.threads.many {
            self.enter();
        } else if self.acquire().is_err() {
            self.wait();
        }
        Guard { lock: self }
    }

    /// Takes the lock if it is free, else returns its state.
    #[inline(always)]
    fn acquire(&self) -> Result<(), u8> {
        self.state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .map(drop)
    }

    /// Takes the lock without an atomic exchange. Detects most uses by two threads at a time.
    #[inline]
    fn enter(&self) {
        if self.state.load(Ordering::Relaxed) != FREE {
            misused();
        }
        self.state.store(HELD, Ordering::Relaxed);
    }

    /// Waits for the lock, unless a batch has it. The [end](Guard::end) of the batch reports the
    /// attempt.
    pub fn lock_unless_kept(&self) -> Option<Guard<'_, T>> {
        let mut spins = 0;
        loop {
            match self.acquire() {
                Ok(()) => return Some(Guard { lock: self }),
                // Exchanges the state even if it is WANTED already: the end of the batch
                // synchronizes with the exchange.
                Err(kept @ (KEPT | WANTED)) => {
                    let told = self.state.compare_exchange(
                        kept,
                        WANTED,
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    );
                    if told.is_ok() {
                        return None;
                    }
                }
                Err(_) => pause(&mut spins),
            }
        }
    }

    /// The guard of a lock that this thread still holds: it has [kept](Guard::keep) the last guard.
    ///
    /// # Safety
    ///
    /// This thread has kept the last guard, and the lock was not resumed since.
    #[inline]
    pub unsafe fn resume(&self) -> Guard<'_, T> {
        Guard { lock: self }
    }

    /// The value of a lock that this thread still holds: it has [kept](Guard::keep) the last guard.
    ///
    /// # Safety
    ///
    /// This thread has kept the last guard, the lock was not resumed since, and no other reference
    /// to the value exists.
    #[allow(clippy::mut_from_ref, reason = "the caller has the only reference")]
    #[inline(always)]
    pub unsafe fn kept(&self) -> &mut T {
        // SAFETY: the caller has the lock, and the only reference.
        unsafe { &mut *self.value.get() }
    }

    #[cold]
    fn wait(&self) {
        let mut spins = 0;
        while self.state.load(Ordering::Relaxed) != FREE || self.acquire().is_err() {
            pause(&mut spins);
        }
    }
}

/// Spins, and yields the CPU every 100 spins: a holder that takes so long is probably not running.
fn pause(spins: &mut u32) {
    *spins += 1;
    if *spins % 100 == 0 {
        yield_now();
    } else {
        spin_loop();
    }
}

/// Aborts a program that uses an unlocked queue in two threads at a time: the queue may be corrupt.
#[cold]
fn misused() -> ! {
    eprintln!(
        "virtio_rdma: two threads use an unlocked queue at a time, or one thread uses it again \
         before ibv_wr_complete() or ibv_end_poll(): unset VIRTIO_RDMA_SINGLE_THREADED, or create \
         the QP without a thread domain"
    );
    process::abort();
}

/// Access to the value of a [`Lock`]. The lock is held until the guard is dropped.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Guard<'_, T> {
    /// Leaves the lock held until [`Lock::resume`]: for interfaces that lock in one call and unlock
    /// in another.
    #[inline]
    pub fn keep(self) {
        mem::forget(self);
    }

    /// [Keeps](Self::keep) the lock for a batch: [control verbs do not
    /// wait](Lock::lock_unless_kept) for it.
    #[inline]
    pub fn begin(self) {
        self.lock.state.store(KEPT, Ordering::Relaxed);
        mem::forget(self);
    }

    /// Releases a lock that was [kept for a batch](Self::begin). Returns whether a control verb has
    /// [tried](Lock::lock_unless_kept) to take it meanwhile.
    #[inline]
    #[must_use = "this thread has to do the work of the control verb"]
    pub fn end(self) -> bool {
        let lock = self.lock;
        mem::forget(self);
        // An attempt is also an exchange: it happens before this exchange, or finds the lock free.
        lock.state.swap(FREE, Ordering::AcqRel) == WANTED
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
        self.lock.state.store(FREE, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        let lock = Lock::new(0u64, Threads::MANY);
        thread::scope(|scope| {
            for turn in 0..4 {
                let lock = &lock;
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        match turn {
                            0 => *lock.lock_unless_kept().unwrap() += 1,
                            _ => *lock.lock() += 1,
                        }
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
            // SAFETY: the guard was kept above.
            let mut guard = unsafe { lock.resume() };
            *guard = 1;
            drop(guard);
            assert_eq!(other.join().unwrap(), 1);
        });
    }

    #[test]
    fn a_batch_is_told_what_was_wanted() {
        // SAFETY: only this thread uses the lock.
        for threads in [Threads::MANY, unsafe { Threads::one() }] {
            let lock = Lock::new(0, threads);
            // SAFETY: a guard was kept before each call.
            let end = || unsafe { lock.resume() }.end();
            lock.lock().begin();
            assert!(!end());
            lock.lock().begin();
            assert!(lock.lock_unless_kept().is_none());
            assert!(lock.lock_unless_kept().is_none());
            assert!(end());
            assert!(lock.lock_unless_kept().is_some());
            lock.lock().begin();
            assert!(!end());
        }
    }
}
