// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Setting the switch up and stopping it.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use budget::CallClock;
use parking_lot::Mutex;
use roce::net::Mac;
use sandbox::{Kind, Pulse, Reserve};
use sockets::{Access, SocketPath};
use thiserror::Error;

use crate::calls::Calls;
use crate::changes::{Change, ChangeRequests, ChangeResult};
use crate::engine_queues::{EnginePort, EngineQueues};
use crate::event_loop::EventLoop;
use crate::fault::FaultPlan;
use crate::forwarder::{Forwarder, SwitchPort, UplinkPort};
use crate::groups::Groups;
use crate::index::PortIndex;
use crate::link::{Link, Uplink};
use crate::neighbours::Neighbours;
use crate::pcap::{Captured, PcapWriter};
use crate::stats::{FrameCounters, Stats};
use crate::waker::Waker;

/// A port of the switch: one virtual machine.
#[derive(Clone, Debug, Default)]
pub struct PortConfig {
    /// Name in logs and counters.
    pub name: String,
    /// MAC address of the VM, unicast.
    pub mac: Mac,
    /// Additional MAC addresses of the VM's network interface, unicast. RoCE is sent only with
    /// `mac`.
    pub more_macs: Vec<Mac>,
    /// Path of the socket of the VM's network interface, if it has one. QEMU connects to it.
    pub net: Option<PathBuf>,
    /// Users who may connect to this socket.
    pub access: Access,
    /// The only IP addresses that the network interface may claim. If empty, it may claim any
    /// address that no other port has.
    pub addresses: Vec<IpAddr>,
    /// Whether RoCE from the network interface is forwarded. RoCE from the engine always is.
    pub net_roce: bool,
    /// Isolation group: ports of different groups can't send frames to one another. Uplinks are in
    /// all groups.
    pub group: u32,
}

/// An uplink, and the kind of network behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkConfig {
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
    /// Number of ports that can be [added](Switch::add_port) later.
    pub spare_ports: usize,
    /// Maximum number of ports whose frames are [captured](Switch::capture) at a time.
    pub port_captures: usize,
    /// Uplinks to other switches and hosts.
    pub uplinks: Vec<UplinkConfig>,
    /// Users who may send to the Unix sockets of uplinks.
    pub access: Access,
    /// Path of a capture file to write.
    pub pcap: Option<PathBuf>,
    /// Whether another process has begun the capture. Otherwise the file must not exist.
    pub pcap_goes_on: bool,
    /// Faults to inject.
    pub faults: Option<FaultPlan>,
}

/// Why a switch could not be set up.
#[derive(Debug, Error)]
pub enum Error {
    /// The socket of a network interface can't be opened.
    #[error("can't open the network socket of port {0}: {1}")]
    Net(String, #[source] io::Error),
    /// No index is free for another port.
    #[error("no room for another port")]
    Full,
    /// The frames of a port are captured already.
    #[error("a capture of the port is running already")]
    Captured,
    /// An uplink can't be opened.
    #[error("can't open uplink {0:?}: {1}")]
    Uplink(Uplink, #[source] io::Error),
    /// The capture file can't be created.
    #[error("can't create capture file {path}: {source}", path = path.display())]
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
    calls: Arc<Calls>,
    groups: Arc<Groups>,
    thread: Option<JoinHandle<()>>,
    shared: SharedTable,
    changes: Arc<ChangeRequests>,
    /// Spare threads that write captures of single ports.
    writers: Reserve,
}

/// Data about ports and uplinks for other threads than the switch's thread.
#[derive(Debug)]
pub(crate) struct SharedTable {
    /// Engine queues of the ports, by their index.
    ports: Mutex<Vec<Option<Arc<EngineQueues>>>>,
    uplinks: Vec<Arc<FrameCounters>>,
    groups: Mutex<HashMap<u32, Arc<Neighbours>>>,
    /// Whether engines deliver frames to each other without the switch's thread. With a capture or
    /// faults, all frames pass through this thread.
    direct: bool,
}

impl Switch {
    /// Opens all sockets and files and starts the thread. The engine ports are in the order of the
    /// configured ports.
    pub fn start(config: Config) -> Result<(Self, Vec<EnginePort>), Error> {
        let captures = config.port_captures;
        let SwitchParts {
            event_loop,
            waker,
            calls,
            groups,
            shared,
            changes,
            engines,
        } = SwitchParts::open(config, Instant::now(), CallClock::system)?;
        let thread = sandbox::spawn(Kind::Switch, "vswitch", move || event_loop.run())?;
        let switch = Self {
            waker,
            calls,
            groups,
            thread: Some(thread),
            shared,
            changes,
            writers: Reserve::new(Kind::Capture, captures),
        };
        Ok((switch, engines))
    }

    /// Adds a port while the switch runs. `net` is the listening socket of its network interface,
    /// so the path in `config` is not used.
    ///
    /// # Errors
    ///
    /// No index is free, or epoll can't watch the socket.
    pub fn add_port(
        &self,
        config: PortConfig,
        net: Option<(UnixListener, SocketPath)>,
    ) -> Result<EnginePort, Error> {
        let no_net = |error| Error::Net(config.name.clone(), error);
        let link = |socket| Link::of_net(socket, config.access.user, CallClock::system());
        let net = net.map(link).transpose().map_err(no_net)?;
        let mut ports = self.shared.ports.lock();
        let index = ports.iter().position(Option::is_none).ok_or(Error::Full)?;
        let engine = engine_of(&config, &self.calls, &self.groups, PortIndex(index));
        let port = SwitchPort::new(&config, net, engine.clone());
        let addresses = config.addresses.clone();
        let change = Change::Occupy(PortIndex(index), Box::new(port), addresses);
        self.changes.give(change, &self.waker).map_err(no_net)?;
        ports[index] = Some(engine.clone());
        drop(ports);
        Ok(self.shared.introduce(config.mac, config.group, engine))
    }

    /// Removes a port. Its engine must not send frames any more. Later frames to its address are
    /// treated like frames to an unknown address.
    ///
    /// # Errors
    ///
    /// The switch has ended.
    pub fn remove_port(&self, port: &EnginePort) -> Result<(), Error> {
        port.neighbours.remove(&port.mac, &port.engine);
        // The next port with the index has joined no addresses.
        port.engine.joined().end();
        let mut ports = self.shared.ports.lock();
        let Some(index) = index_of(&ports, port) else {
            return Ok(());
        };
        let left = self.changes.give(Change::Vacate(index), &self.waker)?;
        ports[index.0] = None;
        drop(ports);
        port.engine.close();
        if let ChangeResult::Port(left) = left {
            // Dropping the port closes its sockets and removes their paths.
            left.capture.map(PcapWriter::finish);
        }
        Ok(())
    }

    /// Captures each accepted frame from or to a port once, after the source filter and before
    /// faults, and writes it to `out`. If the reader of `out` is too slow, frames are left out.
    /// Data that engines copy from memory to memory is not captured, because it has no frames. If
    /// another process has `begun` the capture, `out` has its header and so many frames.
    ///
    /// # Errors
    ///
    /// The port is captured already, or the maximum number of captures is running.
    pub fn capture(
        &self,
        port: &EnginePort,
        out: impl io::Write + Send + 'static,
        begun: Option<u64>,
    ) -> Result<(), Error> {
        if port.engine.is_watched() {
            return Err(Error::Captured);
        }
        let name = &port.engine.counters().name;
        let writer = PcapWriter::new_in(&self.writers, name, out, begun)?;
        self.set_capture(port, Some(writer))?;
        Ok(())
    }

    /// Ends the capture of a port, if there is one.
    ///
    /// # Errors
    ///
    /// The switch has ended.
    pub fn end_capture(&self, port: &EnginePort) -> Result<Option<Captured>, Error> {
        Ok(self.set_capture(port, None)?.map(PcapWriter::finish))
    }

    fn set_capture(
        &self,
        port: &EnginePort,
        capture: Option<PcapWriter>,
    ) -> Result<Option<PcapWriter>, Error> {
        let ports = self.shared.ports.lock();
        let Some(index) = index_of(&ports, port) else {
            return Ok(None);
        };
        match self
            .changes
            .give(Change::Capture(index, capture), &self.waker)?
        {
            ChangeResult::Capture(before) => Ok(Some(before)),
            ChangeResult::Nothing | ChangeResult::Port(_) => Ok(None),
        }
    }

    /// Counters of all ports, in the order of their indices, then of all uplinks.
    pub fn stats(&self) -> Vec<Stats> {
        self.shared.stats()
    }

    /// Lets the switch's thread begin no round, and waits until it is not within one. Returns false
    /// if it still is at `deadline`. Frames stay where they are.
    pub fn hold(&self, deadline: Instant) -> bool {
        self.waker.gate.close();
        self.waker.wake();
        self.waker.gate.holds_all(deadline)
    }

    /// Lets the thread go on after [`hold`](Self::hold).
    pub fn release(&self) {
        self.waker.gate.open();
    }

    /// The rounds of the switch's thread.
    pub fn pulse(&self) -> &Pulse {
        &self.waker.pulse
    }
}

/// The index of a port; `None` if the port was removed.
fn index_of(ports: &[Option<Arc<EngineQueues>>], port: &EnginePort) -> Option<PortIndex> {
    let is_there = |entry: &Option<Arc<EngineQueues>>| {
        let engine = entry.as_ref();
        engine.is_some_and(|engine| Arc::ptr_eq(engine, &port.engine))
    };
    ports.iter().position(is_there).map(PortIndex)
}

fn engine_of(
    port: &PortConfig,
    calls: &Arc<Calls>,
    groups: &Arc<Groups>,
    index: PortIndex,
) -> Arc<EngineQueues> {
    let counters = named(port.name.clone());
    let engine = EngineQueues::new(calls.clone(), groups.clone(), index, counters);
    Arc::new(engine)
}

fn named(name: String) -> Arc<FrameCounters> {
    Arc::new(FrameCounters {
        name,
        ..FrameCounters::default()
    })
}

impl SharedTable {
    /// The present values of the counters of all ports, then of all uplinks.
    pub(crate) fn stats(&self) -> Vec<Stats> {
        let ports = self.ports.lock();
        let ports = ports.iter().flatten();
        let ports = ports.map(|engine| engine.counters().snapshot(engine.incoming()));
        let uplinks = self.uplinks.iter().map(|counters| counters.snapshot(0));
        ports.chain(uplinks).collect()
    }

    /// Adds an engine to the list of its isolation group, and makes its port.
    fn introduce(&self, mac: Mac, group: u32, engine: Arc<EngineQueues>) -> EnginePort {
        let neighbours = if self.direct {
            let mut groups = self.groups.lock();
            // The list of a group without ports is removed.
            groups.retain(|_, neighbours| Arc::strong_count(neighbours) > 1);
            let neighbours = groups.entry(group).or_default().clone();
            drop(groups);
            neighbours.add(&mac, engine.clone());
            neighbours
        } else {
            Arc::default()
        };
        EnginePort {
            mac,
            engine,
            neighbours,
        }
    }
}

/// Parts of a switch. The caller runs the rounds of its event loop.
pub(crate) struct SwitchParts {
    pub(crate) event_loop: EventLoop,
    pub(crate) waker: Arc<Waker>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) shared: SharedTable,
    pub(crate) changes: Arc<ChangeRequests>,
    /// Engine ports, in the order of the configured ports.
    pub(crate) engines: Vec<EnginePort>,
}

impl SwitchParts {
    /// Opens all sockets and files at `now`. System calls for each network interface are measured
    /// by a new `clock`.
    pub(crate) fn open(
        config: Config,
        now: Instant,
        clock: impl Fn() -> CallClock,
    ) -> Result<Self, Error> {
        let waker = Arc::new(Waker::new().map_err(io::Error::from)?);
        let max_ports = config.ports.len() + config.spare_ports;
        let calls = Arc::new(Calls::new(waker.clone(), max_ports));
        let groups = Arc::<Groups>::default();
        let mut ports = Vec::new();
        let mut uplinks = Vec::new();
        for (index, port) in config.ports.into_iter().enumerate() {
            let open = |path: &PathBuf| {
                let socket = sockets::listen(path, &port.access).map_err(io::Error::other)?;
                Link::of_net(socket, port.access.user, clock())
            };
            let net = port.net.as_ref().map(open).transpose();
            let net = net.map_err(|error| Error::Net(port.name.clone(), error))?;
            let engine = engine_of(&port, &calls, &groups, PortIndex(index));
            ports.push((SwitchPort::new(&port, net, engine), port.addresses));
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
                let writer = match config.pcap_goes_on {
                    true => PcapWriter::resume(&path),
                    false => PcapWriter::create(&path),
                };
                Some(writer.map_err(|source| Error::Pcap { path, source })?)
            }
            None => None,
        };
        let engines = ports.iter().map(|(port, _)| Some(port.engine.clone()));
        let spare = (0..config.spare_ports).map(|_| None);
        let shared = SharedTable {
            ports: Mutex::new(engines.chain(spare).collect()),
            uplinks: uplinks
                .iter()
                .map(|uplink| uplink.counters.clone())
                .collect(),
            groups: Mutex::default(),
            direct: pcap.is_none() && config.faults.is_none(),
        };
        let engines = ports
            .iter()
            .map(|(port, _)| shared.introduce(port.mac, port.group, port.engine.clone()))
            .collect();
        let changes = Arc::<ChangeRequests>::default();
        let event_loop = EventLoop::new(
            Forwarder::new(
                ports,
                uplinks,
                calls.clone(),
                groups.clone(),
                config.spare_ports,
            ),
            pcap,
            config.faults,
            waker.clone(),
            changes.clone(),
            now,
        )?;
        Ok(Self {
            event_loop,
            waker,
            calls,
            groups,
            shared,
            changes,
            engines,
        })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.waker.stop();
        if let Some(thread) = self.thread.take() {
            // The thread ends, since the waker's `stop` is set. A panic has already been reported.
            let _ = thread.join();
        }
    }
}
