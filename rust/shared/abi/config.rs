// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The device configuration (RFC, "Device configuration layout").
//!
//! Some fields of the RFC are not aligned. All fields that this project added are aligned (checked
//! at compile time), so a driver can access them by their width (virtio 1.3, 4.1.3.1).

use super::wire::Field;

/// Length of the configuration space in bytes, reserved words included.
pub const CONFIG_SIZE: usize = 640;

/// Offset of [`OwnRingsConfig`], which is valid once
/// [`Feature::RingAddr`](super::feature::Feature::RingAddr) is negotiated.
pub const OWN_RINGS_CONFIG_OFFSET: usize = Config::SIZE;

/// Offset of [`SrqConfig`], which is valid once [`Feature::Srq`](super::feature::Feature::Srq) is
/// negotiated.
pub const SRQ_CONFIG_OFFSET: usize = 160;

/// Offset of [`RateLimitConfig`], which is valid once
/// [`Feature::RateLimit`](super::feature::Feature::RateLimit) is negotiated.
pub const RATE_LIMIT_CONFIG_OFFSET: usize = 176;

/// Offset of [`CqModerationConfig`], which is valid once
/// [`Feature::CqModeration`](super::feature::Feature::CqModeration) is negotiated.
pub const CQ_MODERATION_CONFIG_OFFSET: usize = 192;

/// Offset of [`CounterSetConfig`], which is valid once
/// [`Feature::CounterSets`](super::feature::Feature::CounterSets) is negotiated.
pub const COUNTER_SET_CONFIG_OFFSET: usize = 208;

/// Identifier of the shared memory region with the doorbell pages.
pub const DOORBELL_SHM_ID: u8 = 1;

/// Smallest and largest valid `max_cq` and `max_qp` (RFC, device requirements of the configuration
/// layout).
pub const QUEUE_COUNT_RANGE: core::ops::RangeInclusive<u32> = 1..=16384;

const _: () = assert!(Field::are_aligned(
    OWN_RINGS_CONFIG_OFFSET,
    OwnRingsConfig::FIELDS
));
const _: () = assert!(Field::are_aligned(SRQ_CONFIG_OFFSET, SrqConfig::FIELDS));
const _: () = assert!(Field::are_aligned(
    RATE_LIMIT_CONFIG_OFFSET,
    RateLimitConfig::FIELDS
));
const _: () = assert!(Field::are_aligned(
    CQ_MODERATION_CONFIG_OFFSET,
    CqModerationConfig::FIELDS
));
const _: () = assert!(Field::are_aligned(
    COUNTER_SET_CONFIG_OFFSET,
    CounterSetConfig::FIELDS
));

wire_mask! {
    /// `device_cap_flags` (RFC, `enum ib_device_cap_flags`).
    pub struct DeviceCaps: u64 {
        /// The device counts packets with bad P_Keys.
        BAD_PKEY_CNTR = 1 << 1,
        /// The device counts Q_Key violations.
        BAD_QKEY_CNTR = 1 << 2,
        /// The primary port of a QP can be changed.
        CHANGE_PHY_PORT = 1 << 5,
        /// The port number of an address vector is enforced on UD QPs.
        UD_AV_PORT_ENFORCE = 1 << 6,
        /// `sys_image_guid` is valid.
        SYS_IMAGE_GUID = 1 << 11,
        /// RC QPs generate RNR NAKs.
        RC_RNR_NAK_GEN = 1 << 12,
        /// Memory windows of type 1 are supported.
        MEM_WINDOW = 1 << 17,
        /// Base memory management extensions are supported: REG_MR, LOCAL_INV, SEND_WITH_INV.
        MEM_MGT_EXTENSIONS = 1 << 21,
        /// Multicast loopback can be blocked; with
        /// [`Feature::Multicast`](super::feature::Feature::Multicast).
        BLOCK_MULTICAST_LOOPBACK = 1 << 22,
        /// Memory windows of type 2A are supported: any QP of their PD can use them.
        MEM_WINDOW_TYPE_2A = 1 << 23,
        /// Memory windows of type 2B are supported: only the QP that bound a window can use it.
        MEM_WINDOW_TYPE_2B = 1 << 24,
        /// An MR can map arbitrary scatter lists.
        SG_GAPS_REG = 1 << 32,
        /// FLUSH can make data globally visible.
        FLUSH_GLOBAL = 1 << 38,
        /// FLUSH can make data persistent.
        FLUSH_PERSISTENT = 1 << 39,
        /// Atomic WRITE is supported.
        ATOMIC_WRITE = 1 << 40,
    }
}

wire_enum! {
    /// Scope within which atomic operations are atomic (`atomic_cap`).
    pub enum AtomicCap: u8 {
        /// No atomic operations.
        None = 0,
        /// Atomic between the QPs of this device.
        Hca = 1,
        /// Atomic between this device, the CPUs and other devices.
        Global = 2,
    }
}

wire_struct! {
    /// Device configuration (RFC: `struct virtio_rdma_config`, up to its reserved words). Read-only
    /// for the driver.
    pub struct Config: 128 {
        /// Number of ports.
        0 => phys_port_cnt: u32,
        /// System image GUID: the modified EUI-64 of the port's MAC address, in network byte order.
        4 => sys_image_guid: [u8; 8],
        /// Vendor id, per IEEE.
        12 => vendor_id: u32,
        /// Part id given by the vendor.
        16 => vendor_part_id: u32,
        /// Hardware version.
        20 => hw_ver: u32,
        /// Largest MR, in bytes.
        24 => max_mr_size: u64,
        /// Mask of supported page sizes: bit n stands for 2ⁿ bytes.
        32 => page_size_cap: u64,
        /// Number of QPs, GSI included.
        40 => max_qp: u32,
        /// Maximum number of outstanding work requests of a queue.
        44 => max_qp_wr: u32,
        /// Capabilities.
        48 => device_cap_flags: DeviceCaps,
        /// Maximum number of SGEs of a send work request other than RDMA READ.
        56 => max_send_sge: u32,
        /// Maximum number of SGEs of a receive work request.
        60 => max_recv_sge: u32,
        /// Maximum number of SGEs of an RDMA READ.
        64 => max_sge_rd: u32,
        /// Number of CQs.
        68 => max_cq: u32,
        /// Maximum number of entries of a CQ.
        72 => max_cqe: u32,
        /// Number of MRs.
        76 => max_mr: u32,
        /// Number of PDs.
        80 => max_pd: u32,
        /// Maximum number of RDMA READs and atomic operations outstanding at a QP as responder.
        84 => max_qp_rd_atom: u32,
        /// Maximum number of RDMA READs and atomic operations outstanding at all QPs as responders.
        88 => max_res_rd_atom: u32,
        /// Maximum number of RDMA READs and atomic operations outstanding at a QP as requester.
        92 => max_qp_init_rd_atom: u32,
        /// Scope of atomic operations, [`AtomicCap`].
        96 => atomic_cap: u8,
        /// Number of memory windows.
        97 => max_mw: u32,
        /// Number of multicast groups.
        101 => max_mcast_grp: u32,
        /// Maximum number of QPs attached to one multicast group.
        105 => max_mcast_qp_attach: u32,
        /// Maximum number of QPs attached to multicast groups in total.
        109 => max_total_mcast_qp_attach: u32,
        /// Number of address handles.
        113 => max_ah: u32,
        /// Maximum number of pages of a fast registration.
        117 => max_fast_reg_page_list_len: u32,
        /// Maximum number of pages of a fast registration with protection information.
        121 => max_pi_fast_reg_page_list_len: u32,
        /// Number of partitions.
        125 => max_pkeys: u16,
        /// Local CA ACK delay: 4.096 µs · 2ⁿ (IBTA 9.7.5.1.3).
        127 => local_ca_ack_delay: u8,
    }
}

wire_struct! {
    /// Limits with own rings, at [`OWN_RINGS_CONFIG_OFFSET`]. They replace the fields of the same
    /// name in [`Config`].
    pub struct OwnRingsConfig: 32 {
        /// Number of event queues: virtqueues 1 to n.
        0 => num_event_queues: u32,
        /// Number of QPs, GSI included.
        4 => max_qp: u32,
        /// Maximum number of outstanding work requests of a queue.
        8 => max_qp_wr: u32,
        /// Number of CQs.
        12 => max_cq: u32,
        /// Maximum number of entries of a CQ.
        16 => max_cqe: u32,
        /// Largest inline payload of a send work request, in bytes.
        20 => max_inline_data: u32,
        /// Number of doorbell pages in shared memory region [`DOORBELL_SHM_ID`], including page 0.
        24 => doorbell_pages: u32,
        /// The distance between doorbell pages is 2ⁿ bytes, with n in
        /// [`DOORBELL_SHIFT_RANGE`](super::ring::DOORBELL_SHIFT_RANGE).
        28 => doorbell_shift: u8,
        /// Reserved, zero.
        29 => reserved: [u8; 3],
    }
}

wire_struct! {
    /// Limits of shared receive queues, at [`SRQ_CONFIG_OFFSET`].
    pub struct SrqConfig: 12 {
        /// Number of SRQs.
        0 => max_srq: u32,
        /// Maximum number of outstanding work requests of an SRQ.
        4 => max_srq_wr: u32,
        /// Maximum number of SGEs of a receive work request of an SRQ.
        8 => max_srq_sge: u32,
    }
}

wire_mask! {
    /// A set of QP types: bit n stands for type n.
    pub struct QpTypes: u32 {
        /// Reliable connection.
        RC = 1 << 2,
        /// Unreliable connection.
        UC = 1 << 3,
        /// Unreliable datagram.
        UD = 1 << 4,
    }
}

wire_struct! {
    /// Ranges for rate limits, at [`RATE_LIMIT_CONFIG_OFFSET`].
    pub struct RateLimitConfig: 16 {
        /// Smallest rate in kb/s, at least 1.
        0 => min_rate: u32,
        /// Largest rate in kb/s.
        4 => max_rate: u32,
        /// Largest burst in bytes.
        8 => max_burst_size: u32,
        /// Types of QPs that can have a rate limit.
        12 => qp_types: QpTypes,
    }
}

wire_struct! {
    /// Limits of the moderation of CQs, at [`CQ_MODERATION_CONFIG_OFFSET`].
    pub struct CqModerationConfig: 8 {
        /// Largest `count` of [`CmdModifyCq`](super::ctrl::CmdModifyCq), at least 1.
        0 => max_count: u32,
        /// Largest `period` of [`CmdModifyCq`](super::ctrl::CmdModifyCq) in microseconds, at least
        /// 1.
        4 => max_period: u32,
    }
}

wire_struct! {
    /// Limit of counter sets, at [`COUNTER_SET_CONFIG_OFFSET`].
    pub struct CounterSetConfig: 4 {
        /// Number of counter sets, at least 1.
        0 => max_counter_sets: u32,
    }
}

/// Modified EUI-64 of a MAC address (RFC 4291, appendix A), as used for `sys_image_guid`.
pub const fn eui64_from_mac(mac: [u8; 6]) -> [u8; 8] {
    [
        mac[0] ^ 2,
        mac[1],
        mac[2],
        0xff,
        0xfe,
        mac[3],
        mac[4],
        mac[5],
    ]
}

/// The MAC address from which the modified EUI-64 `guid` was made. `None` if it was not made from a
/// MAC address.
pub const fn mac_from_eui64(guid: [u8; 8]) -> Option<[u8; 6]> {
    match guid {
        [a, b, c, 0xff, 0xfe, d, e, f] => Some([a ^ 2, b, c, d, e, f]),
        _ => None,
    }
}
