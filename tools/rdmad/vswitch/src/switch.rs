// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Setting the switch up and stopping it.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use roce::net::Mac;
use sandbox::Kind;
use sockets::Access;
use thiserror::Error;

use crate::addresses::Addresses;
use crate::engine_queues::{EnginePort, EngineQueues, Neighbour};
use crate::event_loop::EventLoop;
use crate::fault::FaultPlan;
use crate::forwarder::{SwitchPort, UplinkPort};
use crate::link::{DatagramPath, Link, Uplink};
use crate::pcap::PcapWriter;
use crate::stats::{Counters, Stats};
use crate::waker::Waker;

/// A port of the switch: one virtual machine.
#[derive(Clone, Debug, Default)]
pub struct PortConfig {
    /// Name in logs and counters.
    pub name: String,
    /// MAC address of the VM, unicast.
    pub mac: Mac,
    /// Sockets of the VM's network interface, if it has one.
    pub net: Option<DatagramPath>,
    /// The only IP addresses that the network interface may claim. If empty, it may claim any
    /// address that no other port has.
    pub addresses: Vec<IpAddr>,
    /// Whether RoCE from the network interface is forwarded. RoCE from the engine always is.
    pub net_roce: bool,
    /// Isolation group: ports of different groups do not reach one another. Uplinks are in all
    /// groups.
    pub group: u32,
}

/// An uplink, and the kind of network behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkConfig {
    /// The link.
    pub link: Uplink,
    /// Whether routers may be behind the uplink. The source MAC address of a RoCE packet may then
    /// not be its sender's.
    pub routed: bool,
}

impl From<Uplink> for UplinkConfig {
    fn from(link: Uplink) -> Self {
        Self {
            link,
            routed: false,
        }
    }
}

/// Configuration of the whole switch.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Virtual machines; each has an engine.
    pub ports: Vec<PortConfig>,
    /// Uplinks to other switches and hosts.
    pub uplinks: Vec<UplinkConfig>,
    /// Users who may connect to the Unix sockets.
    pub access: Access,
    /// Path of a capture file to write; it must not exist.
    pub pcap: Option<PathBuf>,
    /// Faults to inject.
    pub faults: Option<FaultPlan>,
}

/// Why a switch could not be set up.
#[derive(Debug, Error)]
pub enum Error {
    /// The sockets of a network interface can't be opened.
    #[error("network of port {0}: {1}")]
    Net(String, #[source] io::Error),
    /// An uplink can't be opened.
    #[error("uplink {0:?}: {1}")]
    Uplink(Uplink, #[source] io::Error),
    /// The capture file can't be created.
    #[error("capture file {path}: {source}", path = path.display())]
    Pcap {
        /// Path of the file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// The process can't get another resource, such as an eventfd or a thread.
    #[error("switch: {0}")]
    Io(#[from] io::Error),
}

/// A running switch. Dropping it stops its thread and completes the capture file.
#[derive(Debug)]
pub struct Switch {
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
    counters: Vec<Arc<Counters>>,
}

impl Switch {
    /// Opens all sockets and files and starts the thread. The engine ports are in the order of the
    /// configured ports.
    pub fn start(config: Config) -> Result<(Self, Vec<EnginePort>), Error> {
        let SwitchParts {
            event_loop,
            waker,
            counters,
            engines,
        } = SwitchParts::open(config, Instant::now())?;
        let thread = sandbox::spawn(Kind::Switch, "vswitch", move || event_loop.run())?;
        let switch = Self {
            waker,
            thread: Some(thread),
            counters,
        };
        Ok((switch, engines))
    }

    /// Counters of all ports, then of all uplinks.
    pub fn stats(&self) -> Vec<Stats> {
        snapshots(&self.counters)
    }
}

/// The present values of counters.
pub(crate) fn snapshots(counters: &[Arc<Counters>]) -> Vec<Stats> {
    let snapshot = |counters: &Arc<Counters>| counters.snapshot();
    counters.iter().map(snapshot).collect()
}

/// Parts of a switch. The caller runs the rounds of its event loop.
pub(crate) struct SwitchParts {
    pub(crate) event_loop: EventLoop,
    pub(crate) waker: Arc<Waker>,
    /// Counters of all ports, then of all uplinks.
    pub(crate) counters: Vec<Arc<Counters>>,
    /// Engine ports, in the order of the configured ports.
    pub(crate) engines: Vec<EnginePort>,
}

impl SwitchParts {
    /// Opens all sockets and files at `now`.
    pub(crate) fn open(config: Config, now: Instant) -> Result<Self, Error> {
        let waker = Arc::new(Waker::new().map_err(io::Error::from)?);
        let named = |name: String| {
            Arc::new(Counters {
                name,
                ..Counters::default()
            })
        };
        let mut ports = Vec::new();
        let mut uplinks = Vec::new();
        let mut addresses = Addresses::default();
        for port in config.ports {
            let counters = named(port.name);
            let net = port
                .net
                .map(|path| Link::open_net(path, &config.access))
                .transpose()
                .map_err(|error| Error::Net(counters.name.clone(), error))?;
            addresses.add(port.mac, &port.addresses);
            let engine = Arc::new(EngineQueues::new(waker.clone(), counters.clone()));
            ports.push(SwitchPort {
                mac: port.mac,
                net,
                net_roce: port.net_roce,
                group: port.group,
                engine,
                counters,
            });
        }
        for UplinkConfig { link, routed } in config.uplinks {
            let counters = named(format!("{link:?}"));
            let link = Link::open(link.clone(), &config.access)
                .map_err(|error| Error::Uplink(link, error))?;
            uplinks.push(UplinkPort {
                link,
                routed,
                counters,
            });
        }
        let pcap = match config.pcap {
            Some(path) => {
                Some(PcapWriter::create(&path).map_err(|source| Error::Pcap { path, source })?)
            }
            None => None,
        };
        // With a capture or faults, all frames pass through the switch's thread, so that they have
        // one order.
        let direct = pcap.is_none() && config.faults.is_none();
        let mut groups: HashMap<u32, Vec<Neighbour>> = HashMap::new();
        for port in ports.iter().filter(|_| direct) {
            groups.entry(port.group).or_default().push(Neighbour {
                mac: port.mac,
                engine: port.engine.clone(),
            });
        }
        let groups: HashMap<u32, Arc<[Neighbour]>> = groups
            .into_iter()
            .map(|(group, neighbours)| (group, neighbours.into()))
            .collect();
        let engines = ports
            .iter()
            .map(|port| EnginePort {
                mac: port.mac,
                engine: port.engine.clone(),
                neighbours: groups.get(&port.group).cloned().unwrap_or_default(),
            })
            .collect();
        let counters = ports
            .iter()
            .map(|port| &port.counters)
            .chain(uplinks.iter().map(|uplink| &uplink.counters))
            .cloned()
            .collect();
        let event_loop = EventLoop::new(
            ports,
            uplinks,
            addresses,
            pcap,
            config.faults,
            waker.clone(),
            now,
        )?;
        Ok(Self {
            event_loop,
            waker,
            counters,
            engines,
        })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.waker.stop();
        if let Some(thread) = self.thread.take() {
            // The thread was told to stop. A panic was reported already.
            let _ = thread.join();
        }
    }
}
