// SPDX-License-Identifier: GPL-2.0

//! What the device can do: its configuration, read once and checked.

use crate::{
    abi::{
        config::{
            Config,
            DeviceCaps,
            OwnRingsConfig,
            CONFIG_SIZE,
            F_GID_VLAN,
            F_MR_PAGES,
            F_REG_PAGES,
            OWN_RINGS_CONFIG_OFFSET,
            QUEUE_COUNT_RANGE, //
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

/// The configuration of a device in own-rings mode.
///
/// # Invariants
///
/// - There is one port, and 4 KiB is a supported page size.
/// - The limits of `rings` are within what the ABI allows for, and not zero.
pub(crate) struct Limits {
    /// The RFC's part; where `rings` has a field of the same name, that one holds.
    pub(crate) config: Config,
    /// Own rings.
    pub(crate) rings: OwnRingsConfig,
    /// Whether [`MR_PAGES`] was negotiated.
    pub(crate) mr_pages: bool,
    /// Whether [`REG_PAGES`] was negotiated.
    pub(crate) reg_pages: bool,
    /// Whether [`GID_VLAN`] was negotiated.
    pub(crate) gid_vlan: bool,
}

/// Event queues at most: more interrupt vectors serve nobody.
const MAX_EVENT_QUEUES: u32 = 1024;

impl Limits {
    /// Reads the configuration.
    ///
    /// # Errors
    ///
    /// [`EINVAL`] for one that contradicts the specification, which is logged, and those of
    /// [`read_config`](virtio::Device::read_config).
    pub(crate) fn read(dev: &virtio::Device<Bound>) -> Result<Self> {
        const LEN: usize = OWN_RINGS_CONFIG_OFFSET + OwnRingsConfig::SIZE;
        const _: () = assert!(LEN <= CONFIG_SIZE);

        let mut raw = [0; LEN];
        dev.read_config(0, &mut raw).inspect_err(|error| {
            dev_err!(dev.as_ref(), "cannot read the configuration: {:?}\n", error)
        })?;
        let config = Config::decode(&raw).ok_or(EINVAL)?;
        let rings = OwnRingsConfig::decode(&raw[OWN_RINGS_CONFIG_OFFSET..]).ok_or(EINVAL)?;

        if let Err(field) = check(&config, &rings) {
            dev_err!(dev.as_ref(), "invalid configuration: {}\n", field);
            return Err(EINVAL);
        }
        // INVARIANT: Checked above.
        Ok(Self {
            config,
            rings,
            mr_pages: dev.has_feature(MR_PAGES),
            reg_pages: dev.has_feature(REG_PAGES),
            gid_vlan: dev.has_feature(GID_VLAN),
        })
    }
}

impl Limits {
    /// Whether kernel clients can register MRs by work requests. Without [`REG_PAGES`], mapping an MR would take a command,
    /// and it may not wait for one.
    pub(crate) fn has_fast_registration(&self) -> bool {
        self.reg_pages
            && self
                .config
                .device_cap_flags
                .contains(DeviceCaps::MEM_MGT_EXTENSIONS)
    }
}

/// Names the first field that is out of range.
fn check(config: &Config, rings: &OwnRingsConfig) -> Result<(), &'static str> {
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
            (1..=MAX_EVENT_QUEUES).contains(&rings.num_event_queues),
            "num_event_queues",
        ),
        (QUEUE_COUNT_RANGE.contains(&rings.max_qp), "max_qp"),
        (QUEUE_COUNT_RANGE.contains(&rings.max_cq), "max_cq"),
        (slots.contains(&rings.max_qp_wr), "max_qp_wr"),
        (slots.contains(&rings.max_cqe), "max_cqe"),
        (rings.doorbell_pages != 0, "doorbell_pages"),
    ];
    match conditions.into_iter().find(|(holds, _)| !holds) {
        Some((_, field)) => Err(field),
        None => Ok(()),
    }
}
