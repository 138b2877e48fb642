// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A daemon's inside: a fabric with one worker, the switch, and VMs that are played.

use std::sync::Arc;

use roce::Frame;
use verbs::{Fabric, FramePort, Limits, PathPolicy};
use vswitch::{Config, EnginePort, PortConfig, Switch};

use super::harness::{mac, Vm};

/// The fields end in this order.
pub struct Machine {
    pub vms: Vec<Vm>,
    _fabric: Fabric,
    _switch: Switch,
}

impl Machine {
    /// So many VMs, whose QPs exchange data this way.
    pub fn new(vms: usize, path: PathPolicy) -> Self {
        let fabric = Fabric::new(Some(1), path).expect("a thread");
        let ports = (1..=vms).map(|n| PortConfig {
            name: format!("vm{n}"),
            mac: mac(n),
            net: None,
        });
        let config = Config {
            ports: ports.collect(),
            ..Config::default()
        };
        let (switch, engines) = Switch::start(config).expect("a switch");
        let vms = (1..)
            .zip(engines)
            .map(|(n, engine)| {
                let port = Arc::new(Port(engine.clone()));
                let vm = Vm::new(n, &fabric, port, &Limits::default());
                let device = Arc::downgrade(&vm.device);
                engine.on_ready(move || {
                    if let Some(device) = device.upgrade() {
                        device.frames_ready();
                    }
                });
                vm
            })
            .collect();
        Self {
            vms,
            _fabric: fabric,
            _switch: switch,
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for vm in &self.vms {
            vm.device.detach();
        }
    }
}

/// A port of the switch as the engine sees it.
struct Port(EnginePort);

impl FramePort for Port {
    fn frame(&self, len: usize) -> Option<Frame> {
        self.0.frame(len)
    }

    fn send(&self, frame: Frame) {
        self.0.send(frame);
    }

    fn receive(&self) -> Option<Frame> {
        self.0.receive()
    }

    fn join(&self, mac: [u8; 6]) {
        self.0.join(mac);
    }

    fn leave(&self, mac: [u8; 6]) {
        self.0.leave(mac);
    }
}
