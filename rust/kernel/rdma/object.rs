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

/// A structure of the core, and the parts that follow it in objects of the driver `T`.
pub trait CoreObject<T> {
    /// The driver's part.
    type Driver;

    /// The abstraction's part.
    type Own;
}

/// Implements [`CoreObject`] for a structure of the core. The driver's part is an associated type
/// of `$trait`, and the abstraction's part is `$own`. Also adds a method that returns the device.
macro_rules! core_object {
    ($c:ident, $trait:ident, $driver:ident, $own:ty) => {
        impl<T: $trait> CoreObject<T> for bindings::$c {
            type Driver = T::$driver;
            type Own = $own;
        }

        impl<T: $trait> Object<bindings::$c, T> {
            /// The device of the object.
            // Drivers do not call this method for all kinds of objects.
            #[allow(dead_code)]
            pub fn device(&self) -> &super::Device<T> {
                // SAFETY: The core sets the device of each object, and destroys all objects before
                // the device goes away.
                unsafe { super::Device::from_raw((*self.as_raw()).device) }
            }
        }
    };
}
pub(super) use core_object;

/// A C structure of the RDMA core, followed by the part of the driver `T`. Dereferences to the
/// driver's part.
///
/// The core allocates the zeroed memory, with the size in the `size_*` member of the operations and
/// the alignment of `kmalloc`: the largest power of two that divides the size, so at least the
/// alignment of this type.
///
/// # Invariants
///
/// - The C structure is at offset 0.
/// - While a shared reference exists, the core has initialized the C structure, the parts of driver
///   and abstraction are initialized, and the driver's part is pinned.
#[repr(C)]
pub struct Object<C: CoreObject<T>, T> {
    c: Opaque<C>,
    driver: UnsafeCell<MaybeUninit<C::Driver>>,
    own: UnsafeCell<MaybeUninit<C::Own>>,
}

impl<C: CoreObject<T>, T> Object<C, T> {
    /// Size of the whole object in bytes.
    pub(super) const SIZE: usize = {
        assert!(offset_of!(Self, c) == 0);
        size_of::<Self>()
    };

    /// Borrows an object.
    ///
    /// # Safety
    ///
    /// `raw` is an object of a device of `T` that was initialized by [`init`](Self::init) and is
    /// not destroyed during `'a`.
    pub(super) unsafe fn from_raw<'a>(raw: *mut C) -> &'a Self {
        // SAFETY: By the safety requirements it is the start of a `Self`, whose invariants hold.
        unsafe { &*raw.cast::<Self>() }
    }

    /// The C structure.
    pub(super) fn as_raw(&self) -> *mut C {
        self.c.get()
    }

    /// The abstraction's part.
    pub(super) fn own(&self) -> &C::Own {
        // SAFETY: By the type invariants the part is initialized. No exclusive reference to it is
        // made.
        unsafe { (*self.own.get()).assume_init_ref() }
    }

    /// Initializes the parts that follow the C structure.
    ///
    /// # Safety
    ///
    /// `raw` points to the C structure at the start of an allocation of [`SIZE`](Self::SIZE) bytes.
    /// The parts are not initialized, and nothing else uses the allocation yet.
    pub(super) unsafe fn init<E>(
        raw: *mut C,
        driver: impl PinInit<C::Driver, E>,
        own: C::Own,
    ) -> Result<(), E> {
        let this = raw.cast::<Self>();
        // SAFETY: By the safety requirements the allocation has room for a `Self`. The core never
        // moves the object, so the driver's part is pinned.
        unsafe {
            pin_init::raw_try_init((&raw mut (*this).driver).cast::<C::Driver>(), driver)?;
            (&raw mut (*this).own).cast::<C::Own>().write(own);
        }
        Ok(())
    }

    /// Drops the driver's part, then the abstraction's.
    ///
    /// # Safety
    ///
    /// `raw` points to the C structure of an initialized object. No reference to the object exists
    /// or will be made.
    pub(super) unsafe fn drop_parts(raw: *mut C) {
        let this = raw.cast::<Self>();
        // SAFETY: By the safety requirements this is the only access to initialized parts.
        unsafe {
            ptr::drop_in_place((&raw mut (*this).driver).cast::<C::Driver>());
            ptr::drop_in_place((&raw mut (*this).own).cast::<C::Own>());
        }
    }
}

impl<C: CoreObject<T>, T> Deref for Object<C, T> {
    type Target = C::Driver;

    fn deref(&self) -> &C::Driver {
        // SAFETY: By the type invariants the driver's part is initialized. No exclusive reference
        // to it is made.
        unsafe { (*self.driver.get()).assume_init_ref() }
    }
}

// SAFETY: The C structure is used under the core's own locking, from any thread.
unsafe impl<C, T> Send for Object<C, T>
where
    C: CoreObject<T>,
    C::Driver: Send,
    C::Own: Send,
{
}

// SAFETY: The core accesses the C structure under its own locks, from any thread; the other parts
// are `Sync`.
unsafe impl<C, T> Sync for Object<C, T>
where
    C: CoreObject<T>,
    C::Driver: Sync,
    C::Own: Sync,
{
}
