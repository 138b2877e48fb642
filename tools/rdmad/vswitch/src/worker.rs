// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The thread that moves the frames.

use std::io;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use roce::frame::MAX_FRAME;
use roce::net::{is_roce, Mac};
use roce::{Frame, FramePool};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::Timespec;
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use crate::engine::{Doorbell, Engine};
use crate::fault::{FaultPlan, Injector};
use crate::link::{self, Link, Sent};
use crate::pcap::PcapWriter;
use crate::stats::Counters;
use crate::table::Table;

/// Frames that are taken from one source before the next has its turn.
const BATCH: usize = 64;
/// How soon a full socket is tried again.
const RETRY: Duration = Duration::from_micros(100);
/// How long captured frames stay in memory when nothing happens.
const FLUSH: Duration = Duration::from_millis(100);

/// A virtual machine.
pub(crate) struct Port {
    pub(crate) mac: Mac,
    pub(crate) net: Option<Link>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) counters: Arc<Counters>,
}

/// An uplink.
pub(crate) struct UplinkPort {
    pub(crate) link: Link,
    pub(crate) counters: Arc<Counters>,
}

/// Where a frame comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Net(usize),
    Engine(usize),
    Uplink(usize),
}

impl Origin {
    const fn port(self) -> Option<usize> {
        match self {
            Self::Net(port) | Self::Engine(port) => Some(port),
            Self::Uplink(_) => None,
        }
    }
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Nowhere,
    Net(usize),
    Engine(usize),
    Uplink(usize),
    /// To all uplinks, `also_nets` and the network interfaces, but not back.
    Flood {
        from: Origin,
        also_nets: bool,
    },
}

/// The thread's state.
pub(crate) struct Worker {
    epoll: OwnedFd,
    doorbell: Arc<Doorbell>,
    pcap: Option<PcapWriter>,
    injector: Option<Injector<Route>>,
    fabric: Fabric,
    /// Into which the next frame of a link is read.
    spare: Frame,
}

/// The part that delivers; apart, since the injector calls it.
struct Fabric {
    ports: Vec<Port>,
    uplinks: Vec<UplinkPort>,
    table: Table,
    pool: FramePool,
    /// Engines that got frames in this round.
    touched: Vec<bool>,
}

const DOORBELL: u64 = u64::MAX;

impl Worker {
    pub(crate) fn new(
        ports: Vec<Port>,
        uplinks: Vec<UplinkPort>,
        pcap: Option<PcapWriter>,
        faults: Option<FaultPlan>,
        doorbell: Arc<Doorbell>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let watch = |source: u64, fd: &dyn rustix::fd::AsFd| {
            epoll::add(
                &epoll,
                fd.as_fd(),
                EventData::new_u64(source),
                EventFlags::IN,
            )
        };
        watch(DOORBELL, &doorbell)?;
        let nets = ports
            .iter()
            .enumerate()
            .filter_map(|(at, port)| Some((at, port.net.as_ref()?)));
        let links = uplinks
            .iter()
            .enumerate()
            .map(|(at, uplink)| (ports.len() + at, &uplink.link));
        for (source, link) in nets.chain(links) {
            watch(source as u64, link)?;
        }
        let pool = link::pool(ports.len() + uplinks.len());
        let spare = pool.take(MAX_FRAME).ok_or(Errno::NOMEM)?;
        let touched = vec![false; ports.len()];
        let fabric = Fabric {
            ports,
            uplinks,
            table: Table::default(),
            pool,
            touched,
        };
        Ok(Self {
            epoll,
            doorbell,
            pcap,
            injector: faults.map(Injector::new),
            fabric,
            spare,
        })
    }

    /// Moves frames until the switch stops.
    pub(crate) fn run(mut self) {
        let mut more = false;
        let mut captured = false;
        let mut events = Vec::with_capacity(64);
        while !self.doorbell.is_stopping() {
            let timeout = self.timeout(more, captured);
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!("the switch stops: {error}");
                    break;
                }
            }
            if events.is_empty() && captured && !more {
                self.flush();
                captured = false;
            }
            more = false;
            for event in &events {
                match event.data.u64() {
                    DOORBELL => self.doorbell.answer(),
                    // Sources are indices of ports and uplinks.
                    source => self.drain_link(source as usize),
                }
            }
            for port in 0..self.fabric.ports.len() {
                more |= self.drain_engine(port);
            }
            let now = Instant::now();
            if let Some(injector) = &mut self.injector {
                injector.release(now, &mut |route, frame| self.fabric.deliver(route, frame));
            }
            self.fabric.retry();
            self.fabric.notify();
            captured |= self.pcap.is_some() && (more || !events.is_empty());
        }
        self.flush();
        for counters in self.fabric.counters() {
            tracing::debug!("{:?}", counters.snapshot());
        }
    }

    /// How long nothing needs to be done.
    fn timeout(&self, more: bool, captured: bool) -> Option<Timespec> {
        if more {
            return Some(Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            });
        }
        let retry = self.fabric.is_waiting().then_some(RETRY);
        let flush = captured.then_some(FLUSH);
        let held = self.injector.as_ref().and_then(Injector::deadline);
        let held = held.map(|at| at.saturating_duration_since(Instant::now()));
        let wait = retry.into_iter().chain(flush).chain(held).min()?;
        Timespec::try_from(wait).ok()
    }

    fn flush(&mut self) {
        if let Some(Err(error)) = self.pcap.as_mut().map(PcapWriter::flush) {
            self.end_capture(error);
        }
    }

    fn end_capture(&mut self, error: io::Error) {
        tracing::error!("the capture ends: {error}");
        self.pcap = None;
    }

    /// Takes frames from a link.
    fn drain_link(&mut self, source: usize) {
        let ports = self.fabric.ports.len();
        for _ in 0..BATCH {
            let (origin, link) = match source.checked_sub(ports) {
                None => (Origin::Net(source), self.fabric.ports[source].net.as_ref()),
                Some(at) => (Origin::Uplink(at), Some(&self.fabric.uplinks[at].link)),
            };
            let received = link.map_or(Ok(None), |link| link.receive(&mut self.spare));
            match received {
                Ok(None) => return,
                Ok(Some(len)) if link::is_valid_length(len) => {
                    // Every frame gets a buffer of its own; when there is none, its contents are dropped.
                    match self.fabric.pool.take(MAX_FRAME) {
                        Some(next) => {
                            let mut frame = mem::replace(&mut self.spare, next);
                            frame.truncate(len);
                            self.take(origin, frame);
                        }
                        None => self.fabric.counters_of(origin).dropped.add_one(),
                    }
                }
                Ok(Some(_)) => self.fabric.counters_of(origin).refused.add_one(),
                // What an earlier frame met, such as a peer that is not there.
                Err(error) => tracing::trace!("{}: {error}", self.fabric.counters_of(origin).name),
            }
        }
    }

    /// Takes frames from an engine. True if it has more.
    fn drain_engine(&mut self, port: usize) -> bool {
        for _ in 0..BATCH {
            let Some(frame) = self.fabric.ports[port].engine.next() else {
                return false;
            };
            if link::is_valid_length(frame.len()) {
                self.take(Origin::Engine(port), frame);
            } else {
                self.fabric.ports[port].counters.refused.add_one();
            }
        }
        self.fabric.ports[port].engine.has_more()
    }

    /// Takes a frame: filter, learn, capture, faults, delivery.
    fn take(&mut self, origin: Origin, frame: Frame) {
        let now = Instant::now();
        if !self.fabric.admit(origin, &frame, now) {
            self.fabric.counters_of(origin).refused.add_one();
            return;
        }
        self.fabric.counters_of(origin).received.add_one();
        if let Some(pcap) = &mut self.pcap {
            if let Err(error) = pcap.write(&frame, SystemTime::now()) {
                self.end_capture(error);
            }
        }
        let roce = is_roce(&frame);
        let route = self.fabric.route(origin, &frame, roce, now);
        if route == Route::Nowhere {
            self.fabric.counters_of(origin).no_route.add_one();
            return;
        }
        let engines = matches!(origin, Origin::Engine(_)) || matches!(route, Route::Engine(_));
        match &mut self.injector {
            Some(injector) if roce && engines => {
                injector.pass(route, frame, now, &mut |route, frame| {
                    self.fabric.deliver(route, frame)
                });
            }
            _ => self.fabric.deliver(route, frame),
        }
    }
}

impl Fabric {
    fn counters(&self) -> impl Iterator<Item = &Counters> {
        let ports = self.ports.iter().map(|port| &*port.counters);
        ports.chain(self.uplinks.iter().map(|uplink| &*uplink.counters))
    }

    fn counters_of(&self, origin: Origin) -> &Counters {
        match origin {
            Origin::Net(port) | Origin::Engine(port) => &self.ports[port].counters,
            Origin::Uplink(at) => &self.uplinks[at].counters,
        }
    }

    fn port_of(&self, mac: &Mac) -> Option<usize> {
        self.ports.iter().position(|port| port.mac == *mac)
    }

    /// Whether a frame has a source address that may come from there; learns those of uplinks.
    fn admit(&mut self, origin: Origin, frame: &[u8], now: Instant) -> bool {
        let Some(source) = address(frame, 6) else {
            return false;
        };
        match origin {
            Origin::Net(port) | Origin::Engine(port) => source == self.ports[port].mac,
            Origin::Uplink(at) => {
                // An address of ours from outside is forged, or our own frame on its way round a loop.
                let valid =
                    !is_multicast(&source) && source != [0; 6] && self.port_of(&source).is_none();
                if valid {
                    self.table.learn(source, at, now);
                }
                valid
            }
        }
    }

    fn route(&self, origin: Origin, frame: &[u8], roce: bool, now: Instant) -> Route {
        let Some(destination) = address(frame, 0) else {
            return Route::Nowhere;
        };
        if is_multicast(&destination) {
            return Route::Flood {
                from: origin,
                also_nets: true,
            };
        }
        if let Some(port) = self.port_of(&destination) {
            // To itself a virtual machine sends over its engine alone; its network interface has a loopback.
            return match origin {
                Origin::Net(from) if from == port => Route::Nowhere,
                _ if roce => Route::Engine(port),
                Origin::Engine(from) if from == port => Route::Nowhere,
                _ if self.ports[port].net.is_some() => Route::Net(port),
                _ => Route::Nowhere,
            };
        }
        match self.table.find(&destination, now) {
            Some(at) if origin == Origin::Uplink(at) => Route::Nowhere,
            Some(at) => Route::Uplink(at),
            None => {
                let others = (0..self.uplinks.len()).any(|at| origin != Origin::Uplink(at));
                if others {
                    Route::Flood {
                        from: origin,
                        also_nets: false,
                    }
                } else {
                    Route::Nowhere
                }
            }
        }
    }

    fn deliver(&mut self, route: Route, frame: Frame) {
        match route {
            Route::Nowhere => {}
            Route::Net(port) => self.send_net(port, &frame),
            Route::Engine(port) => {
                let target = &self.ports[port];
                if target.engine.deliver(frame) {
                    target.counters.sent.add_one();
                    self.touched[port] = true;
                } else {
                    target.counters.dropped.add_one();
                }
            }
            Route::Uplink(at) => self.send_uplink(at, &frame),
            Route::Flood { from, also_nets } => {
                for port in 0..self.ports.len() {
                    if also_nets && from.port() != Some(port) {
                        self.send_net(port, &frame);
                    }
                }
                for at in 0..self.uplinks.len() {
                    if from != Origin::Uplink(at) {
                        self.send_uplink(at, &frame);
                    }
                }
            }
        }
    }

    fn send_net(&mut self, port: usize, frame: &[u8]) {
        let Port { net, counters, .. } = &mut self.ports[port];
        if let Some(link) = net {
            count(link.send(frame, &self.pool), counters);
        }
    }

    fn send_uplink(&mut self, at: usize, frame: &[u8]) {
        let UplinkPort { link, counters } = &mut self.uplinks[at];
        count(link.send(frame, &self.pool), counters);
    }

    fn links(&mut self) -> impl Iterator<Item = (&mut Link, &Counters)> {
        let nets = self
            .ports
            .iter_mut()
            .filter_map(|port| Some((port.net.as_mut()?, &*port.counters)));
        nets.chain(
            self.uplinks
                .iter_mut()
                .map(|uplink| (&mut uplink.link, &*uplink.counters)),
        )
    }

    fn is_waiting(&self) -> bool {
        self.ports
            .iter()
            .any(|port| port.net.as_ref().is_some_and(Link::is_waiting))
            || self.uplinks.iter().any(|uplink| uplink.link.is_waiting())
    }

    /// Tries full sockets again.
    fn retry(&mut self) {
        for (link, counters) in self.links() {
            for _ in 0..link.retry() {
                counters.dropped.add_one();
            }
        }
    }

    /// Tells engines that frames have come.
    fn notify(&mut self) {
        for (port, touched) in self.ports.iter().zip(&mut self.touched) {
            if mem::take(touched) {
                port.engine.notify();
            }
        }
    }
}

fn count(sent: Sent, counters: &Counters) {
    match sent {
        Sent::Done => counters.sent.add_one(),
        Sent::Dropped => counters.dropped.add_one(),
    }
}

fn address(frame: &[u8], at: usize) -> Option<Mac> {
    frame.get(at..)?.first_chunk().copied()
}

const fn is_multicast(mac: &Mac) -> bool {
    mac[0] & 1 != 0
}
