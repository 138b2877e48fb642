// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Puts the parts together: a device per port, the workers and the switch that they share.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use dma::DmaSpace;
use vdev::{Handle, Listener, F_ORDER_PLATFORM};
use verbs::{DeviceConfig, Runtime, RuntimeConfig};
use virtio_rdma_abi::feature::Features;
use vswitch::{PortConfig, Switch};

use crate::cli::Args;
use crate::device::RdmaDevice;
use crate::report::Report;
use crate::status;

/// All that runs. Dropping it ends everything, from the guests' side down.
pub struct Machine {
    /// Looks at all that follows.
    _status: Option<status::Server>,
    _servers: Vec<Handle>,
    _runtime: Arc<Runtime>,
    _switch: Arc<Switch>,
}

impl Machine {
    /// Opens all sockets and starts to serve.
    pub fn start(args: &Args) -> Result<Self> {
        // First, since this is what tells whether another daemon runs already.
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
        let mut servers = Vec::with_capacity(args.ports.len());
        let mut engines_by_name = Vec::with_capacity(args.ports.len());
        for ((port, listener), engine) in args.ports.iter().zip(listeners).zip(engines) {
            let space = Arc::new(DmaSpace::with_limit(args.guest_memory(port)));
            let mut config = DeviceConfig {
                addresses: port.addresses.clone(),
                speed: port.speed,
                ..DeviceConfig::new(port.mac.0)
            };
            config.limits.memory = port.memory.unwrap_or(args.memory);
            config.limits.doorbell_shift = args.doorbell_stride;
            let device = RdmaDevice::new(config, withheld, more, space.clone(), &runtime, engine);
            engines_by_name.push((port.name.clone(), device.engine().clone()));
            let server = listener
                .start(&port.name, Arc::new(device), space)
                .with_context(|| format!("port {}: can't start its threads", port.name))?;
            tracing::info!(port = port.name, mac = %port.mac, "listens at {}", port.vfio.display());
            servers.push(server);
        }
        let switch = Arc::new(switch);
        let status = match &args.status {
            Some(path) => {
                let (switch, runtime) = (switch.clone(), runtime.clone());
                let look = move || {
                    let devices = engines_by_name.iter();
                    let devices = devices.map(|(name, device)| (name.as_str(), &**device));
                    Report::new(runtime.status(), devices, switch.stats())
                };
                Some(status::Server::start(path, &access, look)?)
            }
            None => None,
        };
        Ok(Self {
            _status: status,
            _servers: servers,
            _runtime: runtime,
            _switch: switch,
        })
    }
}
