// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Configuration of an HCA: the features and limits that it offers.

use std::iter;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

use chaos::{Limit, Scenario};
use recorder::{Recorder, Ring};
use roce::rc::MAX_RD_ATOMIC;
use scheduler::PortFlows;
use virtio_rdma_abi::config::{
    eui64_from_mac, AtomicCap, Config, CounterSetConfig, CqModerationConfig, DeviceCaps,
    OwnRingsConfig, QpTypes, RateLimitConfig, SrqConfig, CONFIG_SIZE, COUNTER_SET_CONFIG_OFFSET,
    CQ_MODERATION_CONFIG_OFFSET, OWN_RINGS_CONFIG_OFFSET, RATE_LIMIT_CONFIG_OFFSET,
    SRQ_CONFIG_OFFSET,
};
use virtio_rdma_abi::ib::{Mtu, PortSpeed, PortWidth};
use virtio_rdma_abi::queues::{QueueNumbers, Role};
use virtio_rdma_abi::ring::{CQ_SLOTS, DOORBELL_SHIFT_RANGE};
use virtio_rdma_abi::wire::Wire;

use crate::port_pace::PortRates;

/// Vendor id: virtio's PCI vendor id, since 0 would mean none.
const VENDOR_ID: u32 = 0x1af4;
/// Part id and hardware version of this implementation.
const PART_ID: u32 = 1;
const HW_VERSION: u32 = 1;
/// Page shift of the RFC's page lists, in which all pages have 4 KiB.
pub(crate) const MR_PAGE_SHIFT: u8 = 12;
/// Page shifts that page lists with a page size may have: 4 KiB to 1 GiB.
pub(crate) const MR_PAGE_SHIFTS: RangeInclusive<u8> = MR_PAGE_SHIFT..=30;
/// Local CA ACK delay: 4.096 µs · 2¹⁵, about 134 ms. Long, since workers share CPUs with the
/// VMs.
const ACK_DELAY: u8 = 15;
/// Maximum number of QPs, and of CQs, in virtqueue mode, in which each queue takes a virtqueue.
const VIRTQUEUE_MODE_QUEUES: u32 = 64;
/// Maximum number of entries of an SQ or RQ, and of a CQ, in virtqueue mode.
const VIRTQUEUE_MODE_WR: u32 = 1024;
const VIRTQUEUE_MODE_CQE: u32 = 2048;
/// Largest number of entries of the control queue and of an event queue.
const CONTROL_QUEUE_SIZE: u32 = 256;
const EVENT_QUEUE_SIZE: u32 = 1024;

/// Bytes charged for an object's entries in maps of other objects: users of a CQ or SRQ,
/// timers, waiting events, windows of a QP.
pub(crate) const BOOKKEEPING: usize = 256;

/// Valid rate limits in kb/s. At the lowest one, the longest packet takes a third of a second.
pub(crate) const RATE_LIMITS: RangeInclusive<u32> = 100..=100_000_000;
/// Largest burst of a rate limit in bytes.
pub(crate) const MAX_BURST: u32 = 1 << 20;

/// Number of events that the recorder of a port keeps by default.
pub const EVENTS: usize = 1024;

/// Default time in microseconds for which a worker polls a queue after its last work.
pub const DEFAULT_POLL_MICROSECONDS: u32 = 30;

/// Default limit of the bytes that an HCA may allocate for its VM.
pub const DEFAULT_MEMORY: u64 = 256 << 20;

/// Limits of an HCA. The HCA enforces all of them and reports them to the driver.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Number of QPs, including the GSI QP; at most 16,384.
    pub max_qp: u32,
    /// Maximum number of outstanding work requests of a queue; at most 32,768.
    pub max_qp_wr: u32,
    /// Maximum number of SGEs of a work request.
    pub max_sge: u32,
    /// Largest inline payload in bytes.
    pub max_inline_data: u32,
    /// Number of CQs; at most 16,384.
    pub max_cq: u32,
    /// Maximum number of entries of a CQ; at most 4,194,304.
    pub max_cqe: u32,
    pub max_srq: u32,
    /// Maximum number of outstanding work requests of an SRQ; at most 32,768.
    pub max_srq_wr: u32,
    /// Number of MRs.
    pub max_mr: u32,
    /// Number of memory windows.
    pub max_mw: u32,
    /// Number of pages of all MRs together.
    pub max_mr_pages: u64,
    /// Maximum number of pages of an MR for fast registration.
    pub max_fast_reg_pages: u32,
    /// Number of PDs.
    pub max_pd: u32,
    /// Maximum number of RDMA READs and atomic operations outstanding at a QP, as requester and as
    /// responder.
    pub max_rd_atomic: u8,
    /// Number of entries of the GID table; at most 256.
    pub max_gids: u16,
    /// Number of multicast groups; 0 for an HCA without multicast.
    pub max_mcast_grp: u32,
    /// Maximum number of QPs attached to one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Maximum number of QPs attached to multicast groups in total.
    pub max_total_mcast_qp_attach: u32,
    /// Largest number of completions after which a moderated CQ sends its event; at least 1.
    pub max_cq_moderation_count: u32,
    /// Largest delay of the event of a moderated CQ in microseconds; at least 1.
    pub max_cq_moderation_period: u32,
    pub max_counter_sets: u32,
    pub event_queues: u32,
    pub doorbell_pages: u32,
    /// The distance between doorbell pages is 2ⁿ bytes. It must be at least the guest's page
    /// size.
    pub doorbell_shift: u8,
    /// Bytes that the HCA may allocate for its VM. Tables and frames are allocated even beyond
    /// this limit.
    pub memory: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_qp: 16_384,
            max_qp_wr: 32_768,
            max_sge: 32,
            max_inline_data: 1024,
            max_cq: 16_384,
            max_cqe: *CQ_SLOTS.end(),
            max_srq: 16_384,
            max_srq_wr: 32_768,
            max_mr: 65_536,
            max_mw: 65_536,
            max_mr_pages: 1 << 24,
            max_fast_reg_pages: 512,
            max_pd: 16_384,
            max_rd_atomic: MAX_RD_ATOMIC,
            max_gids: 256,
            max_mcast_grp: 1024,
            // This also fits virtqueue mode, which has at most `VIRTQUEUE_MODE_QUEUES` QPs.
            max_mcast_qp_attach: 48,
            max_total_mcast_qp_attach: 8192,
            // The largest values that the verbs can express.
            max_cq_moderation_count: u16::MAX.into(),
            max_cq_moderation_period: u16::MAX.into(),
            max_counter_sets: 1024,
            event_queues: 4,
            doorbell_pages: 4096,
            doorbell_shift: *DOORBELL_SHIFT_RANGE.start(),
            memory: DEFAULT_MEMORY,
        }
    }
}

/// Limits of queues in virtqueue mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VirtqueueModeLimits {
    /// Number of QPs, including the GSI QP.
    pub max_qp: u32,
    /// Maximum number of outstanding work requests of a queue.
    pub max_qp_wr: u32,
    /// Number of CQs.
    pub max_cq: u32,
    /// Maximum number of entries of a CQ.
    pub max_cqe: u32,
}

impl Limits {
    /// The same limits without multicast.
    pub fn without_multicast(self) -> Self {
        Self {
            max_mcast_grp: 0,
            max_mcast_qp_attach: 0,
            max_total_mcast_qp_attach: 0,
            ..self
        }
    }

    pub(crate) fn virtqueue_mode(&self) -> VirtqueueModeLimits {
        VirtqueueModeLimits {
            max_qp: self.max_qp.min(VIRTQUEUE_MODE_QUEUES),
            max_qp_wr: self.max_qp_wr.min(VIRTQUEUE_MODE_WR),
            max_cq: self.max_cq.min(VIRTQUEUE_MODE_QUEUES),
            max_cqe: self.max_cqe.min(VIRTQUEUE_MODE_CQE),
        }
    }

    /// Bytes of the object tables when they are full.
    pub(crate) fn tables(&self) -> u64 {
        /// Bytes for each object: a table slot, an entry in the list of free numbers, and bits in
        /// ready sets.
        const SLOT: u64 = 24;
        /// Additional bytes for each MR: an entry of the MR cache, and the last variant of its key.
        const MR: u64 = 40;
        /// Bytes of a multicast group (two copies exist while the table changes), and of a QP that
        /// is attached to a group.
        const GROUP: u64 = 256;
        const MEMBER: u64 = 8;
        let numbers = [
            self.max_qp,
            self.max_cq,
            self.max_srq,
            self.max_pd,
            self.max_mr,
            self.max_mw,
            self.max_counter_sets,
        ];
        numbers
            .iter()
            .map(|&max| SLOT * u64::from(max))
            .sum::<u64>()
            + MR * u64::from(self.max_mr)
            + GROUP * u64::from(self.max_mcast_grp)
            + MEMBER * u64::from(self.max_total_mcast_qp_attach)
            + PortFlows::FLOW_SIZE as u64 * u64::from(self.max_qp)
    }

    /// Largest size of each virtqueue of the device, for both virtqueue mode and own rings.
    pub fn virtqueue_sizes(&self) -> Vec<u16> {
        let queues = self.virtqueue_mode();
        let numbers = QueueNumbers::new(queues.max_cq);
        let count = numbers.count(queues.max_qp).max(1 + self.event_queues);
        (0..u16::try_from(count).unwrap_or(u16::MAX))
            .map(|number| {
                let entries = match numbers.role(number) {
                    Role::Control => CONTROL_QUEUE_SIZE,
                    Role::Cq(_) => queues.max_cqe,
                    Role::Sq(_) | Role::Rq(_) => queues.max_qp_wr,
                };
                let is_event_queue = (1..=self.event_queues).contains(&number.into());
                let events = if is_event_queue { EVENT_QUEUE_SIZE } else { 0 };
                // Each value is at most 2,048, so the cast can't truncate.
                entries.max(events).next_power_of_two() as u16
            })
            .collect()
    }
}

/// Configuration of a new HCA.
#[derive(Clone, Debug)]
pub struct HcaConfig {
    /// MAC address of the port.
    pub mac: [u8; 6],
    /// Additional MAC addresses at which peers reach the port. The port sends only with `mac`.
    pub more_macs: Vec<[u8; 6]>,
    /// MTU of the port's Ethernet in bytes.
    pub mtu: u32,
    /// IP addresses that the port's GIDs may use, besides the link-local addresses of its MAC
    /// addresses. No other port may use them. If the list is empty, the port may use any address
    /// that does not belong to another port.
    pub addresses: Vec<IpAddr>,
    /// The speed that the port reports. It does not limit traffic.
    pub speed: LinkSpeed,
    pub limits: Limits,
    /// Rate limits, shared by the port's QPs.
    pub rates: PortRates,
    /// The isolation group: data takes the direct path only to HCAs of the same group.
    pub group: u32,
    /// The recorder of the port's events.
    pub recorder: Arc<Recorder>,
    /// Failures on order. The port's name is that of its recorder.
    pub scenario: Scenario,
    /// The atomic operations that the port reports.
    pub atomic_cap: AtomicCap,
}

/// Speed of a link, in the terms of the verbs: number and speed of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpeed {
    pub(crate) width: PortWidth,
    pub(crate) speed: PortSpeed,
}

/// Ethernet speeds in Gb/s, with their lanes as on network devices of these speeds.
const LINK_SPEEDS: [(u32, PortWidth, PortSpeed); 8] = [
    (10, PortWidth::X1, PortSpeed::Qdr),
    (25, PortWidth::X1, PortSpeed::Edr),
    (40, PortWidth::X4, PortSpeed::Qdr),
    (50, PortWidth::X1, PortSpeed::Hdr),
    (100, PortWidth::X4, PortSpeed::Edr),
    (200, PortWidth::X4, PortSpeed::Hdr),
    (400, PortWidth::X4, PortSpeed::Ndr),
    (800, PortWidth::X8, PortSpeed::Ndr),
];

impl LinkSpeed {
    /// The link speed for `gbps` Gb/s, if the verbs can express it.
    pub fn from_gbps(gbps: u32) -> Option<Self> {
        let &(_, width, speed) = LINK_SPEEDS.iter().find(|&&(known, ..)| known == gbps)?;
        Some(Self { width, speed })
    }

    /// The speed in Gb/s.
    pub fn gbps(self) -> u32 {
        let known = LINK_SPEEDS
            .iter()
            .find(|&&(_, width, speed)| Self { width, speed } == self);
        // Each `LinkSpeed` is made from an entry of the table, so 0 is never returned.
        known.map_or(0, |&(gbps, ..)| gbps)
    }

    /// All speeds, in Gb/s.
    pub fn all() -> impl Iterator<Item = u32> {
        LINK_SPEEDS.iter().map(|&(gbps, ..)| gbps)
    }
}

impl Default for LinkSpeed {
    /// 100 Gb/s.
    fn default() -> Self {
        Self {
            width: PortWidth::X4,
            speed: PortSpeed::Edr,
        }
    }
}

impl HcaConfig {
    /// The defaults for a port with this MAC address.
    pub fn new(mac: [u8; 6]) -> Self {
        Self {
            mac,
            more_macs: Vec::new(),
            mtu: 9000,
            addresses: Vec::new(),
            speed: LinkSpeed::default(),
            limits: Limits::default(),
            rates: PortRates::default(),
            group: 0,
            recorder: Arc::new(Recorder::new("", Ring::own(EVENTS), Instant::now())),
            scenario: Scenario::default(),
            atomic_cap: AtomicCap::Global,
        }
    }

    /// Lowers a limit to `most`, if it is higher.
    pub fn lower(&mut self, limit: Limit, most: u32) {
        let limits = &mut self.limits;
        let lowered = match limit {
            Limit::AtomicCap if most == 0 => return self.atomic_cap = AtomicCap::None,
            Limit::AtomicCap => return,
            Limit::MaxRdAtomic => {
                let most = u8::try_from(most).unwrap_or(u8::MAX);
                return limits.max_rd_atomic = limits.max_rd_atomic.min(most);
            }
            Limit::MaxCq => &mut limits.max_cq,
            Limit::MaxCqe => &mut limits.max_cqe,
            Limit::MaxInlineData => &mut limits.max_inline_data,
            Limit::MaxMr => &mut limits.max_mr,
            Limit::MaxPd => &mut limits.max_pd,
            Limit::MaxQp => &mut limits.max_qp,
            Limit::MaxQpWr => &mut limits.max_qp_wr,
            Limit::MaxSge => &mut limits.max_sge,
            Limit::MaxSrq => &mut limits.max_srq,
            Limit::MaxSrqWr => &mut limits.max_srq_wr,
        };
        *lowered = most.min(*lowered);
    }

    /// All MAC addresses of the port.
    pub(crate) fn macs(&self) -> impl Iterator<Item = [u8; 6]> + '_ {
        iter::once(self.mac).chain(self.more_macs.iter().copied())
    }

    /// Largest path MTU whose packets fit the port's Ethernet MTU.
    pub(crate) fn path_mtu(&self) -> Mtu {
        Mtu::within(self.mtu)
    }

    /// Bytes of the largest MR: all pages, of 4 KiB each.
    pub(crate) fn max_mr_size(&self) -> u64 {
        self.limits.max_mr_pages << MR_PAGE_SHIFT
    }

    /// The configuration space.
    pub(crate) fn space(&self) -> [u8; CONFIG_SIZE] {
        let limits = &self.limits;
        let queues = limits.virtqueue_mode();
        let multicast = match limits.max_mcast_grp {
            0 => DeviceCaps::NONE,
            _ => DeviceCaps::BLOCK_MULTICAST_LOOPBACK,
        };
        let base = Config {
            phys_port_cnt: 1,
            sys_image_guid: eui64_from_mac(self.mac),
            vendor_id: VENDOR_ID,
            vendor_part_id: PART_ID,
            hw_ver: HW_VERSION,
            max_mr_size: self.max_mr_size(),
            page_size_cap: MR_PAGE_SHIFTS.map(|shift| 1 << shift).sum(),
            max_qp: queues.max_qp,
            max_qp_wr: queues.max_qp_wr,
            device_cap_flags: DeviceCaps::SYS_IMAGE_GUID
                | DeviceCaps::RC_RNR_NAK_GEN
                | DeviceCaps::BAD_PKEY_CNTR
                | DeviceCaps::BAD_QKEY_CNTR
                | DeviceCaps::UD_AV_PORT_ENFORCE
                | DeviceCaps::MEM_WINDOW
                | DeviceCaps::MEM_MGT_EXTENSIONS
                | DeviceCaps::MEM_WINDOW_TYPE_2B
                | DeviceCaps::FLUSH_GLOBAL
                | DeviceCaps::ATOMIC_WRITE
                | multicast,
            max_send_sge: limits.max_sge,
            max_recv_sge: limits.max_sge,
            max_sge_rd: limits.max_sge,
            max_cq: queues.max_cq,
            max_cqe: queues.max_cqe,
            max_mr: limits.max_mr,
            max_mw: limits.max_mw,
            max_pd: limits.max_pd,
            max_qp_rd_atom: limits.max_rd_atomic.into(),
            max_res_rd_atom: u32::from(limits.max_rd_atomic) * limits.max_qp,
            max_qp_init_rd_atom: limits.max_rd_atomic.into(),
            atomic_cap: self.atomic_cap.value(),
            max_mcast_grp: limits.max_mcast_grp,
            max_mcast_qp_attach: limits.max_mcast_qp_attach,
            max_total_mcast_qp_attach: limits.max_total_mcast_qp_attach,
            // Address handles are not objects of the HCA: report as many as the driver's type
            // can count.
            max_ah: i32::MAX.unsigned_abs(),
            max_fast_reg_page_list_len: limits.max_fast_reg_pages,
            max_pkeys: 1,
            local_ca_ack_delay: ACK_DELAY,
            ..Config::ZERO
        };
        let own = OwnRingsConfig {
            num_event_queues: limits.event_queues,
            max_qp: limits.max_qp,
            max_qp_wr: limits.max_qp_wr,
            max_cq: limits.max_cq,
            max_cqe: limits.max_cqe,
            max_inline_data: limits.max_inline_data,
            doorbell_pages: limits.doorbell_pages,
            doorbell_shift: limits.doorbell_shift,
            reserved: [0; 3],
        };
        let srq = SrqConfig {
            max_srq: limits.max_srq,
            max_srq_wr: limits.max_srq_wr,
            max_srq_sge: limits.max_sge,
        };
        let rate_limits = RateLimitConfig {
            min_rate: *RATE_LIMITS.start(),
            max_rate: *RATE_LIMITS.end(),
            max_burst_size: MAX_BURST,
            qp_types: QpTypes::RC | QpTypes::UC | QpTypes::UD,
        };
        let moderation = CqModerationConfig {
            max_count: limits.max_cq_moderation_count,
            max_period: limits.max_cq_moderation_period,
        };
        let counter_sets = CounterSetConfig {
            max_counter_sets: limits.max_counter_sets,
        };
        let mut space = [0; CONFIG_SIZE];
        base.put(&mut space[..Config::SIZE]);
        own.put(&mut space[OWN_RINGS_CONFIG_OFFSET..][..OwnRingsConfig::SIZE]);
        srq.put(&mut space[SRQ_CONFIG_OFFSET..][..SrqConfig::SIZE]);
        rate_limits.put(&mut space[RATE_LIMIT_CONFIG_OFFSET..][..RateLimitConfig::SIZE]);
        moderation.put(&mut space[CQ_MODERATION_CONFIG_OFFSET..][..CqModerationConfig::SIZE]);
        counter_sets.put(&mut space[COUNTER_SET_CONFIG_OFFSET..][..CounterSetConfig::SIZE]);
        space
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // abi: R-129
    #[test]
    fn path_mtu_follows_ethernet() {
        for (ethernet, mtu) in [
            (9000, Mtu::Mtu4096),
            (4200, Mtu::Mtu4096),
            (1500, Mtu::Mtu1024),
            (576, Mtu::Mtu256),
        ] {
            let config = HcaConfig {
                mtu: ethernet,
                ..HcaConfig::new([2, 0, 0, 0, 0, 1])
            };
            assert_eq!(config.path_mtu(), mtu, "{ethernet}");
        }
    }
}
