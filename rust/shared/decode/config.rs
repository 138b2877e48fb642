// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The configuration of a device: limits that depend on features, checked and lowered.

use super::abi::config::{
    AtomicCap, Config, CqModerationConfig, DeviceCaps, OwnRingsConfig, RateLimitConfig, SrqConfig,
    CONFIG_SIZE, CQ_MODERATION_CONFIG_OFFSET, OWN_RINGS_CONFIG_OFFSET, QUEUE_COUNT_RANGE,
    RATE_LIMIT_CONFIG_OFFSET, SRQ_CONFIG_OFFSET,
};
use super::abi::feature::{Feature, Features};
use super::abi::ring::{CQ_SLOTS, DOORBELL_SHIFT_RANGE, WORK_SLOTS};
use super::abi::wire::Field;
use core::ops::Range;

const _: () = assert!(OWN_RINGS_CONFIG_OFFSET + OwnRingsConfig::SIZE <= CONFIG_SIZE);
const _: () = assert!(SRQ_CONFIG_OFFSET + SrqConfig::SIZE <= CONFIG_SIZE);
const _: () = assert!(CQ_MODERATION_CONFIG_OFFSET + CqModerationConfig::SIZE <= CONFIG_SIZE);
const _: () = assert!(RATE_LIMIT_CONFIG_OFFSET + RateLimitConfig::SIZE <= CONFIG_SIZE);

/// Bytes of the smallest page size. All devices must support it.
const PAGE: u64 = 4096;

/// Largest inline payload in bytes in virtqueue mode, whose configuration has no field for it.
const VIRTQUEUE_MODE_MAX_INLINE: u32 = 256;

/// Maximum number of virtqueues in virtqueue mode, including the control queue. Each virtqueue
/// costs memory, and some have their own interrupt vector.
const MAX_VIRTQUEUES: u32 = 1024;

/// Features that only processes with own rings can use: ib_core has no verbs to post such work
/// requests.
const POSTED_BY_PROGRAMS: Features =
    Features::of(&[Feature::MemWindows, Feature::AtomicWrite, Feature::Flush]);

/// Numbers of queues and their lengths.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Number of QPs, including the GSI QP.
    pub max_qp: u32,
    /// Maximum number of outstanding work requests of a send or receive queue.
    pub max_qp_wr: u32,
    /// Number of CQs.
    pub max_cq: u32,
    /// Maximum number of entries of a CQ.
    pub max_cqe: u32,
    /// Largest inline payload of a send work request, in bytes.
    pub max_inline_data: u32,
}

/// Limits that exist only with own rings.
#[derive(Clone, Copy, Debug)]
pub struct OwnRingsLimits {
    /// Number of event queues.
    pub num_event_queues: u32,
    /// Number of doorbell pages, including page 0.
    pub doorbell_pages: u32,
    /// The distance between doorbell pages is 2ⁿ bytes.
    pub doorbell_shift: u8,
}

/// Properties of the guest's machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Number of CPUs, which bounds the number of event queues.
    pub cpus: u32,
    /// Page size in bytes: the smallest unit that a process can map.
    pub page_size: u64,
}

/// The reason why a configuration can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// The configuration violates the specification. Names the first field that is out of range.
    Invalid(&'static str),
    /// This number of CQs leaves no virtqueues for QPs.
    TooManyCqs(u32),
    /// The distance of doorbell pages in bytes, which is less than a page of the machine. A process
    /// would map doorbells of other processes together with its own.
    NarrowDoorbells(u64),
}

/// The features that the driver uses: the features whose requirements are met. In virtqueue mode,
/// features that only processes with own rings can use are excluded.
fn in_use(features: Features) -> Features {
    match features.has(Feature::RingAddr) {
        true => features.in_force(),
        false => features.in_force().without(POSTED_BY_PROGRAMS),
    }
}

/// The ranges of the configuration that the driver reads for a device with these features. They
/// exclude the parts of features that are not in use. Each access is 1 or 4 bytes long and aligned.
///
/// A field is read by accesses of its width, a 64-bit field as two halves (virtio 1.3, 4.1.3.1).
/// The unaligned fields of the RFC are read byte by byte.
pub fn accesses(features: Features) -> impl Iterator<Item = Range<usize>> + Clone {
    let features = in_use(features);
    let parts = [
        (None, 0, Config::FIELDS),
        (
            Some(Feature::RingAddr),
            OWN_RINGS_CONFIG_OFFSET,
            OwnRingsConfig::FIELDS,
        ),
        (Some(Feature::Srq), SRQ_CONFIG_OFFSET, SrqConfig::FIELDS),
        (
            Some(Feature::RateLimit),
            RATE_LIMIT_CONFIG_OFFSET,
            RateLimitConfig::FIELDS,
        ),
        (
            Some(Feature::CqModeration),
            CQ_MODERATION_CONFIG_OFFSET,
            CqModerationConfig::FIELDS,
        ),
    ];
    parts
        .into_iter()
        .filter(move |(feature, ..)| feature.is_none_or(|feature| features.has(feature)))
        .flat_map(|(_, start, fields)| fields.iter().map(move |field| (start, field)))
        .flat_map(|(start, field)| {
            let start = start + field.offset;
            let shift = access_shift(start, field);
            (0..field.size >> shift).map(move |index| {
                let at = start + (index << shift);
                at..at + (1 << shift)
            })
        })
}

/// Log2 of the access size for a field at offset `start`. No 16-bit field is aligned.
fn access_shift(start: usize, field: &Field) -> u32 {
    // `sys_image_guid` is bytes here, but a 64-bit integer in the RFC.
    if start % 4 == 0 && field.size % 4 == 0 {
        2
    } else {
        0
    }
}

/// The limits of a device.
///
/// # Invariants
///
/// - There is one port, and 4 KiB is a supported page size.
/// - The limits in `queues`, `own_rings` and `srq` are within the ranges of the ABI, and not zero.
/// - The numbers of SGEs and of outstanding READs are not zero.
/// - In virtqueue mode, the queues use at most [`MAX_VIRTQUEUES`] virtqueues.
/// - The distance of doorbell pages is at least a page of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The RFC's part of the configuration. Fields that `queues` has too are valid in `queues`
    /// only.
    pub config: Config,
    /// Numbers and lengths of queues.
    pub queues: QueueLimits,
    /// Limits of own rings; `None` in virtqueue mode, where queues are virtqueues.
    pub own_rings: Option<OwnRingsLimits>,
    /// Limits of SRQs, which need own rings.
    pub srq: Option<SrqConfig>,
    /// Ranges for rate limits.
    pub rate_limits: Option<RateLimitConfig>,
    /// Limits of the moderation of CQs, which needs own rings.
    pub cq_moderation: Option<CqModerationConfig>,
    features: Features,
}

impl Limits {
    /// Whether the driver uses a feature. In virtqueue mode processes post through ib_core, so
    /// features for work requests that only processes post are not used.
    pub fn has(&self, feature: Feature) -> bool {
        self.features.has(feature)
    }

    /// The features that the driver uses.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Decodes and checks the configuration. Bytes outside of [`accesses`] are ignored.
    ///
    /// # Errors
    ///
    /// Fails if the configuration violates the specification, has no virtqueues for QPs, or if its
    /// doorbell pages are closer together than the machine's pages.
    pub fn decode(
        space: &[u8; CONFIG_SIZE],
        features: Features,
        machine: Machine,
    ) -> Result<Self, ConfigError> {
        let config = part(space, 0, Config::from_bytes);
        let has_own_rings = features.has(Feature::RingAddr);
        let features = in_use(features);
        let rings =
            has_own_rings.then(|| part(space, OWN_RINGS_CONFIG_OFFSET, OwnRingsConfig::from_bytes));
        let srq = features
            .has(Feature::Srq)
            .then(|| part(space, SRQ_CONFIG_OFFSET, SrqConfig::from_bytes));
        let rate_limits = features
            .has(Feature::RateLimit)
            .then(|| part(space, RATE_LIMIT_CONFIG_OFFSET, RateLimitConfig::from_bytes));
        let cq_moderation = features.has(Feature::CqModeration).then(|| {
            part(
                space,
                CQ_MODERATION_CONFIG_OFFSET,
                CqModerationConfig::from_bytes,
            )
        });

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
                max_inline_data: VIRTQUEUE_MODE_MAX_INLINE,
            },
        };
        let own_rings = rings.map(|rings| OwnRingsLimits {
            // More event queues than CPUs would only cost memory and interrupt vectors.
            num_event_queues: rings.num_event_queues.min(machine.cpus.max(1)),
            doorbell_pages: rings.doorbell_pages,
            doorbell_shift: rings.doorbell_shift,
        });
        // INVARIANT: Checked below.
        let mut limits = Self {
            config: Config {
                // A QP has `max_send_sge` SGEs in each send work request, READs included. Kernel
                // clients create QPs for the larger one of the two limits.
                max_sge_rd: config.max_sge_rd.min(config.max_send_sge),
                ..config
            },
            queues,
            own_rings,
            srq,
            rate_limits,
            cq_moderation,
            features,
        };
        limits.check().map_err(ConfigError::Invalid)?;
        if let Some(own_rings) = &limits.own_rings {
            let stride = 1 << own_rings.doorbell_shift;
            if stride < machine.page_size {
                return Err(ConfigError::NarrowDoorbells(stride));
            }
        }
        if !has_own_rings {
            let QueueLimits { max_cq, max_qp, .. } = limits.queues;
            limits.queues.max_qp = pairs(max_cq, max_qp).ok_or(ConfigError::TooManyCqs(max_cq))?;
        }
        Ok(limits)
    }

    /// Returns the first field that is out of range, as an error.
    fn check(&self) -> Result<(), &'static str> {
        let Self {
            config,
            queues,
            own_rings,
            srq,
            rate_limits,
            cq_moderation,
            ..
        } = self;
        let slots = 1..=*WORK_SLOTS.end();
        let cqe = 1..=*CQ_SLOTS.end();
        let conditions = [
            (config.phys_port_cnt == 1, "phys_port_cnt is not 1"),
            (config.page_size_cap & PAGE != 0, "page_size_cap lacks 4096"),
            (config.max_pd != 0, "max_pd"),
            (config.max_mr != 0, "max_mr"),
            (config.max_mr_size >= PAGE, "max_mr_size"),
            (config.max_send_sge != 0, "max_send_sge"),
            (config.max_recv_sge != 0, "max_recv_sge"),
            // Kernel clients divide by these limits, or wait for resources of which the limits
            // leave none.
            (config.max_sge_rd != 0, "max_sge_rd"),
            (config.max_qp_rd_atom != 0, "max_qp_rd_atom"),
            (config.max_qp_init_rd_atom != 0, "max_qp_init_rd_atom"),
            (
                !self.has_fast_registration() || config.max_fast_reg_page_list_len != 0,
                "max_fast_reg_page_list_len",
            ),
            (
                own_rings.is_none_or(|own| own.num_event_queues != 0),
                "num_event_queues",
            ),
            (QUEUE_COUNT_RANGE.contains(&queues.max_qp), "max_qp"),
            (QUEUE_COUNT_RANGE.contains(&queues.max_cq), "max_cq"),
            (slots.contains(&queues.max_qp_wr), "max_qp_wr"),
            (cqe.contains(&queues.max_cqe), "max_cqe"),
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
                own_rings.is_none_or(|own| DOORBELL_SHIFT_RANGE.contains(&own.doorbell_shift)),
                "doorbell_shift",
            ),
            (
                rate_limits.is_none_or(|limits| (1..=limits.max_rate).contains(&limits.min_rate)),
                "min_rate, max_rate",
            ),
            (
                cq_moderation.is_none_or(|limits| limits.max_count != 0 && limits.max_period != 0),
                "max_count, max_period",
            ),
        ];
        match conditions.into_iter().find(|(holds, _)| !holds) {
            Some((_, field)) => Err(field),
            None => Ok(()),
        }
    }

    /// The device's capabilities in the bits of `enum ib_uverbs_device_cap_flags`, for user space.
    ///
    /// Capabilities for which the driver has no verb are masked, for example `SG_GAPS_REG`: a page
    /// list can't describe memory with gaps. `BLOCK_MULTICAST_LOOPBACK` is masked since
    /// user space has no bit for it; see [`blocks_loopback`](Self::blocks_loopback).
    pub fn capabilities(&self) -> DeviceCaps {
        let of_features = self.features.capabilities();
        let known = DeviceCaps::BAD_PKEY_CNTR
            | DeviceCaps::BAD_QKEY_CNTR
            | DeviceCaps::CHANGE_PHY_PORT
            | DeviceCaps::UD_AV_PORT_ENFORCE
            | DeviceCaps::SYS_IMAGE_GUID
            | DeviceCaps::RC_RNR_NAK_GEN
            | of_features.without(DeviceCaps::BLOCK_MULTICAST_LOOPBACK);
        DeviceCaps(self.config.device_cap_flags.0 & known.0)
    }

    /// Atomicity of atomic operations. An unknown value counts as none.
    pub fn atomic_cap(&self) -> AtomicCap {
        AtomicCap::try_from(self.config.atomic_cap).unwrap_or(AtomicCap::None)
    }

    /// Size of the largest MR in bytes. `flat` is the number of bytes that a one-level page list
    /// can describe.
    pub fn max_mr_size(&self, flat: u64) -> u64 {
        match self.has(Feature::MrPages) {
            true => self.config.max_mr_size,
            false => self.config.max_mr_size.min(flat),
        }
    }

    /// Page sizes that a process's MR may have: bit n stands for 2ⁿ bytes. Sizes below 4 KiB are
    /// masked.
    pub fn mr_page_sizes(&self) -> u64 {
        match self.has(Feature::MrPages) {
            true => self.config.page_size_cap & !(PAGE - 1),
            false => PAGE,
        }
    }

    /// Maximum number of pages of an MR for fast registration, at most `most`; 0 without fast
    /// registration.
    pub fn max_fast_reg_pages(&self, most: u32) -> u32 {
        match self.has_fast_registration() {
            true => self.config.max_fast_reg_page_list_len.min(most),
            false => 0,
        }
    }

    /// Whether UD QPs can be created that do not receive their own multicast datagrams.
    pub fn blocks_loopback(&self) -> bool {
        let flag = DeviceCaps::BLOCK_MULTICAST_LOOPBACK;
        self.has(Feature::Multicast) && self.config.device_cap_flags.contains(flag)
    }

    /// Whether kernel clients can use fast registration. Without [`Feature::RegPages`], mapping an
    /// MR would take a command. Clients map MRs where they must not sleep, so they can't wait for a
    /// command.
    pub fn has_fast_registration(&self) -> bool {
        let flag = DeviceCaps::MEM_MGT_EXTENSIONS;
        self.has(Feature::RegPages) && self.config.device_cap_flags.contains(flag)
    }
}

/// The part of the configuration at `offset`.
fn part<T, const N: usize>(
    space: &[u8; CONFIG_SIZE],
    offset: usize,
    from_bytes: impl FnOnce(&[u8; N]) -> T,
) -> T {
    let mut bytes = [0; N];
    // Always succeeds: assertions above ensure that each part is within the configuration.
    if let Some(from) = space.get(offset..offset + N) {
        bytes.copy_from_slice(from);
    }
    from_bytes(&bytes)
}

/// Number of QPs that remain when `max_cq` CQs have their virtqueues. All CQs of the device count,
/// since virtqueue numbers are fixed.
fn pairs(max_cq: u32, max_qp: u32) -> Option<u32> {
    let left = MAX_VIRTQUEUES.checked_sub(1)?.checked_sub(max_cq)?;
    let pairs = max_qp.min(left / 2);
    (pairs != 0).then_some(pairs)
}
