// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Assembles the daemon: a device for each port, and the shared workers and switch.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use dma::DmaSpace;
use vdev::{Listener, F_ORDER_PLATFORM};
use verbs::{DeviceConfig, Runtime, RuntimeConfig};
use virtio_rdma_abi::feature::Features;
use vswitch::{PortConfig, Switch};

use crate::cli::Args;
use crate::control::Control;
use crate::device::RdmaDevice;
use crate::line_server::Server;
use crate::log::Level;
use crate::ports::{Port, Ports};
use crate::status::Status;

/// All running parts of the daemon. Dropping it ends them, first those that the guests use.
pub struct Machine {
    /// Servers that access the other parts, so they are dropped first.
    _status: Option<Server>,
    _control: Option<Server>,
    ports: Arc<Ports>,
    _runtime: Arc<Runtime>,
    _switch: Arc<Switch>,
}

impl Machine {
    /// Opens all sockets and starts all threads. The workers run on the CPUs `dedicated`, if there
    /// are any. `level` changes the level of the log.
    pub fn start(args: &Args, dedicated: Vec<usize>, level: Level) -> Result<Self> {
        // The sockets come first: they show whether another daemon is running already.
        let access = args.access();
        let listeners = args
            .ports
            .iter()
            .map(|port| {
                Listener::bind(&port.vfio, &access).with_context(|| format!("port {}", port.name))
            })
            .collect::<Result<Vec<_>>>()?;
        let ports = args.ports.iter().map(|port| PortConfig {
            name: port.name.clone(),
            mac: port.mac.0,
            net: port.net.clone(),
            addresses: port.addresses.clone(),
            net_roce: port.net_roce,
            group: args.group(port),
        });
        let (switch, engines) = Switch::start(vswitch::Config {
            ports: ports.collect(),
            uplinks: args.uplinks.clone(),
            access,
            pcap: args.pcap.clone(),
            faults: args.faults,
        })?;
        let runtime = Runtime::new(RuntimeConfig {
            workers: args.workers.map(usize::from),
            dedicated,
            path: args.path.into(),
            poll: Duration::from_micros(args.poll.into()),
            at_once: true,
            ..RuntimeConfig::default()
        })
        .context("can't start the workers")?;
        let runtime = Arc::new(runtime);

        let withheld = args.withheld.iter();
        let withheld = withheld.fold(Features::NONE, |all, features| all.union(*features));
        let more = if args.order_platform {
            Features(1 << F_ORDER_PLATFORM)
        } else {
            Features::NONE
        };
        let running = Arc::new(Ports::default());
        for ((port, listener), engine) in args.ports.iter().zip(listeners).zip(engines) {
            let space = Arc::new(DmaSpace::with_limit(args.guest_memory(port)));
            let mut config = DeviceConfig {
                addresses: port.addresses.clone(),
                speed: port.speed,
                rates: port.rates,
                group: args.group(port),
                ..DeviceConfig::new(port.mac.0)
            };
            config.limits.memory = port.memory.unwrap_or(args.memory);
            config.limits.doorbell_shift = args.doorbell_stride;
            let device = RdmaDevice::new(config, withheld, more, space.clone(), &runtime, engine);
            let engine = device.engine().clone();
            let server = listener
                .start(&port.name, Arc::new(device), space)
                .with_context(|| format!("port {}: can't start its threads", port.name))?;
            tracing::info!(port = port.name, mac = %port.mac, "listens at {}", port.vfio.display());
            running.push(Port::new(port.clone(), engine, server));
        }
        let switch = Arc::new(switch);
        let status = match &args.status {
            Some(path) => {
                let (ports, switch, runtime) = (running.clone(), switch.clone(), runtime.clone());
                let look = move || ports.report(runtime.status(), switch.stats());
                Some(Server::start(path, &access, Status(look))?)
            }
            None => None,
        };
        let control = match &args.ctl {
            Some(path) => {
                let control = Control {
                    ports: running.clone(),
                    level,
                    has_group: args.ctl_group.is_some(),
                };
                Some(Server::start(path, &args.ctl_access(), control)?)
            }
            None => None,
        };
        Ok(Self {
            _status: status,
            _control: control,
            ports: running,
            _runtime: runtime,
            _switch: switch,
        })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The status and control servers share the ports, which would outlive this otherwise.
        self.ports.clear();
    }
}
