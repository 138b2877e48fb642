// SPDX-License-Identifier: GPL-2.0

//! Spin locks that disable interrupts.

use crate::interrupt::{
    local_interrupt_disable,
    LocalInterruptDisabled, //
};
use core::{
    mem::ManuallyDrop,
    ptr, //
};
use stock::{
    bindings,
    ffi::c_char,
    sync::{
        lock::{
            spinlock::SpinLockBackend,
            Backend,
            Guard,
            Lock, //
        },
        SpinLock,
        SpinLockGuard, //
    }, //
};

/// Makes an initializer of a [`SpinLockIrq`] with a lock class of its own.
#[macro_export]
macro_rules! new_spinlock_irq {
    ($inner:expr $(, $name:literal)? $(,)?) => {
        $crate::sync::SpinLockIrq::new(
            $inner,
            $crate::optional_name!($($name)?),
            $crate::static_lock_class!(),
        )
    };
}
pub use new_spinlock_irq;

/// A spin lock whose holder runs without interrupts.
pub type SpinLockIrq<T> = Lock<T, SpinLockIrqBackend>;

/// The guard of a locked [`SpinLockIrq`].
pub type SpinLockIrqGuard<'a, T> = Guard<'a, T, SpinLockIrqBackend>;

/// The backend of [`SpinLockIrq`].
pub struct SpinLockIrqBackend;

// SAFETY: The lock itself is a `SpinLockBackend`, which provides mutual exclusion; `relock` is the
// default of the trait.
unsafe impl Backend for SpinLockIrqBackend {
    type State = bindings::spinlock_t;
    type GuardState = ();

    #[inline]
    unsafe fn init(ptr: *mut Self::State, name: *const c_char, key: *mut bindings::lock_class_key) {
        // SAFETY: `SpinLockBackend` has the same requirements.
        unsafe { SpinLockBackend::init(ptr, name, key) }
    }

    #[inline]
    unsafe fn lock(ptr: *mut Self::State) -> Self::GuardState {
        let _ = ManuallyDrop::new(local_interrupt_disable());
        // SAFETY: `SpinLockBackend` has the same requirements.
        unsafe { SpinLockBackend::lock(ptr) }
    }

    #[inline]
    unsafe fn try_lock(ptr: *mut Self::State) -> Option<Self::GuardState> {
        let disabled = local_interrupt_disable();
        // SAFETY: `SpinLockBackend` has the same requirements.
        unsafe { SpinLockBackend::try_lock(ptr) }.map(|()| core::mem::forget(disabled))
    }

    #[inline]
    unsafe fn unlock(ptr: *mut Self::State, guard_state: &Self::GuardState) {
        // SAFETY: `SpinLockBackend` has the same requirements.
        unsafe { SpinLockBackend::unlock(ptr, guard_state) };
        // SAFETY: The caller holds the lock, so the section that `lock` began is open.
        unsafe { LocalInterruptDisabled::end() };
    }

    #[inline]
    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: `SpinLockBackend` has the same requirements.
        unsafe { SpinLockBackend::assert_is_held(ptr) }
    }
}

/// Locking where interrupts are disabled already.
pub trait LockWith<T: ?Sized> {
    /// Locks while interrupts are already disabled, and leaves them disabled.
    fn lock_with<'a>(&'a self, disabled: &'a LocalInterruptDisabled) -> SpinLockGuard<'a, T>;
}

impl<T: ?Sized> LockWith<T> for SpinLockIrq<T> {
    #[inline]
    fn lock_with<'a>(&'a self, _disabled: &'a LocalInterruptDisabled) -> SpinLockGuard<'a, T> {
        // SAFETY: The two kinds of locks have the same layout, as `Lock` is `repr(C)` and their
        // states are of one type. No interrupt can come in while the guard lives.
        unsafe { &*(ptr::from_ref(self) as *const SpinLock<T>) }.lock()
    }
}
