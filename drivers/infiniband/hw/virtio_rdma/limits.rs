// SPDX-License-Identifier: GPL-2.0

//! The device's limits and features, read once from its configuration.

use crate::{
    abi::{
        config::CONFIG_SIZE,
        feature::{
            self,
            Features, //
        }, //
    },
    decode::config::{
        accesses,
        ConfigError,
        Limits,
        Machine, //
    },
    virtio::{
        self,
        Feature, //
    },
};
use kernel::{
    device::Bound,
    page::PAGE_SIZE,
    prelude::*, //
};

/// The features that the driver knows: all features of the device type.
pub(crate) const FEATURES: [Feature; feature::Feature::ALL.len()] = {
    let mut features = [Feature::device_type(0); feature::Feature::ALL.len()];
    let mut at = 0;
    while at < features.len() {
        features[at] = Feature::device_type(feature::Feature::ALL[at].bit());
        at += 1;
    }
    features
};

/// Reads the configuration.
///
/// # Errors
///
/// Each error is logged: [`EINVAL`] for a configuration that contradicts the specification,
/// [`ENOSPC`] for more CQs than the transport has virtqueues, [`EOPNOTSUPP`] for doorbell pages
/// that are closer together than pages of this kernel, and the errors of
/// [`read_config`](virtio::Device::read_config).
pub(crate) fn read(dev: &virtio::Device<Bound>) -> Result<Limits> {
    let features = Features::ALL
        .iter()
        .filter(|feature| dev.has_feature(Feature::device_type(feature.bit())))
        .fold(Features::NONE, |all, feature| {
            all.union(Features::of(&[feature]))
        });
    let mut space = [0; CONFIG_SIZE];
    dev.read_config(accesses(features), &mut space)
        .inspect_err(|error| {
            dev_err!(
                dev.as_ref(),
                "can't read the configuration, so the device is not used: {:?}\n",
                error
            );
        })?;
    let machine = Machine {
        cpus: kernel::cpu::nr_cpu_ids(),
        page_size: PAGE_SIZE as u64,
    };
    let limits = Limits::decode(&space, features, machine);
    limits.map_err(|error| match error {
        ConfigError::Invalid(field) => {
            dev_err!(
                dev.as_ref(),
                "the configuration is invalid, so the device is not used: {}\n",
                field
            );
            EINVAL
        }
        ConfigError::TooManyCqs(count) => {
            dev_err!(
                dev.as_ref(),
                "the device is not used: its {} CQs leave no virtqueues for QPs\n",
                count
            );
            ENOSPC
        }
        ConfigError::NarrowDoorbells(stride) => {
            dev_err!(
                dev.as_ref(),
                "doorbell pages are {} bytes apart, pages of this kernel have {}: \
                 set the device's doorbell stride to {}\n",
                stride,
                PAGE_SIZE,
                PAGE_SIZE
            );
            EOPNOTSUPP
        }
    })
}
