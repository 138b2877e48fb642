// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Resources that all ports share, and the start and end of a port.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Context, Result};
use chaos::{Scenario, What};
use dma::DmaSpace;
use recorder::{Recorder, Ring};
use roce::saved::Epoch;
use sockets::{Access, PortSockets};
use vdev::{Handle, Listener, ServerPool, F_ORDER_PLATFORM};
use verbs::{Hca, HcaConfig, Runtime, RuntimeConfig, EVENTS};
use virtio_rdma_abi::feature::Features;
use vswitch::pcap::Captured;
use vswitch::{EnginePort, PortConfig, Switch};

use crate::cli::{Args, PortArgs, SocketArgs};
use crate::daemon::Former;
use crate::device::RdmaDevice;
use crate::kept_captures::{self, KeptCaptures, Output};
use crate::kept_events::KeptEvents;
use crate::size::mib;

/// Resources that all ports share.
pub struct Host {
    /// The workers. Dropped before the switch, to which they send frames.
    pub runtime: Runtime,
    pub switch: Switch,
    pub pool: Arc<ServerPool>,
    /// Maximum number of ports at a time.
    pub most_ports: usize,
    /// Paths of all sockets of the daemon except those of ports.
    pub paths: Vec<PathBuf>,
    /// Default memory limit of a port in bytes.
    memory: u64,
    doorbell_shift: u8,
    withheld: Features,
    scenario: Scenario,
    events: KeptEvents,
    captures: KeptCaptures,
    /// Transport features to offer in addition to those that are always offered.
    more: Features,
}

/// A port and the server of its vfio-user socket. Dropping this value ends the port's threads.
pub struct ServedPort {
    /// Server of the port's vfio-user socket.
    pub server: Handle,
    pub hca: Arc<Hca>,
    frames: EnginePort,
}

impl Host {
    /// Starts the switch and the workers. The workers run on the CPUs `dedicated`, if there are
    /// any. `groups` has the isolation group of each port in `args`. Returns the ports of the
    /// switch in the order of the ports in `args`.
    pub fn start(
        args: &Args,
        dedicated: Vec<usize>,
        groups: &[u32],
        former: &Former,
    ) -> Result<(Self, Vec<EnginePort>)> {
        let ports = args.ports.iter().zip(groups);
        let (switch, engines) = Switch::start(vswitch::Config {
            ports: ports
                .map(|(port, group)| switch_port(port, *group, args.sockets.access(port)))
                .collect(),
            spare_ports: args.spare_ports(),
            port_captures: if args.ctl.is_some() {
                kept_captures::PLACES
            } else {
                0
            },
            uplinks: args.uplinks.clone(),
            access: args.uplink_access(),
            pcap: args.pcap.clone(),
            pcap_goes_on: former.is_any,
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
        let pool = ServerPool::new(args.most_ports(), former.records.clone());
        let pool = pool.context("can't start the threads of ports")?;
        // Devices may be taken over from the last engine: their ports wait for each other.
        pool.sockets.close();
        pool.services.close();
        runtime.hold(Instant::now());
        let withheld = args.withheld.iter();
        let host = Self {
            runtime,
            switch,
            pool,
            most_ports: args.most_ports(),
            paths: args.paths().map(Path::to_owned).collect(),
            memory: args.memory,
            doorbell_shift: args.doorbell_stride,
            scenario: args.chaos.clone().unwrap_or_default(),
            events: former.events.clone(),
            captures: former.captures.clone(),
            withheld: withheld.fold(Features::NONE, |all, features| all.union(*features)),
            more: if args.order_platform {
                Features(1 << F_ORDER_PLATFORM)
            } else {
                Features::NONE
            },
        };
        Ok((host, engines))
    }

    /// Starts to serve `port`, which is in isolation group `group`: its device at `listener`, and
    /// its RoCE frames at the port `frames` of the switch.
    pub fn serve(
        &self,
        port: &PortArgs,
        group: u32,
        listener: Listener,
        frames: EnginePort,
    ) -> Result<ServedPort> {
        let space = Arc::new(DmaSpace::with_limit(port.most_guest_memory()));
        let ring = self.events.ring(&port.name);
        // All engines record times since the host has started.
        let start = Epoch::of_boot().instant(0);
        let mut config = HcaConfig {
            more_macs: port.more_macs.iter().map(|mac| mac.0).collect(),
            addresses: port.addresses.clone(),
            speed: port.speed,
            rates: port.rates,
            group,
            recorder: Arc::new(Recorder::new(
                &port.name,
                ring.unwrap_or_else(|| Ring::own(EVENTS)),
                start.unwrap_or_else(Instant::now),
            )),
            scenario: self.scenario.clone(),
            ..HcaConfig::new(port.mac.0)
        };
        config.limits.memory = port.memory.unwrap_or(self.memory);
        config.limits.doorbell_shift = self.doorbell_shift;
        let mut withheld = self.withheld;
        for lack in self.scenario.of_device(&port.name) {
            match lack {
                What::Lack(feature) => withheld = withheld.union(Features::of(&[feature])),
                What::Limit(limit, most) => config.lower(limit, most),
                _ => {}
            }
        }
        let device = RdmaDevice::new(
            config,
            withheld,
            self.more,
            space.clone(),
            &self.runtime,
            frames.clone(),
        );
        let hca = device.hca().clone();
        let server = listener
            .start(&port.name, Arc::new(device), space, &self.pool)
            .with_context(|| format!("port {}: can't start its threads", port.name))?;
        tracing::info!(port = port.name, mac = %port.mac, "listens at {}", port.vfio.display());
        if let Err(error) = self.resume_capture(&port.name, &frames) {
            tracing::warn!(port = port.name, "the capture does not go on: {error:#}");
        }
        Ok(ServedPort {
            server,
            hca,
            frames,
        })
    }

    /// Serves a port that is added to the running daemon, at these sockets.
    pub fn add(&self, port: &PortArgs, group: u32, sockets: PortSockets) -> Result<ServedPort> {
        let memory = port.memory.unwrap_or(self.memory);
        ensure!(
            memory <= self.memory,
            "memory={} is more than the {} that were set aside for a port that is added (--memory)",
            mib(memory),
            mib(self.memory)
        );
        let PortSockets {
            vfio: (listener, path),
            net,
        } = sockets;
        let listener = Listener::from_parts(listener, path, port.user)?;
        // Another process has made the sockets.
        let access = Access {
            user: port.user,
            ..Access::default()
        };
        let frames = self
            .switch
            .add_port(switch_port(port, group, access), net)?;
        let served = self.serve(port, group, listener, frames.clone());
        if served.is_err() {
            self.events.forget(&port.name);
            self.switch.remove_port(&frames)?;
        }
        served
    }

    /// Lets all threads go on that are held.
    pub fn release(&self) {
        self.switch.release();
        self.runtime.release();
        self.pool.services.open();
        self.pool.sockets.open();
    }

    /// Captures the frames of the port `name` to the file whose descriptor is in `fds`.
    pub fn capture(&self, name: &str, port: &ServedPort, fds: Vec<OwnedFd>) -> Result<()> {
        let [file] = <[OwnedFd; 1]>::try_from(fds)
            .map_err(|fds| anyhow!("a capture comes with one descriptor, not {}", fds.len()))?;
        let output = self.captures.begin(name, File::from(file))?;
        self.captures_to(output, &port.frames)
    }

    /// Goes on with the capture that the last engine had of the port `name`.
    fn resume_capture(&self, name: &str, frames: &EnginePort) -> Result<()> {
        match self.captures.resume(name)? {
            Some(output) => self.captures_to(output, frames),
            None => Ok(()),
        }
    }

    fn captures_to(&self, output: Output, frames: &EnginePort) -> Result<()> {
        let begun = output.begun;
        Ok(self.switch.capture(frames, output, begun)?)
    }

    pub fn end_capture(&self, port: &ServedPort) -> Result<Captured> {
        let captured = self.switch.end_capture(&port.frames)?;
        captured.context("no capture is running, or its reader has gone")
    }

    /// Ends a port. Other ports are not affected.
    pub fn remove(&self, port: ServedPort) -> Result<()> {
        let ServedPort {
            server,
            hca,
            frames,
        } = port;
        drop(server);
        // Detached explicitly: if the client blocks a thread of the port, this thread still holds
        // the device.
        hca.detach();
        self.events.forget(hca.recorder().port());
        Ok(self.switch.remove_port(&frames)?)
    }
}

pub fn make_sockets(port: &PortArgs, sockets: &SocketArgs) -> Result<PortSockets> {
    let access = sockets.access(port);
    // With a broker, the creation of each socket registers errands. The daemon relies on this
    // order: it determines the numbers of the errands.
    let vfio = sockets::listen(&port.vfio, &access)?;
    let net = port.net.as_ref();
    let net = net.map(|path| sockets::listen(path, &access));
    let net = net
        .transpose()
        .context("can't make the network socket of the port")?;
    Ok(PortSockets { vfio, net })
}

/// The sockets of a port that another process has made.
pub fn passed_sockets(port: &PortArgs, fds: Vec<OwnedFd>) -> Result<PortSockets> {
    Ok(PortSockets::of(fds, &port.vfio, port.net.as_deref())?)
}

fn switch_port(port: &PortArgs, group: u32, access: Access) -> PortConfig {
    PortConfig {
        name: port.name.clone(),
        mac: port.mac.0,
        more_macs: port.more_macs.iter().map(|mac| mac.0).collect(),
        net: port.net.clone(),
        access,
        addresses: port.addresses.clone(),
        net_roce: port.net_roce,
        group,
    }
}
