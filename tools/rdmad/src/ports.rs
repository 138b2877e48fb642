// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The ports of the daemon while it runs.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use vdev::Handle;
use verbs::{Device, PortRates, RuntimeStatus};
use virtio_rdma_abi::feature::Features;
use vswitch::stats::Stats;

use crate::cli::PortArgs;
use crate::rates;
use crate::report::Report;

/// A port and what serves it. Dropping it ends its threads.
pub struct Port {
    /// As it was configured.
    args: PortArgs,
    engine: Arc<Device>,
    /// Its threads.
    _server: Handle,
}

impl Port {
    /// A port that is served.
    pub fn new(args: PortArgs, engine: Arc<Device>, server: Handle) -> Self {
        Self {
            args,
            engine,
            _server: server,
        }
    }
}

/// All ports, in the order in which they came.
#[derive(Default)]
pub struct Ports(Mutex<Vec<Port>>);

/// A port as `ctl ports` tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortState {
    /// Name.
    pub name: String,
    /// MAC address.
    pub mac: String,
    /// Socket of its QEMU.
    pub vfio: PathBuf,
    /// Whether a driver has set the device up.
    pub driver: bool,
    /// Isolation group, if it has one with a name.
    pub group: Option<String>,
    /// Limit of bytes a second, or none.
    pub rate: String,
    /// Limit of messages a second, or none.
    pub messages: String,
}

impl Ports {
    /// Adds a port.
    pub fn push(&self, port: Port) {
        self.0.lock().push(port);
    }

    /// The state of each port.
    pub fn states(&self) -> Vec<PortState> {
        let ports = self.0.lock();
        let state = |port: &Port| PortState {
            name: port.args.name.clone(),
            mac: port.args.mac.to_string(),
            vfio: port.args.vfio.clone(),
            driver: port.engine.status().features != Features::NONE,
            group: port.args.group.clone(),
            rate: rates::text(port.args.rates.bytes),
            messages: rates::text(port.args.rates.messages),
        };
        ports.iter().map(state).collect()
    }

    /// Changes the limits of the port with this name. Returns the new ones.
    pub fn limit(&self, name: &str, change: impl FnOnce(&mut PortRates)) -> Result<PortRates> {
        let mut ports = self.0.lock();
        let port = ports.iter_mut().find(|port| port.args.name == name);
        let port = port.with_context(|| format!("there is no port {name:?}"))?;
        change(&mut port.args.rates);
        port.engine.set_rates(port.args.rates);
        Ok(port.args.rates)
    }

    /// A look at all ports, with the workers and the switch.
    pub fn report(&self, workers: RuntimeStatus, switch: Vec<Stats>) -> Report {
        let ports = self.0.lock();
        let devices = ports
            .iter()
            .map(|port| (port.args.name.as_str(), &*port.engine));
        Report::new(workers, devices, switch)
    }

    /// Ends all ports.
    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = if self.driver { "driver" } else { "no driver" };
        let Self {
            name,
            mac,
            vfio,
            rate,
            messages,
            group,
            ..
        } = self;
        let group = group.as_deref().unwrap_or("-");
        write!(
            f,
            "{name:<16} {mac}  {driver:<9}  group {group:<8}  rate {rate:<12}  messages {messages:<12}  {}",
            vfio.display()
        )
    }
}
