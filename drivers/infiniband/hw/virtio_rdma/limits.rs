// SPDX-License-Identifier: GPL-2.0

//! The device's abilities: its configuration, read once.

use crate::{
    abi::config::{
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
        F_RING_ADDR,
        F_SRQ, //
    },
    decode::config::{
        ConfigError,
        Features,
        Limits, //
    },
    virtio::{
        self,
        Feature, //
    },
};
use kernel::{
    device::Bound,
    prelude::*, //
};

/// The features that the driver knows.
pub(crate) const FEATURES: [Feature; 13] = [
    Feature::device_type(F_RING_ADDR),
    Feature::device_type(F_MR_PAGES),
    Feature::device_type(F_REG_PAGES),
    Feature::device_type(F_GID_VLAN),
    Feature::device_type(F_MEM_WINDOWS),
    Feature::device_type(F_SRQ),
    Feature::device_type(F_RESIZE_CQ),
    Feature::device_type(F_RATE_LIMIT),
    Feature::device_type(F_MULTICAST),
    Feature::device_type(F_COUNTERS),
    Feature::device_type(F_ATOMIC_WRITE),
    Feature::device_type(F_FLUSH),
    Feature::device_type(F_PEERS),
];

/// Reads the configuration.
///
/// # Errors
///
/// All are logged: [`EINVAL`] for a configuration that contradicts the specification, [`ENOSPC`]
/// for more CQs than the transport has virtqueues, and those of
/// [`read_config`](virtio::Device::read_config).
pub(crate) fn read(dev: &virtio::Device<Bound>) -> Result<Limits> {
    let features = FEATURES
        .iter()
        .filter(|feature| dev.has_feature(**feature))
        .filter_map(|feature| 1u64.checked_shl(feature.bit()))
        .fold(0, |all, feature| all | feature);
    let read = |offset, to: &mut [u8]| dev.read_config(offset, to);
    let limits = Limits::decode(read, Features(features), kernel::cpu::nr_cpu_ids());
    limits.map_err(|error| match error {
        ConfigError::Read(error) => {
            dev_err!(dev.as_ref(), "cannot read the configuration: {:?}\n", error);
            error
        }
        ConfigError::Invalid(field) => {
            dev_err!(dev.as_ref(), "invalid configuration: {}\n", field);
            EINVAL
        }
        ConfigError::TooManyCqs(count) => {
            dev_err!(dev.as_ref(), "too many CQs: {}\n", count);
            ENOSPC
        }
    })
}
