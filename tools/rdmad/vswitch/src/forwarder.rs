// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Forwarding: the filter of source addresses, the choice of destinations, and delivery.

use std::mem;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use roce::net::{carries_roce, Mac};
use roce::{Frame, FramePool};

use crate::address_filter::AddressFilter;
use crate::engine_queues::EngineQueues;
use crate::index::{PortIndex, SourceIndex, UplinkIndex};
use crate::link::{self, Delivery, Link, Sender};
use crate::mac_index::MacIndex;
use crate::mac_table::{Heard, MacTable};
use crate::pcap::PcapWriter;
use crate::stats::FrameCounters;
use crate::switch::PortConfig;
use crate::waker::Waker;

/// Minimum interval between warnings about an address that was seen on two uplinks.
const COMPLAINT: Duration = Duration::from_secs(60);

/// A port of the switch: one virtual machine.
pub(crate) struct SwitchPort {
    pub(crate) mac: Mac,
    pub(crate) net: Option<Link>,
    /// Whether RoCE from `net` is forwarded.
    pub(crate) net_roce: bool,
    /// Number of the isolation group.
    pub(crate) group: u32,
    pub(crate) engine: Arc<EngineQueues>,
    pub(crate) counters: Arc<FrameCounters>,
    /// The capture of the port's frames, if there is one.
    pub(crate) capture: Option<PcapWriter>,
}

/// MAC address of a vacant seat. No frame has this source address or this unicast destination.
const NOBODY: Mac = [0xff; 6];

impl SwitchPort {
    /// A port with this link to its network interface.
    pub(crate) fn new(config: &PortConfig, net: Option<Link>, engine: Arc<EngineQueues>) -> Self {
        Self {
            mac: config.mac,
            net,
            net_roce: config.net_roce,
            group: config.group,
            counters: engine.counters().clone(),
            engine,
            capture: None,
        }
    }

    /// The contents of a vacant seat. `engine` is a dummy.
    pub(crate) fn vacant(engine: Arc<EngineQueues>) -> Self {
        let config = PortConfig {
            mac: NOBODY,
            ..PortConfig::default()
        };
        Self::new(&config, None, engine)
    }
}

/// An uplink of the switch.
pub(crate) struct UplinkPort {
    pub(crate) link: Link,
    /// Whether routers may be behind the uplink.
    pub(crate) routed: bool,
    pub(crate) counters: Arc<FrameCounters>,
}

/// Source of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Net(PortIndex),
    Engine(PortIndex),
    Uplink(UplinkIndex),
}

impl Origin {
    pub(crate) const fn port(self) -> Option<PortIndex> {
        match self {
            Self::Net(port) | Self::Engine(port) => Some(port),
            Self::Uplink(_) => None,
        }
    }
}

/// Destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    Nowhere,
    Net(PortIndex),
    Engine(PortIndex),
    Uplink(UplinkIndex),
    /// All uplinks except the source.
    Uplinks,
    /// All uplinks and network interfaces except the source. With `engines`, also the engines that
    /// have joined the address.
    Multicast {
        engines: bool,
    },
}

/// Source and destination of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forwarding {
    pub(crate) origin: Origin,
    pub(crate) destination: Destination,
}

impl Forwarding {
    /// Whether source or destination is the port.
    pub(crate) fn is_of(&self, port: PortIndex) -> bool {
        let to = match self.destination {
            Destination::Net(to) | Destination::Engine(to) => Some(to),
            _ => None,
        };
        self.origin.port() == Some(port) || to == Some(port)
    }
}

/// All sources and destinations of frames, and the tables that determine the forwarding.
pub(crate) struct Forwarder {
    pub(crate) ports: Vec<SwitchPort>,
    /// The seat of each port, by its MAC address.
    seats: MacIndex<PortIndex>,
    pub(crate) uplinks: Vec<UplinkPort>,
    table: MacTable,
    /// Time of the last warning about an address that was seen on two uplinks.
    complained: Option<Instant>,
    addresses: AddressFilter,
    /// Number of ports whose frames are captured.
    captures: usize,
    /// The dummy engine of vacant seats.
    nobody: Arc<EngineQueues>,
    /// Buffer pools for frames, one for each port, then one for each uplink. With a pool of its
    /// own, no port or uplink can use up the buffers of another one.
    pub(crate) pools: Vec<FramePool>,
    /// For each port, whether frames were delivered to its engine in this round.
    touched: Vec<bool>,
}

impl Forwarder {
    /// A forwarder for these ports and uplinks, with `spare` vacant seats for ports that are added
    /// later.
    pub(crate) fn new(
        given: Vec<(SwitchPort, Vec<IpAddr>)>,
        uplinks: Vec<UplinkPort>,
        waker: &Arc<Waker>,
        spare: usize,
    ) -> Self {
        let nobody = Arc::new(EngineQueues::new(waker.clone(), Arc::default()));
        let seats = given.len() + spare;
        let vacant = |_| SwitchPort::vacant(nobody.clone());
        let mut forwarder = Self {
            ports: (0..seats).map(vacant).collect(),
            seats: MacIndex::default(),
            pools: link::pools(seats, uplinks.len()),
            table: MacTable::new(uplinks.len()),
            touched: vec![false; seats],
            uplinks,
            complained: None,
            captures: 0,
            addresses: AddressFilter::default(),
            nobody,
        };
        for (seat, (port, given)) in given.into_iter().enumerate() {
            forwarder.occupy(PortIndex(seat), port, &given);
        }
        forwarder
    }

    /// Assigns a vacant seat to a port, for which the addresses `given` are configured.
    pub(crate) fn occupy(&mut self, seat: PortIndex, port: SwitchPort, given: &[IpAddr]) {
        self.addresses.add(seat, port.mac, given);
        self.seats.insert(&port.mac, seat);
        self.ports[seat.0] = port;
    }

    /// Removes a port from its seat.
    pub(crate) fn vacate(&mut self, seat: PortIndex) -> SwitchPort {
        self.addresses.remove(seat);
        let capture = self.set_capture(seat, None);
        let vacant = SwitchPort::vacant(self.nobody.clone());
        let port = mem::replace(&mut self.ports[seat.0], vacant);
        self.seats.remove_if(&port.mac, |other| *other == seat);
        SwitchPort { capture, ..port }
    }

    pub(crate) fn counters(&self) -> impl Iterator<Item = &FrameCounters> {
        let ports = self.ports.iter().filter(|port| port.mac != NOBODY);
        let ports = ports.map(|port| &*port.counters);
        ports.chain(self.uplinks.iter().map(|uplink| &*uplink.counters))
    }

    pub(crate) fn counters_of(&self, origin: Origin) -> &FrameCounters {
        match origin {
            Origin::Net(port) | Origin::Engine(port) => &self.ports[port.0].counters,
            Origin::Uplink(at) => &self.uplinks[at.0].counters,
        }
    }

    /// The buffer pool for frames from `origin`. Copies of frames from an engine use the pool of
    /// its port.
    pub(crate) fn pool_of(&self, origin: Origin) -> &FramePool {
        &self.pools[self.source(origin).0]
    }

    /// The source of frames from `origin`: network interface and engine of a port are one source.
    pub(crate) fn source(&self, origin: Origin) -> SourceIndex {
        SourceIndex(match origin {
            Origin::Net(port) | Origin::Engine(port) => port.0,
            Origin::Uplink(at) => self.ports.len() + at.0,
        })
    }

    /// The network interface or uplink whose link has frames of `source`.
    pub(crate) fn origin(&self, SourceIndex(at): SourceIndex) -> Origin {
        match at.checked_sub(self.ports.len()) {
            None => Origin::Net(PortIndex(at)),
            Some(at) => Origin::Uplink(UplinkIndex(at)),
        }
    }

    /// Number of buffers in use: of each engine, then of each network interface, then of each
    /// uplink. A network interface or uplink always has one buffer ready for the next read.
    #[cfg(feature = "testing")]
    pub(crate) fn frames(&self) -> impl Iterator<Item = usize> + '_ {
        let engines = self.ports.iter().map(|port| port.engine.frames());
        engines.chain(self.pools.iter().map(FramePool::in_use))
    }

    /// Number of learned addresses behind uplinks.
    #[cfg(feature = "testing")]
    pub(crate) fn addresses(&self) -> usize {
        self.table.held()
    }

    /// Whether frames from `origin` may be sent to port `to`: `origin` is an uplink or a port of
    /// the same isolation group.
    fn reaches(&self, origin: Origin, to: PortIndex) -> bool {
        let from = origin.port();
        from.is_none_or(|from| self.ports[from.0].group == self.ports[to.0].group)
    }

    /// Whether the frames of any port are captured.
    pub(crate) fn captures(&self) -> bool {
        self.captures > 0
    }

    /// Starts or ends the capture of a port's frames. Returns the previous capture.
    pub(crate) fn set_capture(
        &mut self,
        seat: PortIndex,
        capture: Option<PcapWriter>,
    ) -> Option<PcapWriter> {
        let port = &mut self.ports[seat.0];
        self.captures += usize::from(capture.is_some());
        self.captures -= usize::from(port.capture.is_some());
        port.engine.set_watched(capture.is_some());
        mem::replace(&mut port.capture, capture)
    }

    /// Adds a frame to the captures of its source port and its destination ports.
    pub(crate) fn capture(&mut self, forwarding: Forwarding, frame: &[u8]) {
        let Forwarding {
            origin,
            destination,
        } = forwarding;
        let is_for_all = matches!(destination, Destination::Multicast { .. });
        for seat in (0..self.ports.len()).map(PortIndex) {
            let is_of = forwarding.is_of(seat) || (is_for_all && self.reaches(origin, seat));
            if let Some(capture) = self.ports[seat.0].capture.as_mut().filter(|_| is_of) {
                capture.write(frame, SystemTime::now());
            }
        }
    }

    /// Passes captured frames to the writing threads.
    pub(crate) fn flush_captures(&mut self) {
        for seat in (0..self.ports.len()).map(PortIndex) {
            if let Some(capture) = &mut self.ports[seat.0].capture {
                capture.flush();
                if capture.has_failed() {
                    // The writer has logged the failure.
                    self.set_capture(seat, None);
                }
            }
        }
    }

    /// Whether `origin` may send the frame: its source addresses are valid, and it is not RoCE from
    /// a network interface that must not send RoCE. Learns addresses behind uplinks.
    pub(crate) fn admit(&mut self, origin: Origin, frame: &[u8], now: Instant) -> bool {
        let Some(source) = address(frame, 6) else {
            return false;
        };
        match origin {
            Origin::Net(port) => {
                let SwitchPort { mac, net_roce, .. } = self.ports[port.0];
                source == mac
                    && (net_roce || !carries_roce(frame))
                    && self.addresses.admit(port, frame)
            }
            Origin::Engine(port) => source == self.ports[port.0].mac,
            Origin::Uplink(at) => {
                // A frame from an uplink is forged, or returns through a loop, if its source is the
                // address of a port, or an address that was just seen on another uplink.
                let valid =
                    !is_multicast(&source) && source != [0; 6] && self.seats.get(&source).is_none();
                valid
                    && match self.table.learn(source, at, now) {
                        Heard::There => true,
                        Heard::Elsewhere(other) => {
                            self.complain(source, at, other, now);
                            false
                        }
                    }
            }
        }
    }

    /// Logs that an address was seen on two uplinks, at most once in [`COMPLAINT`].
    fn complain(
        &mut self,
        [a, b, c, d, e, f]: Mac,
        at: UplinkIndex,
        other: UplinkIndex,
        now: Instant,
    ) {
        let recently = |at| now.saturating_duration_since(at) < COMPLAINT;
        if self.complained.is_some_and(recently) {
            return;
        }
        self.complained = Some(now);
        let name = |uplink: UplinkIndex| &self.uplinks[uplink.0].counters.name;
        tracing::warn!(
            "{}: frames from {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x} are dropped: the \
             address is behind {}; check for a loop of both, or a forged address",
            name(at),
            name(other),
        );
    }

    /// Whether frames from `origin` may have passed through a router.
    pub(crate) fn is_routed(&self, origin: Origin) -> bool {
        matches!(origin, Origin::Uplink(at) if self.uplinks[at.0].routed)
    }

    pub(crate) fn destination(
        &self,
        origin: Origin,
        frame: &[u8],
        roce: bool,
        now: Instant,
    ) -> Destination {
        let Some(to) = address(frame, 0) else {
            return Destination::Nowhere;
        };
        if is_multicast(&to) {
            return Destination::Multicast { engines: roce };
        }
        if let Some(&port) = self.seats.get(&to) {
            if !self.reaches(origin, port) {
                return Destination::Nowhere;
            }
            // A frame from a port to itself is delivered only if it is RoCE from the engine. Other
            // frames are dropped: the VM's network stack has its own loopback.
            return match origin {
                Origin::Net(from) if from == port => Destination::Nowhere,
                _ if roce => Destination::Engine(port),
                Origin::Engine(from) if from == port => Destination::Nowhere,
                _ if self.ports[port.0].net.is_some() => Destination::Net(port),
                _ => Destination::Nowhere,
            };
        }
        match self.table.find(&to, now) {
            Some(at) if origin == Origin::Uplink(at) => Destination::Nowhere,
            Some(at) => Destination::Uplink(at),
            None => {
                let mut all = (0..self.uplinks.len()).map(UplinkIndex);
                let others = all.any(|at| origin != Origin::Uplink(at));
                if others {
                    Destination::Uplinks
                } else {
                    Destination::Nowhere
                }
            }
        }
    }

    /// Delivers a frame to its destination.
    pub(crate) fn deliver(&mut self, forwarding: Forwarding, frame: Frame, now: Instant) {
        let Forwarding {
            origin,
            destination,
        } = forwarding;
        let sender = Sender {
            source: self.source(origin),
            is_patient: matches!(origin, Origin::Engine(_)),
        };
        match destination {
            Destination::Nowhere => {}
            Destination::Engine(port) => self.deliver_to_engine(origin, port, Some(frame)),
            Destination::Net(port) => {
                let SwitchPort { net, counters, .. } = &mut self.ports[port.0];
                if let Some(link) = net {
                    count(link.send(frame, sender, now), counters);
                }
            }
            Destination::Uplink(at) => {
                let UplinkPort { link, counters, .. } = &mut self.uplinks[at.0];
                count(link.send(frame, sender, now), counters);
            }
            Destination::Uplinks => self.copy_to_uplinks(origin, &frame, now),
            Destination::Multicast { engines } => {
                if engines {
                    self.copy_to_engines(origin, &frame);
                }
                self.copy_to_nets(origin, &frame, now);
                self.copy_to_uplinks(origin, &frame, now);
            }
        }
    }

    /// Delivers a frame to an engine. `None` if there was no buffer for the frame.
    fn deliver_to_engine(&mut self, from: Origin, port: PortIndex, frame: Option<Frame>) {
        let target = &self.ports[port.0];
        let deliver = |frame| match from {
            Origin::Uplink(_) => target.engine.deliver_from_uplink(frame),
            Origin::Net(_) | Origin::Engine(_) => target.engine.deliver(frame),
        };
        if frame.is_some_and(deliver) {
            target.counters.sent.add_one();
            self.touched[port.0] = true;
        } else {
            target.counters.dropped.add_one();
        }
    }

    /// Copies a multicast frame to the engines that have joined its address. A frame from an engine
    /// is also copied to this engine, which decides which of its QPs receive the datagram. A frame
    /// from a network interface is not copied to the engine of the same port.
    fn copy_to_engines(&mut self, from: Origin, frame: &Frame) {
        let Some(group) = address(frame, 0) else {
            return;
        };
        for at in (0..self.ports.len()).map(PortIndex) {
            if from != Origin::Net(at)
                && self.reaches(from, at)
                && self.ports[at.0].engine.has_joined(&group)
            {
                let copy = self.pool_of(from).copy_of(frame);
                self.deliver_to_engine(from, at, copy);
            }
        }
    }

    fn copy_to_nets(&mut self, from: Origin, frame: &[u8], now: Instant) {
        let (source, pool) = (self.source(from), self.pool_of(from).clone());
        let group = from.port().map(|from| self.ports[from.0].group);
        for (at, port) in self.ports.iter_mut().enumerate() {
            let reached = group.is_none_or(|group| group == port.group);
            if let Some(link) = port.net.as_mut().filter(|_| reached) {
                if from.port() != Some(PortIndex(at)) {
                    count(link.send_copy(frame, source, &pool, now), &port.counters);
                }
            }
        }
    }

    fn copy_to_uplinks(&mut self, from: Origin, frame: &[u8], now: Instant) {
        let (source, pool) = (self.source(from), self.pool_of(from).clone());
        for (at, uplink) in self.uplinks.iter_mut().enumerate() {
            if from != Origin::Uplink(UplinkIndex(at)) {
                let sent = uplink.link.send_copy(frame, source, &pool, now);
                count(sent, &uplink.counters);
            }
        }
    }

    /// All links, each with the source of its frames.
    pub(crate) fn links(
        &mut self,
    ) -> impl Iterator<Item = (SourceIndex, &mut Link, &FrameCounters)> {
        let nets = self
            .ports
            .iter_mut()
            .map(|port| (port.net.as_mut(), &port.counters));
        let uplinks = self.uplinks.iter_mut();
        let uplinks = uplinks.map(|uplink| (Some(&mut uplink.link), &uplink.counters));
        nets.chain(uplinks)
            .enumerate()
            .filter_map(|(at, (link, counters))| Some((SourceIndex(at), link?, &**counters)))
    }

    /// Time until the next retry of full sockets; `None` if no socket is full.
    pub(crate) fn retry_in(&self, now: Instant) -> Option<Duration> {
        let nets = self.ports.iter().filter_map(|port| port.net.as_ref());
        let uplinks = self.uplinks.iter().map(|uplink| &uplink.link);
        nets.chain(uplinks)
            .filter_map(|link| link.retry_in(now))
            .min()
    }

    /// Whether there are links whose other end may disappear and return.
    pub(crate) fn any_comes_and_goes(&self) -> bool {
        let nets = self.ports.iter().filter_map(|port| port.net.as_ref());
        let uplinks = self.uplinks.iter().map(|uplink| &uplink.link);
        nets.chain(uplinks).any(Link::comes_and_goes)
    }

    /// Searches for restarted peers.
    pub(crate) fn renew(&mut self) {
        self.links().for_each(|(_, link, _)| link.renew());
    }

    /// Whether a frame may be delivered to this destination without an ICRC.
    pub(crate) fn offloads_icrc(&self, destination: Destination) -> bool {
        match destination {
            Destination::Engine(_) | Destination::Nowhere => true,
            Destination::Uplink(at) => self.uplinks[at.0].link.offloads_icrc(),
            Destination::Net(_) | Destination::Uplinks | Destination::Multicast { .. } => false,
        }
    }

    /// Sets whether engines leave the ICRC of their frames to this thread. They do so if any uplink
    /// accepts frames without an ICRC.
    pub(crate) fn tell_offload(&mut self) {
        let offloads = self
            .uplinks
            .iter()
            .any(|uplink| uplink.link.offloads_icrc());
        for port in &self.ports {
            port.engine.set_offloads_icrc(offloads);
        }
    }

    /// Sends waiting frames, as far as the sockets have room again.
    pub(crate) fn retry(&mut self, now: Instant) {
        for (_, link, counters) in self.links() {
            counters.dropped.add(link.retry(now));
            let waiting = link.waiting();
            counters.socket_longest.note(waiting);
            counters
                .socket_frames
                .store(waiting as u64, Ordering::Relaxed);
        }
    }

    /// Notifies the engines to which frames were delivered in this round.
    pub(crate) fn notify(&mut self) {
        for (port, touched) in self.ports.iter().zip(&mut self.touched) {
            if mem::take(touched) {
                port.engine.notify();
            }
        }
    }
}

fn count(sent: Delivery, counters: &FrameCounters) {
    match sent {
        Delivery::Done => counters.sent.add_one(),
        Delivery::Dropped => counters.dropped.add_one(),
    }
}

fn address(frame: &[u8], at: usize) -> Option<Mac> {
    frame.get(at..)?.first_chunk().copied()
}

const fn is_multicast(mac: &Mac) -> bool {
    mac[0] & 1 != 0
}
