// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The core of a daemon: a runtime, the switch and simulated VMs.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use verbs::{Limits, PathPolicy, Runtime, RuntimeConfig};
use vswitch::{Config, PortConfig, Switch};

use super::{mac, notify, Vm};

/// A daemon with its VMs. The fields are dropped in this order.
pub struct Daemon {
    pub vms: Vec<Vm>,
    /// For each VM, whether its device is told of nothing, so that received frames wait.
    is_deaf: Vec<Arc<AtomicBool>>,
    _runtime: Runtime,
    pub switch: Switch,
}

impl Daemon {
    /// A daemon with VMs numbered `vms` and `workers` workers. Its QPs use the data path `path`.
    /// `config` is the configuration of the switch without ports.
    pub fn new(
        vms: RangeInclusive<usize>,
        workers: usize,
        path: PathPolicy,
        config: Config,
    ) -> Self {
        Self::with_ports(vms, workers, path, config, |_| {})
    }

    /// Like [`new`](Self::new), with port configurations that `change` has changed.
    pub fn with_ports(
        vms: RangeInclusive<usize>,
        workers: usize,
        path: PathPolicy,
        config: Config,
        change: impl Fn(&mut PortConfig),
    ) -> Self {
        let runtime = RuntimeConfig {
            workers: Some(workers),
            path,
            ..RuntimeConfig::default()
        };
        Self::with_runtime(vms, runtime, config, change)
    }

    /// Like [`with_ports`](Self::with_ports), with a configuration of the runtime.
    pub fn with_runtime(
        vms: RangeInclusive<usize>,
        runtime: RuntimeConfig,
        mut config: Config,
        change: impl Fn(&mut PortConfig),
    ) -> Self {
        let runtime = Runtime::new(runtime).expect("threads");
        config.ports = vms
            .clone()
            .map(|n| {
                let mut port = PortConfig {
                    name: format!("vm{n}"),
                    mac: mac(n),
                    ..PortConfig::default()
                };
                change(&mut port);
                port
            })
            .collect();
        let (switch, engines) = Switch::start(config).expect("a switch");
        let is_deaf = Vec::from_iter(engines.iter().map(|_| Arc::new(AtomicBool::new(false))));
        let vms = vms
            .zip(engines)
            .zip(is_deaf.iter().cloned())
            .map(|((n, engine), is_deaf)| {
                let vm = Vm::new(n, &runtime, Arc::new(engine.clone()), &Limits::default());
                let hca = Arc::downgrade(&vm.hca);
                engine.on_ready(move |caller| {
                    if !is_deaf.load(Ordering::SeqCst) {
                        notify(&hca, caller);
                    }
                });
                vm
            })
            .collect();
        Self {
            vms,
            is_deaf,
            _runtime: runtime,
            switch,
        }
    }

    /// Lets received frames of a VM, the one at this index, wait or not.
    pub fn set_deaf(&self, index: usize, is_deaf: bool) {
        self.is_deaf[index].store(is_deaf, Ordering::SeqCst);
        if !is_deaf {
            self.vms[index].hca.frames_ready();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        for vm in &self.vms {
            vm.hca.detach();
        }
    }
}
