// SPDX-License-Identifier: GPL-2.0

//! What the device can do: its configuration, read once and checked.

use crate::{
    abi::{
        config::{
            Config,
            DeviceCaps,
            OwnRingsConfig,
            RateLimitConfig,
            SrqConfig,
            CONFIG_SIZE,
            F_ATOMIC_WRITE,
            F_COUNTERS,
            F_FLUSH,
            F_GID_VLAN,
            F_MEM_WINDOWS,
            F_MR_PAGES,
            F_MULTICAST,
            F_PEERS,
            F_RATE_LIMIT,
            F_REG_PAGES,
            F_RESIZE_CQ,
            F_SRQ,
            OWN_RINGS_CONFIG_OFFSET,
            QUEUE_COUNT_RANGE,
            RATE_LIMIT_CONFIG_OFFSET,
            SRQ_CONFIG_OFFSET, //
        },
        ring::SLOTS_RANGE, //
    },
    virtio::{
        self,
        Feature, //
    },
};
use kernel::{
    device::Bound,
    prelude::*,
    sizes::SZ_4K, //
};

/// MRs of processes have pages of any supported size, and lists of two levels.
pub(crate) const MR_PAGES: Feature = Feature::device_type(F_MR_PAGES);

/// REG_MR brings the pages of an MR along.
pub(crate) const REG_PAGES: Feature = Feature::device_type(F_REG_PAGES);

/// The device is told of the VLAN of an address.
pub(crate) const GID_VLAN: Feature = Feature::device_type(F_GID_VLAN);

/// There are shared receive queues. Needs own rings.
pub(crate) const SRQ: Feature = Feature::device_type(F_SRQ);

/// CQs move to other rings. Needs own rings.
pub(crate) const RESIZE_CQ: Feature = Feature::device_type(F_RESIZE_CQ);

/// There are memory windows.
pub(crate) const MEM_WINDOWS: Feature = Feature::device_type(F_MEM_WINDOWS);

/// There are atomic WRITEs.
pub(crate) const ATOMIC_WRITE: Feature = Feature::device_type(F_ATOMIC_WRITE);

/// There are FLUSHes.
pub(crate) const FLUSH: Feature = Feature::device_type(F_FLUSH);
/// QPs of datagrams may be attached to multicast groups.
pub(crate) const MULTICAST: Feature = Feature::device_type(F_MULTICAST);

/// What QPs send can be limited to a rate.
pub(crate) const RATE_LIMIT: Feature = Feature::device_type(F_RATE_LIMIT);

/// The device counts what its port does.
pub(crate) const COUNTERS: Feature = Feature::device_type(F_COUNTERS);

/// The memory of an MR can be taken back.
pub(crate) const PEERS: Feature = Feature::device_type(F_PEERS);

/// Greatest inline payload of kernel clients where the configuration has no word about it.
const TRANSPORT_MAX_INLINE: u32 = 256;

/// How many queues there are, and how long they may be.
#[derive(Clone, Copy)]
pub(crate) struct QueueLimits {
    /// QPs, the GSI QP included.
    pub(crate) max_qp: u32,
    /// Outstanding work requests of a queue.
    pub(crate) max_qp_wr: u32,
    /// CQs.
    pub(crate) max_cq: u32,
    /// Entries of a CQ.
    pub(crate) max_cqe: u32,
    /// Inline payload of a send work request, in bytes.
    pub(crate) max_inline_data: u32,
}

/// What only own rings have.
#[derive(Clone, Copy)]
pub(crate) struct OwnRingsLimits {
    /// Event queues.
    pub(crate) num_event_queues: u32,
    /// Doorbell pages, page 0 included.
    pub(crate) doorbell_pages: u32,
}

/// The configuration of a device.
///
/// # Invariants
///
/// - There is one port, and 4 KiB is a supported page size.
/// - The limits of `queues`, `own_rings` and `srq` are within what the ABI allows for, and not zero.
pub(crate) struct Limits {
    /// The RFC's part; where `queues` has a field of the same name, that one holds.
    pub(crate) config: Config,
    /// Queues.
    pub(crate) queues: QueueLimits,
    /// Own rings, if they were negotiated; else queues are virtqueues of the transport.
    pub(crate) own_rings: Option<OwnRingsLimits>,
    /// SRQs, if [`SRQ`] was negotiated.
    pub(crate) srq: Option<SrqConfig>,
    /// Whether [`RESIZE_CQ`] was negotiated.
    pub(crate) resize_cq: bool,
    /// Whether [`MR_PAGES`] was negotiated.
    pub(crate) mr_pages: bool,
    /// Whether [`REG_PAGES`] was negotiated.
    pub(crate) reg_pages: bool,
    /// Whether [`GID_VLAN`] was negotiated.
    pub(crate) gid_vlan: bool,
    /// Whether [`MEM_WINDOWS`] was negotiated.
    mem_windows: bool,
    /// Whether [`ATOMIC_WRITE`] was negotiated.
    atomic_write: bool,
    /// Whether [`FLUSH`] was negotiated.
    flush: bool,
    /// Whether [`MULTICAST`] was negotiated.
    pub(crate) multicast: bool,
    /// Which rate limits QPs can have, if [`RATE_LIMIT`] was negotiated.
    pub(crate) rate_limits: Option<RateLimitConfig>,
    /// Whether [`COUNTERS`] was negotiated.
    pub(crate) counters: bool,
    /// Whether [`PEERS`] was negotiated.
    pub(crate) peers: bool,
}

impl Limits {
    /// Reads the configuration.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] for one that contradicts the specification, which is logged, and those of
    /// [`read_config`](virtio::Device::read_config).
    pub(crate) fn read(dev: &virtio::Device<Bound>, has_own_rings: bool) -> Result<Self> {
        const _: () = assert!(OWN_RINGS_CONFIG_OFFSET + OwnRingsConfig::SIZE <= CONFIG_SIZE);
        const _: () = assert!(SRQ_CONFIG_OFFSET + SrqConfig::SIZE <= CONFIG_SIZE);

        let read = |offset, to: &mut [u8]| {
            dev.read_config(offset, to).inspect_err(|error| {
                dev_err!(dev.as_ref(), "cannot read the configuration: {:?}\n", error)
            })
        };
        let mut raw = [0; Config::SIZE];
        read(0, &mut raw)?;
        let config = Config::from_bytes(&raw);
        let rings = if has_own_rings {
            let mut raw = [0; OwnRingsConfig::SIZE];
            read(OWN_RINGS_CONFIG_OFFSET, &mut raw)?;
            Some(OwnRingsConfig::from_bytes(&raw))
        } else {
            None
        };
        let srq = if has_own_rings && dev.has_feature(SRQ) {
            let mut raw = [0; SrqConfig::SIZE];
            read(SRQ_CONFIG_OFFSET, &mut raw)?;
            Some(SrqConfig::from_bytes(&raw))
        } else {
            None
        };
        let rate_limits = if dev.has_feature(RATE_LIMIT) {
            let mut raw = [0; RateLimitConfig::SIZE];
            read(RATE_LIMIT_CONFIG_OFFSET, &mut raw)?;
            Some(RateLimitConfig::from_bytes(&raw))
        } else {
            None
        };
        let queues = match &rings {
            Some(rings) => QueueLimits {
                max_qp: rings.max_qp,
                max_qp_wr: rings.max_qp_wr,
                max_cq: rings.max_cq,
                max_cqe: rings.max_cqe,
                max_inline_data: rings.max_inline_data,
            },
            None => QueueLimits {
                max_qp: config.max_qp,
                max_qp_wr: config.max_qp_wr,
                max_cq: config.max_cq,
                max_cqe: config.max_cqe,
                max_inline_data: TRANSPORT_MAX_INLINE,
            },
        };
        let own_rings = rings.map(|rings| OwnRingsLimits {
            // More than one a CPU would only take memory and interrupt vectors.
            num_event_queues: rings.num_event_queues.min(kernel::cpu::nr_cpu_ids().max(1)),
            doorbell_pages: rings.doorbell_pages,
        });
        // INVARIANT: Checked below.
        let limits = Self {
            config,
            queues,
            own_rings,
            srq,
            resize_cq: has_own_rings && dev.has_feature(RESIZE_CQ),
            mr_pages: dev.has_feature(MR_PAGES),
            reg_pages: dev.has_feature(REG_PAGES),
            gid_vlan: dev.has_feature(GID_VLAN),
            mem_windows: dev.has_feature(MEM_WINDOWS),
            atomic_write: dev.has_feature(ATOMIC_WRITE),
            flush: dev.has_feature(FLUSH),
            multicast: dev.has_feature(MULTICAST),
            rate_limits,
            counters: dev.has_feature(COUNTERS),
            peers: dev.has_feature(PEERS),
        };
        if let Err(field) = limits.check() {
            dev_err!(dev.as_ref(), "invalid configuration: {}\n", field);
            return Err(EINVAL);
        }
        Ok(limits)
    }

    /// Whether kernel clients can register MRs by work requests. Without [`REG_PAGES`], mapping an MR would take a command,
    /// and it may not wait for one.
    pub(crate) fn has_fast_registration(&self) -> bool {
        self.reg_pages
            && self
                .config
                .device_cap_flags
                .contains(DeviceCaps::MEM_MGT_EXTENSIONS)
    }

    /// Whether processes have memory windows. Where they post through the core, nobody can bind one: it has no such work
    /// request.
    pub(crate) fn has_memory_windows(&self) -> bool {
        self.mem_windows && self.own_rings.is_some()
    }

    /// Whether processes have atomic WRITEs, which the core has no way to post.
    pub(crate) fn has_atomic_write(&self) -> bool {
        self.atomic_write && self.own_rings.is_some()
    }

    /// Whether processes have FLUSHes, which the core has no way to post.
    pub(crate) fn has_flush(&self) -> bool {
        self.flush && self.own_rings.is_some()
    }

    /// Names the first field that is out of range.
    fn check(&self) -> Result<(), &'static str> {
        let Self {
            config,
            queues,
            own_rings,
            srq,
            rate_limits,
            ..
        } = self;
        let slots = 1..=*SLOTS_RANGE.end();
        let conditions = [
            (config.phys_port_cnt == 1, "phys_port_cnt is not 1"),
            (
                config.page_size_cap & SZ_4K as u64 != 0,
                "page_size_cap lacks 4096",
            ),
            (config.max_pd != 0, "max_pd"),
            (config.max_mr != 0, "max_mr"),
            (config.max_mr_size >= SZ_4K as u64, "max_mr_size"),
            (config.max_send_sge != 0, "max_send_sge"),
            (config.max_recv_sge != 0, "max_recv_sge"),
            (
                own_rings.is_none_or(|own| own.num_event_queues != 0),
                "num_event_queues",
            ),
            (QUEUE_COUNT_RANGE.contains(&queues.max_qp), "max_qp"),
            (QUEUE_COUNT_RANGE.contains(&queues.max_cq), "max_cq"),
            (slots.contains(&queues.max_qp_wr), "max_qp_wr"),
            (slots.contains(&queues.max_cqe), "max_cqe"),
            (
                srq.is_none_or(|srq| QUEUE_COUNT_RANGE.contains(&srq.max_srq)),
                "max_srq",
            ),
            (
                srq.is_none_or(|srq| slots.contains(&srq.max_srq_wr)),
                "max_srq_wr",
            ),
            (srq.is_none_or(|srq| srq.max_srq_sge != 0), "max_srq_sge"),
            (
                own_rings.is_none_or(|own| own.doorbell_pages != 0),
                "doorbell_pages",
            ),
            (
                rate_limits.is_none_or(|limits| (1..=limits.max_rate).contains(&limits.min_rate)),
                "min_rate, max_rate",
            ),
        ];
        match conditions.into_iter().find(|(holds, _)| !holds) {
            Some((_, field)) => Err(field),
            None => Ok(()),
        }
    }
}
