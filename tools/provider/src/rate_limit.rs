// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Rate limits of QPs.

use std::mem::offset_of;
use std::mem::size_of;
use std::mem::size_of_val;

use libc::c_int;
use virtio_rdma_abi::config::RateLimitConfig;
use virtio_rdma_abi::uverbs::ModifyQpReq;

use crate::driver_data::UverbsCommand;
use crate::ffi;
use crate::ffi::Zeroed;

/// The extended MODIFY_QP command.
type ModifyQp = UverbsCommand<ffi::ibv_modify_qp_ex, ModifyQpReq>;

/// `modify_qp` with a rate limit among the attributes. `shape` has the burst size and the typical
/// packet size.
///
/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe fn modify_qp(
    qp: *mut ffi::ibv_qp,
    attr: *mut ffi::ibv_qp_attr,
    mask: c_int,
    shape: ModifyQpReq,
) -> c_int {
    let mut command = ModifyQp::new(&shape);
    let mut response = ffi::ib_uverbs_ex_modify_qp_resp::zeroed();
    // SAFETY: the caller passes a QP and attributes; command and response are as long as stated.
    unsafe {
        ffi::ibv_cmd_modify_qp_ex(
            qp,
            attr,
            mask,
            &mut command.core,
            ModifyQp::SIZE,
            &mut response,
            size_of_val(&response),
        )
    }
}

/// `modify_qp_rate_limit`. `EINVAL` for unknown bits in `comp_mask`, for rates and bursts out of
/// the device's range, and for QPs in a state in which they do not send; `EOPNOTSUPP` if the device
/// has no rate limits.
///
/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ffi::ibv_qp,
    attr: *mut ffi::ibv_qp_rate_limit_attr,
) -> c_int {
    // SAFETY: the caller passes valid attributes.
    let attr = unsafe { &*attr };
    if attr.comp_mask != 0 {
        return libc::EINVAL;
    }
    let mut rate = ffi::ibv_qp_attr {
        rate_limit: attr.rate_limit,
        ..Zeroed::zeroed()
    };
    let shape = ModifyQpReq {
        max_burst_size: attr.max_burst_sz,
        typical_packet_size: attr.typical_pkt_sz,
        reserved: [0; 2],
    };
    // SAFETY: the caller passes a QP of this provider.
    unsafe { modify_qp(qp, &mut rate, ffi::IBV_QP_RATE_LIMIT as c_int, shape) }
}

/// Reports the rate limits in the attributes of the device, if the structure is long enough.
///
/// # Safety
///
/// `attr` is valid for `attr_size` bytes.
pub unsafe fn report(
    limits: &RateLimitConfig,
    attr: *mut ffi::ibv_device_attr_ex,
    attr_size: usize,
) {
    let end = offset_of!(ffi::ibv_device_attr_ex, packet_pacing_caps)
        + size_of::<ffi::ibv_packet_pacing_caps>();
    if attr_size < end {
        return;
    }
    // SAFETY: the field is within the caller's attributes.
    unsafe {
        (*attr).packet_pacing_caps = ffi::ibv_packet_pacing_caps {
            qp_rate_limit_min: limits.min_rate,
            qp_rate_limit_max: limits.max_rate,
            // The bits are those of `enum ibv_qp_type`.
            supported_qpts: limits.qp_types.0,
        };
    }
}

#[cfg(test)]
mod tests {
    use virtio_rdma_abi::config::QpTypes;

    use super::*;

    // abi: R-845
    #[test]
    fn capabilities_are_told_where_there_is_room() {
        let limits = RateLimitConfig {
            min_rate: 100,
            max_rate: 1_000_000,
            max_burst_size: 4096,
            qp_types: QpTypes::RC | QpTypes::UD,
        };
        let before = offset_of!(ffi::ibv_device_attr_ex, packet_pacing_caps);
        for (size, max) in [
            (size_of::<ffi::ibv_device_attr_ex>(), 1_000_000),
            (before, 0),
        ] {
            // SAFETY: all-zero bytes are valid attributes, and no more than these are written.
            let attr = unsafe {
                let mut attr: ffi::ibv_device_attr_ex = std::mem::zeroed();
                report(&limits, &mut attr, size);
                attr
            };
            assert_eq!(attr.packet_pacing_caps.qp_rate_limit_max, max);
            let types = attr.packet_pacing_caps.supported_qpts;
            assert_eq!(types & (1 << ffi::IBV_QPT_RC) != 0, max != 0);
            assert_eq!(types & (1 << ffi::IBV_QPT_UC), 0);
        }
    }

    #[test]
    fn an_extension_that_is_not_known_is_refused() {
        let mut attr = ffi::ibv_qp_rate_limit_attr {
            rate_limit: 1,
            max_burst_sz: 0,
            typical_pkt_sz: 0,
            comp_mask: 1,
        };
        // SAFETY: the QP is not accessed.
        let status = unsafe { modify_qp_rate_limit(std::ptr::null_mut(), &mut attr) };
        assert_eq!(status, libc::EINVAL);
    }
}
