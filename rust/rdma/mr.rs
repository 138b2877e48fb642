// SPDX-License-Identifier: GPL-2.0

//! Memory regions.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    pd::Pd,
    udata,
    Driver, //
};
use crate::bindings;
use core::mem::offset_of;
use kernel::{
    prelude::*,
    types::Opaque, //
};

/// A device with memory regions.
pub trait MemoryRegions: Driver {
    /// Driver's part of an MR. Dropping it destroys the MR.
    type Mr: Send + Sync;

    /// Creates an MR over all memory, by DMA address.
    fn get_dma_mr(pd: &Pd<Self>, access: AccessFlags) -> Result<NewMr<Self::Mr>>;

    /// Creates an MR over memory of the current process.
    fn reg_user_mr(pd: &Pd<Self>, memory: &UserMemory) -> Result<NewMr<Self::Mr>>;
}

/// What work requests may do with memory: bits of `enum ib_access_flags`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessFlags(pub u32);

impl AccessFlags {
    /// The device may write on behalf of local work.
    pub const LOCAL_WRITE: Self = Self(bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE);
    /// What a device may ignore.
    pub const OPTIONAL: Self = Self(bindings::ib_access_flags_IB_ACCESS_OPTIONAL);

    /// The bits that `other` lacks.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// Memory of a process that becomes an MR.
pub struct UserMemory {
    /// Address in the process.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// Address of the first byte in work requests.
    pub iova: u64,
    /// What may be done with it.
    pub access: AccessFlags,
}

/// An MR that was created.
pub struct NewMr<D> {
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
    /// Driver's part.
    pub driver: D,
}

/// The C structure and the driver's part. Drivers allocate MRs, so that the core may pool them.
#[repr(C)]
struct Mr<D> {
    c: Opaque<bindings::ib_mr>,
    _driver: D,
}

impl<D> NewMr<D> {
    /// Allocates the MR that the core will know.
    fn into_raw(self) -> Result<*mut bindings::ib_mr> {
        const { assert!(offset_of!(Mr<D>, c) == 0) };
        let mr = KBox::new(
            Mr {
                c: Opaque::<bindings::ib_mr>::zeroed(),
                _driver: self.driver,
            },
            GFP_KERNEL,
        )?;
        let raw = KBox::into_raw(mr).cast::<bindings::ib_mr>();
        // SAFETY: The C structure lies at the front of the allocation, which is still ours.
        unsafe {
            (*raw).lkey = self.lkey;
            (*raw).rkey = self.rkey;
        }
        Ok(raw)
    }
}

fn result_into_err_ptr(result: Result<*mut bindings::ib_mr>) -> *mut bindings::ib_mr {
    result.unwrap_or_else(Error::to_ptr)
}

/// # Safety
///
/// Called by the core as `get_dma_mr` of a device of `T`: `pd` is valid.
pub(super) unsafe extern "C" fn get_dma<T: MemoryRegions>(
    pd: *mut bindings::ib_pd,
    access: c_int,
) -> *mut bindings::ib_mr {
    result_into_err_ptr(
        u32::try_from(access)
            .map_err(Error::from)
            .and_then(|access| {
                // SAFETY: By the function's safety requirements.
                let pd = unsafe { Pd::<T>::from_raw(pd) };
                T::get_dma_mr(pd, AccessFlags(access))?.into_raw()
            }),
    )
}

/// # Safety
///
/// Called by the core as `reg_user_mr` of a device of `T`: `pd` is valid, `dmah` null or valid, `udata` valid.
pub(super) unsafe extern "C" fn reg_user<T: MemoryRegions>(
    pd: *mut bindings::ib_pd,
    start: u64,
    length: u64,
    iova: u64,
    access: c_int,
    dmah: *mut bindings::ib_dmah,
    udata: *mut bindings::ib_udata,
) -> *mut bindings::ib_mr {
    let reg_user = || {
        if !dmah.is_null() {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: By the function's safety requirements.
        unsafe { udata::expect_none(udata) }?;
        // SAFETY: By the function's safety requirements.
        let pd = unsafe { Pd::<T>::from_raw(pd) };
        let memory = UserMemory {
            start,
            length,
            iova,
            access: AccessFlags(u32::try_from(access)?),
        };
        T::reg_user_mr(pd, &memory)?.into_raw()
    };
    result_into_err_ptr(reg_user())
}

/// # Safety
///
/// Called by the core as `dereg_mr` of a device of `T`: `raw` is an MR of it that nothing uses any more.
pub(super) unsafe extern "C" fn dereg<T: MemoryRegions>(
    raw: *mut bindings::ib_mr,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: `NewMr::into_raw` made it from a box.
    drop(unsafe { KBox::from_raw(raw.cast::<Mr<T::Mr>>()) });
    0
}
