// SPDX-License-Identifier: GPL-2.0

//! Limits and capabilities of a device.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    udata,
    Device,
    Driver, //
};
use crate::bindings;
use kernel::{
    error::from_result,
    prelude::*,
    str::CString, //
};

/// Atomicity of remote atomic operations.
#[derive(Clone, Copy, Default)]
pub enum AtomicCap {
    /// The device has no atomic operations.
    #[default]
    None,
    /// Atomic with respect to operations of QPs of the same device.
    Hca,
    /// Atomic with respect to all accesses of the memory.
    Global,
}

/// Limits and capabilities of a device: `struct ib_device_attr` without the fields for other kinds
/// of devices.
///
/// # Examples
///
/// ```
/// use crate::rdma::attributes::{AtomicCap, DeviceAttr};
///
/// // A device with PDs but no other objects.
/// let attr = DeviceAttr {
///     max_pd: 1024,
///     max_pkeys: 1,
///     ..DeviceAttr::default()
/// };
/// assert!(matches!(attr.atomic_cap, AtomicCap::None));
/// ```
#[allow(missing_docs)]
#[derive(Default)]
pub struct DeviceAttr {
    /// Version of the firmware, or of the driver of a device that reports none: major, minor,
    /// patch.
    pub fw_ver: [u16; 3],
    /// GUID in network byte order.
    pub sys_image_guid: [u8; 8],
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    /// Bits of the user space ABI, `enum ib_uverbs_device_cap_flags`.
    pub device_cap_flags: u64,
    /// Bits for kernel clients only, `enum ib_kernel_cap_flags`.
    pub kernel_cap_flags: u64,
    /// Maximum size of an MR in bytes.
    pub max_mr_size: u64,
    /// Supported page sizes: bit n for pages of 2ⁿ bytes.
    pub page_size_cap: u64,
    pub max_mr: u32,
    /// Maximum number of memory windows.
    pub max_mw: u32,
    pub max_pd: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    /// Maximum number of SGEs of an RDMA READ.
    pub max_sge_rd: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_qp_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    pub atomic_cap: AtomicCap,
    /// Maximum number of multicast groups.
    pub max_mcast_grp: u32,
    /// Maximum number of QPs that are attached to one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Maximum number of attachments of QPs to multicast groups.
    pub max_total_mcast_qp_attach: u32,
    pub max_ah: u32,
    /// Maximum number of pages of an MR for fast registration.
    pub max_fast_reg_page_list_len: u32,
    /// Maximum number of SRQs.
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    /// Maximum number of completions for which a CQ delays its event; 0 without moderation.
    pub max_cq_moderation_count: u16,
    /// Maximum time for which a CQ delays its event in microseconds; 0 without moderation.
    pub max_cq_moderation_period: u16,
}

impl DeviceAttr {
    /// Bit of `device_cap_flags`: SRQs can be resized.
    pub const SRQ_RESIZE: u64 =
        bindings::ib_uverbs_device_cap_flags_IB_UVERBS_DEVICE_SRQ_RESIZE as u64;

    /// Bit of `kernel_cap_flags`: QPs can be created that do not receive their own multicasts.
    pub const BLOCK_MULTICAST_LOOPBACK: u64 =
        bindings::ib_kernel_cap_flags_IBK_BLOCK_MULTICAST_LOOPBACK as u64;
}

/// # Safety
///
/// Called by the core as `query_device` of a device of `T`: `attr` is writable, `udata` null or
/// valid.
pub(super) unsafe extern "C" fn query<T: Driver>(
    device: *mut bindings::ib_device,
    attr: *mut bindings::ib_device_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: `udata` is null or valid.
        unsafe { udata::expect_none(udata) }?;
        // SAFETY: The core queries devices from their registration on.
        let from = T::query_device(unsafe { Device::from_raw(device) });
        // SAFETY: `attr` is writable; the core has zeroed the structure.
        let to = unsafe { &mut *attr };
        let [major, minor, patch] = from.fw_ver.map(u64::from);
        to.fw_ver = major << 32 | minor << 16 | patch;
        to.sys_image_guid = u64::from_ne_bytes(from.sys_image_guid);
        copy_fields!(from => to; vendor_id, vendor_part_id, hw_ver, device_cap_flags,
            kernel_cap_flags, max_mr_size, page_size_cap, max_mr, max_mw, max_pd, max_qp, max_qp_wr,
            max_send_sge, max_recv_sge, max_sge_rd, max_cq, max_cqe, max_qp_rd_atom,
            max_res_rd_atom, max_qp_init_rd_atom, max_mcast_grp, max_mcast_qp_attach,
            max_total_mcast_qp_attach, max_ah, max_fast_reg_page_list_len, max_srq, max_srq_wr,
            max_srq_sge, max_pkeys, local_ca_ack_delay);
        let cq_caps = &mut to.cq_caps;
        copy_fields!(from => cq_caps; max_cq_moderation_count, max_cq_moderation_period);
        to.atomic_cap = match from.atomic_cap {
            AtomicCap::None => bindings::ib_atomic_cap_IB_ATOMIC_NONE,
            AtomicCap::Hca => bindings::ib_atomic_cap_IB_ATOMIC_HCA,
            AtomicCap::Global => bindings::ib_atomic_cap_IB_ATOMIC_GLOB,
        };
        Ok(0)
    })
}

/// # Safety
///
/// Called by the core as `get_dev_fw_str`: `device` is registered, and `text` has
/// `IB_FW_VERSION_NAME_MAX` bytes.
pub(super) unsafe extern "C" fn firmware_version(
    device: *mut bindings::ib_device,
    text: *mut c_char,
) {
    // SAFETY: `device` is registered; the attributes of a registered device do not change.
    let version = unsafe { (*device).attrs.fw_ver };
    // CAST: The three numbers of the version.
    let part = |shift: u32| (version >> shift) as u16;
    // At most three numbers of five digits. Without memory the text stays empty.
    let version = CString::try_from_fmt(fmt!("{}.{}.{}", part(32), part(16), part(0)));
    if let Ok(version) = version {
        let bytes = version.to_bytes_with_nul();
        const { assert!(bindings::IB_FW_VERSION_NAME_MAX as usize >= "65535.65535.65535\0".len()) };
        // SAFETY: `text` has `IB_FW_VERSION_NAME_MAX` bytes, at least as many as `bytes` by the
        // assertion.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), text.cast(), bytes.len()) };
    }
}
