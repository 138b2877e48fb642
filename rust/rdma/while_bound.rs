// SPDX-License-Identifier: GPL-2.0

//! Values that are dropped only while a device is bound to its driver.
//!
//! Memory that is mapped for DMA must not be unmapped once the device has no driver. Nor can it be
//! freed when the driver is unbound, as [`Devres`](kernel::devres::Devres) would do it: a device
//! that did not confirm its reset may still write there.

use super::{
    Device,
    Driver, //
};
use core::{
    mem::ManuallyDrop,
    ops::{
        Deref,
        DerefMut, //
    },
    ptr, //
};
use kernel::{
    device::{
        self,
        Bound, //
    },
    devres,
    pr_warn_once,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Full,
            Relaxed, //
        },
        Arc,
        Completion, //
    }, //
};

/// # Invariants
///
/// `users` counts the [`End`], while it exists, and each [`Entered`]. Once it is 0 it stays so, and
/// `unused` is completed.
#[pin_data]
struct State {
    users: Atomic<u32>,
    #[pin]
    unused: Completion,
}

impl State {
    /// Adds a user, unless there is none any more.
    fn enter(&self) -> bool {
        let mut users = self.users.load(Relaxed);
        while users != 0 {
            match self.users.cmpxchg(users, users + 1, Full) {
                Ok(_) => return true,
                Err(now) => users = now,
            }
        }
        false
    }

    /// Removes a user. The caller is one.
    fn leave(&self) {
        // INVARIANT: The last user completes it, and `enter` adds none after that.
        if self.users.fetch_sub(1, Full) == 1 {
            self.unused.complete_all();
        }
    }
}

/// The binding of a device to its driver.
///
/// # Invariants
///
/// The state has an [`End`], whose drop is a part of the unbinding of the device.
#[derive(Clone)]
pub(super) struct Binding(Arc<State>);

impl Binding {
    /// The present binding of `device`.
    pub(super) fn new(device: &device::Device<Bound>) -> Result<Self> {
        let state = Arc::pin_init(
            // INVARIANT: The user is the end, which is made next.
            pin_init!(State {
                users: Atomic::new(1),
                unused <- Completion::new(),
            }),
            GFP_KERNEL,
        )?;
        let end = End(state.clone());
        devres::register::<End, Error>(device, Ok(end), GFP_KERNEL)?;
        // INVARIANT: It was just registered.
        Ok(Self(state))
    }

    /// Keeps the device bound until the guard is dropped, or returns `None` if its driver was
    /// unbound.
    fn try_enter(&self) -> Option<Entered<'_>> {
        // INVARIANT: A user was just added.
        self.0.enter().then(|| Entered(&self.0))
    }
}

/// The end of a binding.
struct End(Arc<State>);

impl Drop for End {
    /// Waits for the last user.
    fn drop(&mut self) {
        self.0.leave();
        self.0.unused.wait_for_completion();
    }
}

/// Keeps a device bound.
///
/// # Invariants
///
/// It is a user of the state.
struct Entered<'a>(&'a State);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// A value that is dropped while the device to which the driver was bound when it was made is
/// still bound. Later than that it is leaked: the driver had to drop it before, or never.
pub(super) struct WhileBound<T> {
    value: ManuallyDrop<T>,
    binding: Binding,
}

impl<T> WhileBound<T> {
    /// Ties `value` to the binding of [`Device::bound_device`].
    pub(super) fn new<D: Driver>(device: &Device<D>, value: T) -> Self {
        Self {
            value: ManuallyDrop::new(value),
            binding: device.binding().clone(),
        }
    }

    /// Ties `other` to the same binding. It is dropped after the value.
    pub(super) fn and<U>(self, other: U) -> WhileBound<(T, U)> {
        let this = ManuallyDrop::new(self);
        // SAFETY: Each is moved out once: `this` is neither used any more nor dropped.
        let (value, binding) = unsafe { (ptr::read(&this.value), ptr::read(&this.binding)) };
        WhileBound {
            value: ManuallyDrop::new((ManuallyDrop::into_inner(value), other)),
            binding,
        }
    }
}

impl<T> Deref for WhileBound<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for WhileBound<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for WhileBound<T> {
    fn drop(&mut self) {
        match self.binding.try_enter() {
            // SAFETY: This is the only drop of it, and it is not used afterwards.
            Some(_bound) => unsafe { ManuallyDrop::drop(&mut self.value) },
            None => pr_warn_once!("DMA memory is leaked: its device has no driver any more\n"),
        }
    }
}
