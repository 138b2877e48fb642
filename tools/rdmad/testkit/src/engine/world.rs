// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! VMs with a runtime and a network.

use std::sync::Arc;

use verbs::{Limits, Runtime, RuntimeConfig};
use virtio_rdma_abi::feature::Feature;

use super::vm::hca_config;
use super::{mac, Mode, Net, Setup, Vm};

/// VMs whose devices share one runtime.
pub struct World {
    // The runtime is dropped last, because its threads serve the devices.
    pub vms: Vec<Vm>,
    pub net: Arc<Net>,
    pub runtime: Runtime,
}

impl World {
    /// VMs on this data path, with own rings unless the setup says otherwise.
    pub fn new(vms: usize, setup: impl Into<Setup>) -> Self {
        Self::with_limits(vms, setup, Limits::default())
    }

    pub fn with_limits(vms: usize, setup: impl Into<Setup>, limits: Limits) -> Self {
        let Setup { path, mode } = setup.into();
        let config = RuntimeConfig {
            path,
            ..RuntimeConfig::default()
        };
        Self::in_mode(mode, vms, config, limits)
    }

    /// VMs with own rings and a runtime of this configuration, by default with two workers.
    pub fn with_config(vms: usize, config: RuntimeConfig, limits: Limits) -> Self {
        Self::in_mode(Mode::OwnRings, vms, config, limits)
    }

    /// Like [`with_config`](Self::with_config), with queues as `mode` says.
    pub fn in_mode(mode: Mode, vms: usize, mut config: RuntimeConfig, limits: Limits) -> Self {
        let net = Arc::new(Net::default());
        config.workers.get_or_insert(2);
        let runtime = Runtime::new(config).unwrap();
        let vms = (1..=vms)
            .map(|n| {
                let port = net.port(mac(n));
                let config = hca_config(n, &limits, &[]);
                let vm = Vm::in_mode(mode, n, &runtime, port.clone(), config);
                port.attach(&vm.hca);
                vm
            })
            .collect();
        Self { vms, net, runtime }
    }

    /// Negotiates `features` and the features of the mode with the drivers of all VMs.
    pub fn negotiate(&self, features: &[Feature]) {
        for vm in &self.vms {
            vm.negotiate(features);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for vm in &self.vms {
            vm.hca.detach();
        }
    }
}
