// SPDX-License-Identifier: GPL-2.0

//! Memory windows.
//!
//! The core allocates and frees windows. Work requests bind them to memory, without the core.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    object::{
        core_object,
        CoreObject,
        Object, //
    },
    pd::{
        Pd,
        ProtectionDomains, //
    },
    udata, //
};
use crate::bindings;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A device with memory windows.
///
/// # Examples
///
/// ```
/// # crate::rdma::tests::null::null_driver!(MyDriver);
///
/// use crate::rdma::{
///     mw::{MemoryWindows, Mw, MwType, NewMw},
///     pd::Pd,
/// };
///
/// impl MemoryWindows for MyDriver {
///     /// The remote key.
///     type Mw = u32;
///
///     fn alloc_mw(_pd: &Pd<Self>, mw_type: MwType) -> Result<NewMw<u32>> {
///         if mw_type != MwType::Two {
///             return Err(EOPNOTSUPP);
///         }
///         let rkey = 0x300;
///         Ok(NewMw { rkey, driver: rkey })
///     }
/// }
///
/// /// The remote key that a window had when it was created.
/// fn rkey(window: &Mw<MyDriver>) -> u32 {
///     **window
/// }
/// ```
pub trait MemoryWindows: ProtectionDomains {
    /// Driver's part of a window. Dropping it unbinds and destroys the window.
    type Mw: Send + Sync;

    /// Creates an unbound window.
    fn alloc_mw(pd: &Pd<Self>, mw_type: MwType) -> Result<NewMw<Self::Mw>>;
}

core_enum! {
    /// Type of a window (IBTA 10.6.7.2).
    MwType: ib_mw_type else EINVAL {
        /// Type 1.
        One = ib_mw_type_IB_MW_TYPE_1,
        /// Type 2A or 2B; a device supports one of the two.
        Two = ib_mw_type_IB_MW_TYPE_2,
    }
}

/// A window that was created.
pub struct NewMw<D> {
    /// Remote key.
    pub rkey: u32,
    /// Driver's part.
    pub driver: D,
}

/// A memory window.
pub type Mw<T> = Object<bindings::ib_mw, T>;

core_object!(ib_mw, MemoryWindows, Mw, ());

/// # Safety
///
/// Called by the core as `alloc_mw` of a device of `T`: `mw` is allocated and not in use, with its
/// PD and type set; `udata` is valid.
pub(super) unsafe extern "C" fn alloc<T: MemoryWindows>(
    mw: *mut bindings::ib_mw,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: `udata` is valid.
        unsafe { udata::expect_none(udata) }?;
        // SAFETY: `mw` is allocated with its PD and type set; a PD is not destroyed before its
        // windows.
        let (pd, mw_type) = unsafe { (Pd::<T>::from_raw((*mw).pd), (*mw).type_) };
        let new = T::alloc_mw(pd, MwType::try_from(mw_type)?)?;
        // SAFETY: `mw` has the size that the operations state and is not in use yet.
        unsafe {
            (*mw).rkey = new.rkey;
            let Ok(()) = Mw::<T>::init(mw, new.driver, ());
        }
        Ok(0)
    })
}

/// # Safety
///
/// Called by the core as `dealloc_mw` of a device of `T`: `mw` was created and nothing uses it any
/// more.
pub(super) unsafe extern "C" fn dealloc<T: MemoryWindows>(mw: *mut bindings::ib_mw) -> c_int {
    // SAFETY: Nothing uses `mw` any more, so there is no other reference.
    unsafe { Mw::<T>::drop_parts(mw) };
    0
}
