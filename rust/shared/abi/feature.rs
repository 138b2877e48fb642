// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Features of the device type: their numbers and names, their requirements, and what depends on
//! them.

use super::config::{
    CounterSetConfig, CqModerationConfig, DeviceCaps, OwnRingsConfig, RateLimitConfig, SrqConfig,
    COUNTER_SET_CONFIG_OFFSET, CQ_MODERATION_CONFIG_OFFSET, OWN_RINGS_CONFIG_OFFSET,
    RATE_LIMIT_CONFIG_OFFSET, SRQ_CONFIG_OFFSET,
};
use super::ctrl::Command;
use super::ib::{AccessFlags, WrOpcode};
use core::ops::Range;

wire_enum! {
    /// A feature of the device type. The value is its bit number.
    pub enum Feature: u8 {
        /// `VIRTIO_RDMA_F_RING_ADDR`: queues are rings at addresses that the driver chooses (own
        /// rings).
        RingAddr = 0,
        /// `VIRTIO_RDMA_F_MR_PAGES`: REG_USER_MR has a page size, and its page list may have two
        /// levels ([`CmdRegUserMrPages`](super::ctrl::CmdRegUserMrPages)).
        MrPages = 1,
        /// `VIRTIO_RDMA_F_REG_PAGES`: a REG_MR work request carries the page list
        /// ([`RegPages`](super::wqe::RegPages)), which replaces MAP_MR_SG.
        RegPages = 2,
        /// `VIRTIO_RDMA_F_GID_VLAN`: ADD_GID carries the VLAN of an address
        /// ([`CmdAddGidVlan`](super::ctrl::CmdAddGidVlan)), and the CQE of a tagged datagram
        /// carries its VLAN ([`Cqe::vlan`](super::cqe::Cqe::vlan)).
        GidVlan = 3,
        /// `VIRTIO_RDMA_F_MEM_WINDOWS`: memory windows ([`CmdAllocMw`](super::ctrl::CmdAllocMw)),
        /// which BIND_MW work requests bind ([`BindMw`](super::wqe::BindMw)).
        MemWindows = 4,
        /// `VIRTIO_RDMA_F_SRQ`: shared receive queues
        /// ([`CmdCreateSrq`](super::ctrl::CmdCreateSrq)).
        Srq = 5,
        /// `VIRTIO_RDMA_F_RESIZE_CQ`: a CQ can move to another ring
        /// ([`CmdResizeCq`](super::ctrl::CmdResizeCq)).
        ResizeCq = 6,
        /// `VIRTIO_RDMA_F_RATE_LIMIT`: a QP can have a rate limit
        /// ([`CmdSetRateLimit`](super::ctrl::CmdSetRateLimit),
        /// [`QpAttrMask::RATE_LIMIT`](super::ib::QpAttrMask::RATE_LIMIT)).
        RateLimit = 7,
        /// `VIRTIO_RDMA_F_MULTICAST`: UD QPs can send to multicast groups and attach to them
        /// ([`CmdAttachMcast`](super::ctrl::CmdAttachMcast)).
        Multicast = 8,
        /// `VIRTIO_RDMA_F_COUNTERS`: the port has counters
        /// ([`CmdQueryCounters`](super::ctrl::CmdQueryCounters)).
        Counters = 9,
        /// `VIRTIO_RDMA_F_ATOMIC_WRITE`: atomic WRITE ([`AtomicWrite`](super::wqe::AtomicWrite)).
        AtomicWrite = 10,
        /// `VIRTIO_RDMA_F_FLUSH`: FLUSH ([`Flush`](super::wqe::Flush)).
        Flush = 11,
        /// `VIRTIO_RDMA_F_PEERS`: the driver can revoke the device's access to the memory of an MR
        /// ([`CmdRevokeMr`](super::ctrl::CmdRevokeMr)). MRs over DMA buffers of other drivers
        /// require this feature.
        Peers = 12,
        /// `VIRTIO_RDMA_F_CQ_MODERATION`: the device can delay the completion events of a CQ
        /// ([`CmdModifyCq`](super::ctrl::CmdModifyCq)).
        CqModeration = 13,
        /// `VIRTIO_RDMA_F_COUNTER_SETS`: a counter set counts the events of the QPs that are bound
        /// to it ([`CmdBindCounterSet`](super::ctrl::CmdBindCounterSet)).
        CounterSets = 14,
        /// `VIRTIO_RDMA_F_PORT_STATE`: the driver tells the device state and MTU of the port's
        /// network device ([`CmdSetPort`](super::ctrl::CmdSetPort)).
        PortState = 15,
    }
}

impl Feature {
    /// The bit number.
    pub const fn bit(self) -> u32 {
        self as u32
    }

    /// The bit as a mask.
    pub const fn mask(self) -> u64 {
        1 << self.bit()
    }

    /// The name for command lines and status reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RingAddr => "ring-addr",
            Self::MrPages => "mr-pages",
            Self::RegPages => "reg-pages",
            Self::GidVlan => "gid-vlan",
            Self::MemWindows => "mem-windows",
            Self::Srq => "srq",
            Self::ResizeCq => "resize-cq",
            Self::RateLimit => "rate-limit",
            Self::Multicast => "multicast",
            Self::Counters => "counters",
            Self::AtomicWrite => "atomic-write",
            Self::Flush => "flush",
            Self::Peers => "peers",
            Self::CqModeration => "cq-moderation",
            Self::CounterSets => "counter-sets",
            Self::PortState => "port-state",
        }
    }

    /// The other feature without which this one has no effect.
    pub const fn needs(self) -> Option<Self> {
        match self {
            Self::Srq | Self::ResizeCq | Self::CqModeration | Self::CounterSets => {
                Some(Self::RingAddr)
            }
            _ => None,
        }
    }

    /// Device capabilities that require the feature.
    pub const fn capabilities(self) -> DeviceCaps {
        match self {
            Self::RegPages => DeviceCaps::MEM_MGT_EXTENSIONS,
            Self::MemWindows => DeviceCaps::MEM_WINDOW
                .union(DeviceCaps::MEM_WINDOW_TYPE_2A)
                .union(DeviceCaps::MEM_WINDOW_TYPE_2B),
            Self::Multicast => DeviceCaps::BLOCK_MULTICAST_LOOPBACK,
            Self::AtomicWrite => DeviceCaps::ATOMIC_WRITE,
            Self::Flush => DeviceCaps::FLUSH_GLOBAL.union(DeviceCaps::FLUSH_PERSISTENT),
            _ => DeviceCaps::NONE,
        }
    }

    /// Access flags that require the feature.
    pub const fn access_flags(self) -> AccessFlags {
        match self {
            Self::MemWindows => AccessFlags::MW_BIND,
            Self::Flush => AccessFlags::FLUSH_GLOBAL.union(AccessFlags::FLUSH_PERSISTENT),
            _ => AccessFlags::NONE,
        }
    }

    /// Range of the configuration that is reserved without the feature.
    pub const fn config(self) -> Range<usize> {
        let (start, size) = match self {
            Self::RingAddr => (OWN_RINGS_CONFIG_OFFSET, OwnRingsConfig::SIZE),
            Self::Srq => (SRQ_CONFIG_OFFSET, SrqConfig::SIZE),
            Self::RateLimit => (RATE_LIMIT_CONFIG_OFFSET, RateLimitConfig::SIZE),
            Self::CqModeration => (CQ_MODERATION_CONFIG_OFFSET, CqModerationConfig::SIZE),
            Self::CounterSets => (COUNTER_SET_CONFIG_OFFSET, CounterSetConfig::SIZE),
            _ => (0, 0),
        };
        start..start + size
    }
}

impl Command {
    /// The feature that the device requires for the command.
    pub const fn feature(self) -> Option<Feature> {
        match self {
            Self::AllocMw | Self::DeallocMw => Some(Feature::MemWindows),
            Self::CreateSrq | Self::ModifySrq | Self::QuerySrq | Self::DestroySrq => {
                Some(Feature::Srq)
            }
            Self::ResizeCq => Some(Feature::ResizeCq),
            Self::SetRateLimit => Some(Feature::RateLimit),
            Self::AttachMcast | Self::DetachMcast => Some(Feature::Multicast),
            Self::QueryCounters => Some(Feature::Counters),
            Self::RevokeMr => Some(Feature::Peers),
            Self::ModifyCq => Some(Feature::CqModeration),
            Self::CreateCounterSet
            | Self::DestroyCounterSet
            | Self::BindCounterSet
            | Self::QueryCounterSet => Some(Feature::CounterSets),
            Self::SetPort => Some(Feature::PortState),
            _ => None,
        }
    }

    /// The feature that removes the command.
    pub const fn replaced_by(self) -> Option<Feature> {
        match self {
            Self::MapMrSg => Some(Feature::RegPages),
            Self::ReqNotifyCq => Some(Feature::RingAddr),
            _ => None,
        }
    }
}

impl WrOpcode {
    /// The feature that the device requires for the operation.
    pub const fn feature(self) -> Option<Feature> {
        match self {
            Self::BindMw => Some(Feature::MemWindows),
            Self::AtomicWrite => Some(Feature::AtomicWrite),
            Self::Flush => Some(Feature::Flush),
            _ => None,
        }
    }
}

/// A set of features, offered or negotiated: bit n stands for the feature with number n. Bits of
/// the virtio transport may be set as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

#[allow(dead_code)]
impl Features {
    /// No feature.
    pub const NONE: Self = Self(0);

    /// Every feature of the device type.
    pub const ALL: Self = Self::of(Feature::ALL);

    /// The set of these features.
    pub const fn of(features: &[Feature]) -> Self {
        let mut bits = 0;
        let mut rest = features;
        while let [first, others @ ..] = rest {
            bits |= first.mask();
            rest = others;
        }
        Self(bits)
    }

    /// Whether the feature is in the set.
    #[inline]
    pub const fn has(self, feature: Feature) -> bool {
        self.0 & feature.mask() != 0
    }

    /// The features that are in both sets.
    pub const fn intersection(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    /// The features that are in at least one of the two sets.
    pub const fn union(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// The features of this set that are not in `others`.
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// The features of the set whose [requirements](Feature::needs) are met.
    pub fn in_force(self) -> Self {
        let lacking = self
            .iter()
            .filter(|feature| feature.needs().is_some_and(|needed| !self.has(needed)))
            .fold(Self::NONE, |all, feature| all.union(Self(feature.mask())));
        self.without(lacking)
    }

    /// Whether a device with these features supports the command.
    pub fn know(self, command: Command) -> bool {
        command.feature().is_none_or(|needed| self.has(needed))
            && command.replaced_by().is_none_or(|later| !self.has(later))
    }

    /// Device capabilities that require one of these features.
    pub fn capabilities(self) -> DeviceCaps {
        self.iter().fold(DeviceCaps::NONE, |all, feature| {
            all | feature.capabilities()
        })
    }

    /// The features of the device type in the set, by bit number.
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        Feature::ALL
            .iter()
            .copied()
            .filter(move |feature| self.has(*feature))
    }
}
