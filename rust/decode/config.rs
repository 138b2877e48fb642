// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The configuration of a device: limits that depend on features, checked and lowered.

use super::abi::config::{
    AtomicCap, Config, DeviceCaps, OwnRingsConfig, RateLimitConfig, SrqConfig, CONFIG_SIZE,
    OWN_RINGS_CONFIG_OFFSET, QUEUE_COUNT_RANGE, RATE_LIMIT_CONFIG_OFFSET, SRQ_CONFIG_OFFSET,
};
use super::abi::feature::{Feature, Features};
use super::abi::ring::{CQ_SLOTS, DOORBELL_SHIFT_RANGE, WORK_SLOTS};
use super::abi::wire::Field;
use core::ops::Range;

const _: () = assert!(OWN_RINGS_CONFIG_OFFSET + OwnRingsConfig::SIZE <= CONFIG_SIZE);
const _: () = assert!(SRQ_CONFIG_OFFSET + SrqConfig::SIZE <= CONFIG_SIZE);
const _: () = assert!(RATE_LIMIT_CONFIG_OFFSET + RateLimitConfig::SIZE <= CONFIG_SIZE);

/// Bytes of the smallest page, which each device supports.
const PAGE: u64 = 4096;

/// Greatest inline payload in RFC mode, where the configuration has no field for it.
const RFC_MAX_INLINE: u32 = 256;

/// Virtqueues at most in RFC mode, the control queue included: each costs memory, and some its
/// interrupt vector.
const MAX_VIRTQUEUES: u32 = 1024;

/// Features that only programs on own rings have a use for: the core has no such work requests.
const POSTED_BY_PROGRAMS: Features =
    Features::of(&[Feature::MemWindows, Feature::AtomicWrite, Feature::Flush]);

/// Number of queues and their lengths.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// QPs, the GSI QP included.
    pub max_qp: u32,
    /// Outstanding work requests of a queue.
    pub max_qp_wr: u32,
    /// CQs.
    pub max_cq: u32,
    /// Entries of a CQ.
    pub max_cqe: u32,
    /// Inline payload of a send work request, in bytes.
    pub max_inline_data: u32,
}

/// Limits of own rings alone.
#[derive(Clone, Copy, Debug)]
pub struct OwnRingsLimits {
    /// Event queues.
    pub num_event_queues: u32,
    /// Doorbell pages, page 0 included.
    pub doorbell_pages: u32,
    /// Distance of doorbell pages is 2ⁿ bytes.
    pub doorbell_shift: u8,
}

/// Properties of the machine that the driver runs on.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Number of processors, which bounds the event queues.
    pub cpus: u32,
    /// Bytes of a page, the least that a process can map.
    pub page_size: u64,
}

/// A configuration that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// It contradicts the specification: the first field that is out of range.
    Invalid(&'static str),
    /// So many CQs leave no virtqueues to QPs.
    TooManyCqs(u32),
    /// Doorbell pages have this distance, in bytes, which is less than a page of the machine. A
    /// process would map the pages of others along with its own.
    NarrowDoorbells(u64),
}

/// Features as a driver uses them: those that have what they need.
fn in_use(features: Features) -> Features {
    match features.has(Feature::RingAddr) {
        true => features.in_force(),
        false => features.in_force().without(POSTED_BY_PROGRAMS),
    }
}

/// Accesses that read the configuration of a device with these features, and nothing that is
/// reserved without them. Each is 1, 2 or 4 bytes long and aligned.
///
/// A field is accessed by its width, one of 64 bits as two halves (virtio 1.3, 4.1.3.1). Fields of
/// the RFC that are not aligned are accessed byte by byte.
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

/// A field at `start` is read by accesses of 2ⁿ bytes.
fn access_shift(start: usize, field: &Field) -> u32 {
    // `sys_image_guid` is an integer of 64 bits for the RFC.
    if start % 4 == 0 && field.size % 4 == 0 {
        2
    } else if start % 2 == 0 && field.align == 2 {
        1
    } else {
        0
    }
}

/// The limits of a device.
///
/// # Invariants
///
/// - There is one port, and 4 KiB is a supported page size.
/// - The limits of `queues`, `own_rings` and `srq` are within what the ABI allows for, and not
///   zero.
/// - In RFC mode, the queues have [`MAX_VIRTQUEUES`] virtqueues at most.
/// - Doorbell pages are at least a page of the machine apart.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The RFC's part. Fields that `queues` has too hold there.
    pub config: Config,
    /// Queues.
    pub queues: QueueLimits,
    /// Own rings. Without them, queues are virtqueues of the transport.
    pub own_rings: Option<OwnRingsLimits>,
    /// SRQs. They need own rings.
    pub srq: Option<SrqConfig>,
    /// Rate limits.
    pub rate_limits: Option<RateLimitConfig>,
    features: Features,
}

impl Limits {
    /// Whether the driver uses a feature. RFC mode, where programs post through the core, has no
    /// use of features for work that only programs post.
    pub fn has(&self, feature: Feature) -> bool {
        self.features.has(feature)
    }

    /// The features that the driver uses.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Decodes the configuration. Bytes that [`accesses`] does not name have no meaning.
    ///
    /// # Errors
    ///
    /// For a configuration that contradicts the specification, that has no room for QPs, or whose
    /// doorbell pages are closer together than pages of the machine.
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
                max_inline_data: RFC_MAX_INLINE,
            },
        };
        let own_rings = rings.map(|rings| OwnRingsLimits {
            // More than one a CPU would only take memory and interrupt vectors.
            num_event_queues: rings.num_event_queues.min(machine.cpus.max(1)),
            doorbell_pages: rings.doorbell_pages,
            doorbell_shift: rings.doorbell_shift,
        });
        // INVARIANT: Checked below.
        let mut limits = Self {
            config,
            queues,
            own_rings,
            srq,
            rate_limits,
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
        ];
        match conditions.into_iter().find(|(holds, _)| !holds) {
            Some((_, field)) => Err(field),
            None => Ok(()),
        }
    }

    /// The device's capabilities as user space knows them, in the bits of `enum
    /// ib_uverbs_device_cap_flags`.
    ///
    /// Capabilities without a verb of the driver are masked, `SG_GAPS_REG` among them: lists with
    /// gaps need lists of pieces instead of pages. `BLOCK_MULTICAST_LOOPBACK` is masked since user
    /// space has no bit for it; see [`blocks_loopback`](Self::blocks_loopback).
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

    /// Atomicity. A value that does not exist promises nothing.
    pub fn atomic_cap(&self) -> AtomicCap {
        AtomicCap::try_from(self.config.atomic_cap).unwrap_or(AtomicCap::None)
    }

    /// Greatest MR, where `flat` bytes fit a page list of one level.
    pub fn max_mr_size(&self, flat: u64) -> u64 {
        match self.has(Feature::MrPages) {
            true => self.config.max_mr_size,
            false => self.config.max_mr_size.min(flat),
        }
    }

    /// Sizes that the pages of an MR of a process may have, each a bit. Smaller ones than 4 KiB
    /// serve nobody.
    pub fn mr_page_sizes(&self) -> u64 {
        match self.has(Feature::MrPages) {
            true => self.config.page_size_cap & !(PAGE - 1),
            false => PAGE,
        }
    }

    /// Most pages of an MR that is registered by work requests: `most` or less, 0 without such MRs.
    pub fn max_fast_reg_pages(&self, most: u32) -> u32 {
        match self.has_fast_registration() {
            true => self.config.max_fast_reg_page_list_len.min(most),
            false => 0,
        }
    }

    /// Whether UD QPs can be created that do not hear what they send to a group.
    pub fn blocks_loopback(&self) -> bool {
        let flag = DeviceCaps::BLOCK_MULTICAST_LOOPBACK;
        self.has(Feature::Multicast) && self.config.device_cap_flags.contains(flag)
    }

    /// Whether kernel clients can register MRs by work requests. Without [`Feature::RegPages`],
    /// mapping an MR would take a command, and it may not wait for one.
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
    // Each part ends within the configuration, as is asserted above.
    if let Some(from) = space.get(offset..offset + N) {
        bytes.copy_from_slice(from);
    }
    from_bytes(&bytes)
}

/// How many QPs the virtqueues serve beside those of `max_cq` CQs. The first of the device's are
/// taken: numbers leave no room for a choice.
fn pairs(max_cq: u32, max_qp: u32) -> Option<u32> {
    let left = MAX_VIRTQUEUES.checked_sub(1)?.checked_sub(max_cq)?;
    let pairs = max_qp.min(left / 2);
    (pairs != 0).then_some(pairs)
}
