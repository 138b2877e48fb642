// SPDX-License-Identifier: GPL-2.0

//! Protection domains.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    object::{
        core_object,
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

/// A device with protection domains.
///
/// # Examples
///
/// ```
/// use crate::rdma::pd::{Pd, ProtectionDomains};
///
/// /// The number of a PD, for a driver whose part of a PD is its number.
/// fn number<T: ProtectionDomains<Pd = u32>>(pd: &Pd<T>) -> u32 {
///     **pd
/// }
/// ```
pub trait ProtectionDomains: Driver {
    /// Driver's part of a PD. Dropping it destroys the PD.
    type Pd: Send + Sync;

    /// Creates a PD.
    fn alloc_pd(device: &Device<Self>) -> Result<Self::Pd>;
}

/// A protection domain.
pub type Pd<T> = Object<bindings::ib_pd, T>;

core_object!(ib_pd, ProtectionDomains, Pd, ());

/// # Safety
///
/// Called by the core as `alloc_pd` of a device of `T`: `pd` is allocated and not in use, `udata`
/// is null or valid.
pub(super) unsafe extern "C" fn alloc<T: ProtectionDomains>(
    pd: *mut bindings::ib_pd,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: `udata` is null or valid.
        unsafe { udata::expect_none(udata) }?;
        // SAFETY: The core has set the device of the PD, which is registered during the call.
        let device = unsafe { Device::<T>::from_raw((*pd).device) };
        // SAFETY: `pd` has the size that the operations state and is not in use yet.
        let Ok(()) = unsafe { Pd::<T>::init(pd, T::alloc_pd(device)?, ()) };
        Ok(0)
    })
}

/// # Safety
///
/// Called by the core as `dealloc_pd` of a device of `T`: `pd` was created and nothing uses it any
/// more, `udata` is null or valid.
pub(super) unsafe extern "C" fn dealloc<T: ProtectionDomains>(
    pd: *mut bindings::ib_pd,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: `udata` is null or valid.
        unsafe { udata::expect_none(udata) }?;
        // SAFETY: Nothing uses `pd` any more, so there is no other reference.
        unsafe { Pd::<T>::drop_parts(pd) };
        Ok(0)
    })
}
