// SPDX-License-Identifier: GPL-2.0

//! Protection domains.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    udata,
    Device,
    Driver,
    Object, //
};
use crate::bindings;
use core::ops::Deref;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A protection domain. Dereferences to the driver's part.
#[repr(transparent)]
pub struct Pd<T: Driver>(Object<bindings::ib_pd, T::Pd>);

impl<T: Driver> Pd<T> {
    /// Bytes that the core allocates.
    pub(super) const SIZE: usize = Object::<bindings::ib_pd, T::Pd>::SIZE;

    /// Borrows a PD.
    ///
    /// # Safety
    ///
    /// `raw` is a PD of a device of `T` that was created and is not destroyed during `'a`.
    pub(super) unsafe fn from_raw<'a>(raw: *mut bindings::ib_pd) -> &'a Self {
        // SAFETY: `Self` is transparent over the object; the rest is the caller's promise.
        unsafe { &*raw.cast::<Self>() }
    }

    /// The PD's device.
    pub fn device(&self) -> &Device<T> {
        // SAFETY: The core sets the device of each PD, and destroys all PDs before the device goes away.
        unsafe { Device::from_raw((*self.0.as_raw()).device) }
    }
}

impl<T: Driver> Deref for Pd<T> {
    type Target = T::Pd;

    fn deref(&self) -> &T::Pd {
        &self.0
    }
}

/// # Safety
///
/// Called by the core as `alloc_pd` of a device of `T`: `pd` is allocated and not in use, `udata` is null or valid.
pub(super) unsafe extern "C" fn alloc<T: Driver>(
    pd: *mut bindings::ib_pd,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: By the function's safety requirements.
        unsafe { udata::expect_none(udata) }?;
        // SAFETY: The core has set the device of the PD, which is registered during the call.
        let device = unsafe { Device::<T>::from_raw((*pd).device) };
        // SAFETY: `pd` has the size that the operations state and is not in use yet.
        unsafe { Object::init(pd, T::alloc_pd(device)) }?;
        Ok(0)
    })
}

/// # Safety
///
/// Called by the core as `dealloc_pd` of a device of `T`: `pd` was created and nothing uses it any more.
pub(super) unsafe extern "C" fn dealloc<T: Driver>(
    pd: *mut bindings::ib_pd,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: By the function's safety requirements, nobody else has a reference.
    unsafe { Object::<_, T::Pd>::drop_driver(pd) };
    0
}
