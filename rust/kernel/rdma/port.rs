// SPDX-License-Identifier: GPL-2.0

//! Ports.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    Device,
    Driver, //
};
use crate::bindings;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A device with ports.
///
/// # Examples
///
/// ```
/// use crate::rdma::{
///     port::{PortAttr, Ports},
///     Device,
/// };
///
/// /// Whether a port can carry data.
/// fn is_active<T: Ports>(device: &Device<T>, port: u32) -> Result<bool> {
///     const ACTIVE: u32 = 4;
///     let attr: PortAttr = T::query_port(device, port)?;
///     Ok(attr.state == ACTIVE)
/// }
/// ```
pub trait Ports: Driver {
    /// State of a port.
    fn query_port(device: &Device<Self>, port: u32) -> Result<PortAttr>;

    /// Properties of a port that never change. Called when the device is registered.
    fn port_immutable(device: &Device<Self>, port: u32) -> Result<PortImmutable>;

    /// Entry of a port's P_Key table.
    fn query_pkey(device: &Device<Self>, port: u32, index: u16) -> Result<u16>;
}

/// State of a port: the fields of `struct ib_port_attr` that an Ethernet port has. A field whose
/// comment is the name of an enumeration holds a value of that enumeration.
#[allow(missing_docs)]
pub struct PortAttr {
    /// `enum ib_port_state`.
    pub state: u32,
    /// `enum ib_port_phys_state`.
    pub phys_state: u8,
    /// `enum ib_mtu`.
    pub max_mtu: u32,
    /// `enum ib_mtu`.
    pub active_mtu: u32,
    /// MTU of the link in bytes.
    pub phys_mtu: u32,
    pub gid_tbl_len: u32,
    pub pkey_tbl_len: u16,
    /// `enum ib_port_capability_mask_bits`.
    pub port_cap_flags: u32,
    /// Maximum length of a message in bytes.
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    /// `enum ib_port_width`.
    pub active_width: u8,
    /// `enum ib_port_speed`.
    pub active_speed: u16,
}

/// Properties of a port that never change.
///
/// # Examples
///
/// ```
/// use crate::rdma::port::{PortImmutable, Protocol};
///
/// /// A port with one P_Key and room for 16 addresses.
/// const PORT: PortImmutable = PortImmutable {
///     pkey_tbl_len: 1,
///     gid_tbl_len: 16,
///     protocol: Protocol::RoceV2,
/// };
/// ```
pub struct PortImmutable {
    /// Number of entries of the P_Key table.
    pub pkey_tbl_len: u32,
    /// Number of entries of the GID table.
    pub gid_tbl_len: u32,
    /// The protocol on the port.
    pub protocol: Protocol,
}

/// The protocol on a port.
#[derive(Clone, Copy)]
pub enum Protocol {
    /// RoCE v2. The port has a GSI QP, through which the core exchanges management datagrams.
    RoceV2,
}

impl Protocol {
    const fn core_cap_flags(self) -> u32 {
        match self {
            Self::RoceV2 => bindings::RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP,
        }
    }

    /// Length of a management datagram in bytes.
    const fn max_mad_size(self) -> u32 {
        match self {
            Self::RoceV2 => bindings::IB_MGMT_MAD_SIZE,
        }
    }
}

/// # Safety
///
/// Called by the core as `query_port` of a device of `T`: `attr` is zeroed and writable.
pub(super) unsafe extern "C" fn query<T: Ports>(
    device: *mut bindings::ib_device,
    port: u32,
    attr: *mut bindings::ib_port_attr,
) -> c_int {
    from_result(|| {
        // SAFETY: The core queries ports only of devices that are registered or being registered.
        let from = T::query_port(unsafe { Device::from_raw(device) }, port)?;
        // SAFETY: `attr` is zeroed and writable.
        let to = unsafe { &mut *attr };
        to.gid_tbl_len = i32::try_from(from.gid_tbl_len)?;
        to.set_ip_gids(1);
        // An Ethernet port has one virtual lane.
        to.max_vl_num = 1;
        copy_fields!(from => to; state, phys_state, max_mtu, active_mtu, phys_mtu, pkey_tbl_len,
            port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, active_width, active_speed);
        Ok(0)
    })
}

/// # Safety
///
/// Called by the core as `get_port_immutable` of a device of `T`: `immutable` is zeroed and
/// writable.
pub(super) unsafe extern "C" fn immutable<T: Ports>(
    device: *mut bindings::ib_device,
    port: u32,
    immutable: *mut bindings::ib_port_immutable,
) -> c_int {
    from_result(|| {
        // SAFETY: The core calls this while it registers the device.
        let from = T::port_immutable(unsafe { Device::from_raw(device) }, port)?;
        // SAFETY: `immutable` is zeroed and writable.
        let to = unsafe { &mut *immutable };
        to.pkey_tbl_len = i32::try_from(from.pkey_tbl_len)?;
        to.gid_tbl_len = i32::try_from(from.gid_tbl_len)?;
        to.core_cap_flags = from.protocol.core_cap_flags();
        to.max_mad_size = from.protocol.max_mad_size();
        Ok(0)
    })
}

/// # Safety
///
/// Called by the core as `get_link_layer`.
pub(super) unsafe extern "C" fn link_layer(
    _device: *mut bindings::ib_device,
    _port: u32,
) -> bindings::rdma_link_layer {
    bindings::rdma_link_layer_IB_LINK_LAYER_ETHERNET
}

/// # Safety
///
/// Called by the core as `query_pkey` of a device of `T`: `pkey` is writable.
pub(super) unsafe extern "C" fn query_pkey<T: Ports>(
    device: *mut bindings::ib_device,
    port: u32,
    index: u16,
    pkey: *mut u16,
) -> c_int {
    from_result(|| {
        // SAFETY: The core queries P_Keys only of devices that are registered or being registered.
        let value = T::query_pkey(unsafe { Device::from_raw(device) }, port, index)?;
        // SAFETY: `pkey` is writable.
        unsafe { *pkey = value };
        Ok(0)
    })
}
