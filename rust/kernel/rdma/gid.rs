// SPDX-License-Identifier: GPL-2.0

//! GID tables of Ethernet ports, which the core fills from the addresses of network devices.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    Device,
    Driver, //
};
use crate::bindings;
use core::marker::PhantomData;
use kernel::{
    error::{
        from_result,
        to_result, //
    },
    prelude::*, //
};

/// A device with a GID table that the core manages.
///
/// # Examples
///
/// ```
/// # crate::rdma::tests::null::null_driver!(MyDriver);
///
/// use crate::rdma::{
///     gid::{GidEntry, GidTable, GidType},
///     Device,
/// };
///
/// impl GidTable for MyDriver {
///     fn add_gid(_device: &Device<Self>, gid: &GidEntry<'_>) -> Result {
///         if gid.gid_type()? != GidType::RoceV2 {
///             return Err(EOPNOTSUPP);
///         }
///         pr_debug!("port {}: entry {} is written\n", gid.port(), gid.index());
///         Ok(())
///     }
///
///     fn delete_gid(_device: &Device<Self>, gid: &GidEntry<'_>) -> Result {
///         pr_debug!("port {}: entry {} is deleted\n", gid.port(), gid.index());
///         Ok(())
///     }
/// }
/// ```
pub trait GidTable: Driver {
    /// Adds an entry, which may be used until it is deleted.
    fn add_gid(device: &Device<Self>, gid: &GidEntry<'_>) -> Result;

    /// Deletes an entry. AHs and QPs may still name the entry's index. Until they are destroyed,
    /// the index is not assigned to another entry, and the device must refuse to send from the
    /// index.
    fn delete_gid(device: &Device<Self>, gid: &GidEntry<'_>) -> Result;
}

core_enum! {
    /// The protocol for which an address in a GID table is used.
    GidType: ib_gid_type else EOPNOTSUPP {
        /// InfiniBand, or RoCE v1.
        Ib = ib_gid_type_IB_GID_TYPE_IB,
        /// RoCE v2: UDP over IPv4 or IPv6.
        RoceV2 = ib_gid_type_IB_GID_TYPE_ROCE_UDP_ENCAP,
    }
}

/// An entry of a GID table.
///
/// # Examples
///
/// ```
/// use crate::rdma::gid::{GidEntry, GidType};
///
/// /// Refuses entries that a device without RoCE v1 and VLANs can't use.
/// fn check(gid: &GidEntry<'_>) -> Result {
///     match (gid.gid_type()?, gid.vlan()?) {
///         (GidType::RoceV2, None) => Ok(()),
///         _ => Err(EOPNOTSUPP),
///     }
/// }
/// ```
///
/// # Invariants
///
/// `raw` is valid for `'a`.
pub struct GidEntry<'a> {
    raw: *const bindings::ib_gid_attr,
    _entry: PhantomData<&'a bindings::ib_gid_attr>,
}

impl GidEntry<'_> {
    /// # Safety
    ///
    /// `raw` is valid for the lifetime of the result.
    pub(super) unsafe fn from_raw(raw: *const bindings::ib_gid_attr) -> Self {
        // INVARIANT: `raw` is valid for the lifetime of the result.
        Self {
            raw,
            _entry: PhantomData,
        }
    }

    fn attr(&self) -> &bindings::ib_gid_attr {
        // SAFETY: By the type invariants; the core does not change the entry while a callback runs.
        unsafe { &*self.raw }
    }

    /// The GID, in network byte order.
    pub fn gid(&self) -> [u8; 16] {
        // SAFETY: All bytes of a GID are initialized.
        unsafe { self.attr().gid.raw }
    }

    /// The type of the entry.
    pub fn gid_type(&self) -> Result<GidType> {
        GidType::try_from(self.attr().gid_type)
    }

    /// VLAN id of the network device with the address; `None` without a VLAN.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the network device does not exist any more.
    pub fn vlan(&self) -> Result<Option<u16>> {
        /// The core's value for a network device without a VLAN.
        const NONE: u16 = 0xffff;
        let mut vlan = NONE;
        // SAFETY: The entry is valid by the type invariants; a null MAC address is not filled in.
        to_result(unsafe {
            bindings::rdma_read_gid_l2_fields(self.raw, &mut vlan, core::ptr::null_mut())
        })?;
        Ok((vlan != NONE).then_some(vlan))
    }

    /// Index into the table.
    pub fn index(&self) -> u16 {
        self.attr().index
    }

    /// The port.
    pub fn port(&self) -> u32 {
        self.attr().port_num
    }
}

/// # Safety
///
/// Called by the core as `add_gid` of a device of `T`: `attr` is valid.
pub(super) unsafe extern "C" fn add<T: GidTable>(
    attr: *const bindings::ib_gid_attr,
    _context: *mut *mut c_void,
) -> c_int {
    from_result(|| {
        // SAFETY: The entry names a device that is still registered.
        let device = unsafe { Device::<T>::from_raw((*attr).device) };
        // SAFETY: `attr` is valid.
        let entry = unsafe { GidEntry::from_raw(attr) };
        T::add_gid(device, &entry)?;
        Ok(0)
    })
}

/// # Safety
///
/// Called by the core as `del_gid` of a device of `T`: `attr` is valid.
pub(super) unsafe extern "C" fn delete<T: GidTable>(
    attr: *const bindings::ib_gid_attr,
    _context: *mut *mut c_void,
) -> c_int {
    from_result(|| {
        // SAFETY: The entry names a device that is still registered.
        let device = unsafe { Device::<T>::from_raw((*attr).device) };
        // SAFETY: `attr` is valid.
        let entry = unsafe { GidEntry::from_raw(attr) };
        T::delete_gid(device, &entry)?;
        Ok(0)
    })
}
