// SPDX-License-Identifier: GPL-2.0

//! Values that are dropped only while a device is bound to its driver.
//!
//! Memory that is mapped for DMA must not be unmapped once the device has no driver. Nor may it
//! always be freed when the driver is unbound, as [`Devres`] would do: a device that did not
//! confirm its reset may still write to the memory.

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
    devres::Devres,
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
/// `users` is the number of existing [`End`]s (0 or 1) and [`Entered`]s. Once it is 0, it stays 0,
/// and `unused` is completed.
#[pin_data]
struct State {
    users: Atomic<u32>,
    #[pin]
    unused: Completion,
}

impl State {
    /// Adds a user, unless the number of users is 0.
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

    /// Removes one user: the caller.
    fn leave(&self) {
        // INVARIANT: The last user completes `unused`, and `enter` adds no user after that.
        if self.users.fetch_sub(1, Full) == 1 {
            self.unused.complete_all();
        }
    }
}

/// The binding of a device to its driver.
#[derive(Clone)]
pub(super) struct Binding(Arc<Watch>);

/// # Invariants
///
/// `state` has an [`End`], which is dropped when the device is unbound, or together with this.
struct Watch {
    state: Arc<State>,
    _end: Devres<End>,
}

impl Binding {
    /// The binding of `device` to its present driver.
    pub(super) fn new(device: &device::Device<Bound>) -> Result<Self> {
        let state = Arc::pin_init(
            // INVARIANT: The one user is the [`End`] that is made next.
            pin_init!(State {
                users: Atomic::new(1),
                unused <- Completion::new(),
            }),
            GFP_KERNEL,
        )?;
        let end = End(state.clone());
        // INVARIANT: The end belongs to the device's resources from now on.
        let watch = Watch {
            _end: Devres::new::<Error>(device, Ok(end))?,
            state,
        };
        Ok(Self(Arc::new(watch, GFP_KERNEL)?))
    }

    /// Keeps the device bound until the guard is dropped, or returns `None` if its driver was
    /// unbound.
    fn try_enter(&self) -> Option<Entered<'_>> {
        // INVARIANT: A user was just added.
        self.0.state.enter().then(|| Entered(&self.0.state))
    }
}

/// The end of a binding, or of the interest in it.
struct End(Arc<State>);

impl Drop for End {
    /// Waits for the last user.
    fn drop(&mut self) {
        self.0.leave();
        self.0.unused.wait_for_completion();
    }
}

/// A guard that keeps a device bound.
///
/// # Invariants
///
/// The guard is counted as a user of the state.
struct Entered<'a>(&'a State);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// A value that is dropped only while the device is bound to the driver that made the value. If the
/// owner drops the value after the device was unbound, the value is leaked.
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

    /// Ties `other` to the same binding. `other` is dropped after the present value.
    pub(super) fn and<U>(self, other: U) -> WhileBound<(T, U)> {
        let this = ManuallyDrop::new(self);
        // SAFETY: Both fields are moved out only once: `this` is neither used any more nor dropped.
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
            // SAFETY: The value is dropped only here, and not used afterwards.
            Some(_bound) => unsafe { ManuallyDrop::drop(&mut self.value) },
            None => pr_warn_once!("DMA memory is leaked: its device has no driver any more\n"),
        }
    }
}
