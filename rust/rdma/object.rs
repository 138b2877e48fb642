// SPDX-License-Identifier: GPL-2.0

//! Objects that the RDMA core allocates with room for the driver's part.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use core::{
    cell::UnsafeCell,
    mem::{
        offset_of,
        MaybeUninit, //
    },
    ops::Deref,
    ptr, //
};
use kernel::{
    prelude::*,
    types::Opaque, //
};

/// A C structure of the RDMA core and, behind it, the driver's part.
///
/// The core allocates as many bytes as the `size_*` member of the operations says, zeroed, with the alignment of
/// `kmalloc`: the greatest power of two that divides the size, which is never less than the alignment of a type.
///
/// # Invariants
///
/// - The C structure lies at offset 0.
/// - Whenever a shared reference exists, the C structure is one that the core initialised, and the driver's part
///   is initialised and pinned.
#[repr(C)]
pub struct Object<C, D> {
    c: Opaque<C>,
    driver: UnsafeCell<MaybeUninit<D>>,
}

impl<C, D> Object<C, D> {
    /// Bytes of the whole object.
    pub(super) const SIZE: usize = {
        assert!(offset_of!(Self, c) == 0);
        size_of::<Self>()
    };

    /// The C structure.
    pub(super) fn as_raw(&self) -> *mut C {
        self.c.get()
    }

    /// Initialises the driver's part.
    ///
    /// # Safety
    ///
    /// `raw` points to the C structure at the start of an allocation of [`SIZE`](Self::SIZE) bytes that nobody else
    /// uses yet, and whose driver's part is not initialised.
    pub(super) unsafe fn init<E>(raw: *mut C, init: impl PinInit<D, E>) -> Result<(), E> {
        let this = raw.cast::<Self>();
        // SAFETY: By the safety requirements the allocation holds a `Self`.
        let slot = unsafe { (&raw mut (*this).driver).cast::<D>() };
        // SAFETY: `slot` is valid for writes, and the object never moves: the core keeps it where it is until it frees
        // it.
        unsafe { pin_init::raw_try_init(slot, init) }
    }

    /// Drops the driver's part.
    ///
    /// # Safety
    ///
    /// `raw` points to the C structure of an object whose driver's part is initialised, and no reference to the object
    /// exists or will be made.
    pub(super) unsafe fn drop_driver(raw: *mut C) {
        let this = raw.cast::<Self>();
        // SAFETY: By the safety requirements this is the only access to an initialised driver's part.
        unsafe { ptr::drop_in_place((&raw mut (*this).driver).cast::<D>()) };
    }
}

impl<C, D> Deref for Object<C, D> {
    type Target = D;

    fn deref(&self) -> &D {
        // SAFETY: By the type invariants the driver's part is initialised; it is only ever borrowed shared.
        unsafe { (*self.driver.get()).assume_init_ref() }
    }
}

// SAFETY: The C structure is used under the core's own locking, from any thread.
unsafe impl<C, D: Send> Send for Object<C, D> {}

// SAFETY: The C structure is used under the core's own locking, from any thread; the driver's part is shared.
unsafe impl<C, D: Sync> Sync for Object<C, D> {}
