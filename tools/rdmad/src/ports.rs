// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The ports of the running daemon.

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

/// A port and its threads. Dropping it ends the threads.
pub struct Port {
    /// The port's configuration.
    args: PortArgs,
    engine: Arc<Device>,
    /// Server of the port's socket, which ends its threads when dropped.
    _server: Handle,
}

impl Port {
    /// A port that `server` serves.
    pub fn new(args: PortArgs, engine: Arc<Device>, server: Handle) -> Self {
        Self {
            args,
            engine,
            _server: server,
        }
    }
}

/// All ports, in the order in which they were added.
#[derive(Default)]
pub struct Ports(Mutex<Vec<Port>>);

/// The state of a port that `ctl ports` shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortState {
    /// Name of the port.
    pub name: String,
    /// MAC address of the port.
    pub mac: String,
    /// Socket that the port's QEMU connects to.
    pub vfio: PathBuf,
    /// Whether a driver has set the device up.
    pub driver: bool,
    /// Name of the isolation group, if the port is in one with a name.
    pub group: Option<String>,
    /// Limit of bytes per second, or "none".
    pub rate: String,
    /// Limit of messages per second, or "none".
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

    /// Changes the rate limits of the port with this name. Returns the new limits.
    pub fn limit(&self, name: &str, change: impl FnOnce(&mut PortRates)) -> Result<PortRates> {
        let mut ports = self.0.lock();
        let port = ports.iter_mut().find(|port| port.args.name == name);
        let port = port.with_context(|| format!("there is no port {name:?}"))?;
        change(&mut port.args.rates);
        port.engine.set_rates(port.args.rates);
        Ok(port.args.rates)
    }

    /// A report of all ports, with the status of the workers and the counters of the switch.
    pub fn report(&self, workers: RuntimeStatus, switch: Vec<Stats>) -> Report {
        let ports = self.0.lock();
        let devices = ports
            .iter()
            .map(|port| (port.args.name.as_str(), &*port.engine));
        Report::new(workers, devices, switch)
    }

    /// Drops all ports, which ends their threads.
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
