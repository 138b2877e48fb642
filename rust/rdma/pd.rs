// SPDX-License-Identifier: GPL-2.0

//! Protection domains.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    object::{
        CoreObject,
        Object, //
    },
    udata,
    Device,
    Driver, //
};
use crate::bindings;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A protection domain.
pub type Pd<T> = Object<bindings::ib_pd, T>;

impl<T: Driver> CoreObject<T> for bindings::ib_pd {
    type Driver = T::Pd;
    type Own = ();
}

impl<T: Driver> Pd<T> {
    /// The PD's device.
    pub fn device(&self) -> &Device<T> {
        // SAFETY: The core sets the device of each PD, and destroys all PDs before the device goes
        // away.
        unsafe { Device::from_raw((*self.as_raw()).device) }
    }
}

/// # Safety
///
/// Called by the core as `alloc_pd` of a device of `T`: `pd` is allocated and not in use, `udata`
/// is null or valid.
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
        unsafe { Pd::<T>::init(pd, T::alloc_pd(device), ()) }?;
        Ok(0)
    })
}

/// # Safety
///
/// Called by the core as `dealloc_pd` of a device of `T`: `pd` was created and nothing uses it any
/// more, `udata` is null or valid.
pub(super) unsafe extern "C" fn dealloc<T: Driver>(
    pd: *mut bindings::ib_pd,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: By the function's safety requirements.
        unsafe { udata::expect_none(udata) }?;
        // SAFETY: By the function's safety requirements, nobody else has a reference.
        unsafe { Pd::<T>::drop_parts(pd) };
        Ok(0)
    })
}
