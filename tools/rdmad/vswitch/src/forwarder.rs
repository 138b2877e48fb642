// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Forwarding: the tables of ports, uplinks and addresses.

mod capture;
mod deliver;
mod patience;
mod port;
mod rules;

use std::collections::BTreeMap;
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use roce::frame::Surplus;
use roce::net::MacIndex;
use roce::FramePool;

use crate::address_filter::AddressFilter;
use crate::calls::Calls;
use crate::engine_queues::EngineQueues;
use crate::frames;
use crate::groups::Groups;
use crate::index::{PortIndex, SourceIndex, UplinkIndex};
use crate::link::Link;
use crate::listed::Listed;
use crate::mac_table::MacTable;
use crate::shedding::Shedding;
use crate::stats::FrameCounters;

pub(crate) use port::{Destination, Forwarding, Origin, SwitchPort, UplinkPort};

use port::NOBODY;

/// All sources and destinations of frames, and the tables that determine the forwarding.
pub(crate) struct Forwarder {
    pub(crate) ports: Vec<SwitchPort>,
    /// The index of each port, by each of its MAC addresses.
    by_mac: MacIndex<PortIndex>,
    /// The ports with a network interface, in the order of their indices, by isolation group.
    nets: BTreeMap<u32, Vec<PortIndex>>,
    /// The multicast addresses that engines have joined.
    groups: Arc<Groups>,
    /// The members of the group to which a frame is being copied.
    members: Vec<PortIndex>,
    pub(crate) uplinks: Vec<UplinkPort>,
    table: MacTable,
    /// Time of the last warning about an address that was seen on two uplinks.
    complained: Option<Instant>,
    addresses: AddressFilter,
    /// Number of ports whose frames are captured.
    captures: usize,
    /// The dummy engine of free indices.
    nobody: Arc<EngineQueues>,
    /// Buffer pools for frames, one for each port, then one for each uplink. With a pool of its
    /// own, no port or uplink can use up the buffers of another one.
    pub(crate) pools: Vec<FramePool>,
    shedding: Shedding,
    /// Calls of the engines.
    pub(crate) calls: Arc<Calls>,
    /// Ports whose engines are to be notified: they got frames or room in this round.
    touched: Listed,
    /// The ports that are being notified.
    notified: Vec<usize>,
    /// Sources with links that are to be looked after at the end of this round: they got frames,
    /// their frames wait, or they wait for another link.
    pub(crate) busy: Listed,
    /// Whether engines leave the ICRC to the thread.
    offloads: bool,
    /// The port whose engine is to be notified at the end of this round.
    last: Option<PortIndex>,
}

impl Forwarder {
    /// A forwarder for these ports and uplinks, with `spare` free indices for ports that are added
    /// later.
    pub(crate) fn new(
        given: Vec<(SwitchPort, Vec<IpAddr>)>,
        uplinks: Vec<UplinkPort>,
        calls: Arc<Calls>,
        groups: Arc<Groups>,
        spare: usize,
    ) -> Self {
        let nobody = EngineQueues::new(calls.clone(), groups.clone(), PortIndex(0), Arc::default());
        let nobody = Arc::new(nobody);
        let max_ports = given.len() + spare;
        let vacant = |_| SwitchPort::vacant(nobody.clone());
        let mut forwarder = Self {
            ports: (0..max_ports).map(vacant).collect(),
            by_mac: MacIndex::default(),
            nets: BTreeMap::new(),
            groups,
            members: Vec::new(),
            pools: frames::pools(max_ports, uplinks.len(), &calls),
            shedding: Shedding::default(),
            table: MacTable::new(uplinks.len()),
            calls,
            touched: Listed::new(max_ports),
            notified: Vec::new(),
            busy: Listed::new(max_ports + uplinks.len()),
            offloads: false,
            last: None,
            uplinks,
            complained: None,
            captures: 0,
            addresses: AddressFilter::default(),
            nobody,
        };
        for (index, (port, given)) in given.into_iter().enumerate() {
            forwarder.occupy(PortIndex(index), port, &given);
        }
        forwarder
    }

    /// Assigns a free index to a port, for which the addresses `given` are configured.
    pub(crate) fn occupy(&mut self, index: PortIndex, port: SwitchPort, given: &[IpAddr]) {
        for mac in port.macs() {
            self.by_mac.insert(&mac, index);
        }
        self.addresses.add(index, port.macs().collect(), given);
        if port.net.is_some() {
            let nets = self.nets.entry(port.group).or_default();
            let at = nets.partition_point(|other| *other < index);
            nets.insert(at, index);
        }
        port.engine.set_offloads_icrc(self.offloads);
        self.ports[index.0] = port;
    }

    /// Removes a port and frees its index.
    pub(crate) fn vacate(&mut self, index: PortIndex) -> SwitchPort {
        self.addresses.remove(index);
        let capture = self.set_capture(index, None);
        let vacant = SwitchPort::vacant(self.nobody.clone());
        let port = mem::replace(&mut self.ports[index.0], vacant);
        for mac in port.macs() {
            self.by_mac.remove_if(&mac, |other| *other == index);
        }
        if let Some(nets) = self.nets.get_mut(&port.group) {
            nets.retain(|other| *other != index);
            if nets.is_empty() {
                self.nets.remove(&port.group);
            }
        }
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

    /// The link to the network interface or uplink `source`; `None` if the port has none.
    pub(crate) fn link(&mut self, source: SourceIndex) -> Option<(&mut Link, &FrameCounters)> {
        match self.origin(source) {
            Origin::Uplink(at) => {
                let UplinkPort { link, counters, .. } = &mut self.uplinks[at.0];
                Some((link, counters))
            }
            Origin::Net(port) | Origin::Engine(port) => {
                let SwitchPort { net, counters, .. } = &mut self.ports[port.0];
                net.as_mut().map(|link| (link, &**counters))
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

    /// Whether there are links whose other end has to be searched for from time to time.
    pub(crate) fn any_comes_and_goes(&self) -> bool {
        let nets = self.ports.iter().filter_map(|port| port.net.as_ref());
        let uplinks = self.uplinks.iter().map(|uplink| &uplink.link);
        nets.chain(uplinks).any(Link::comes_and_goes)
    }

    /// Searches for restarted remote ends.
    pub(crate) fn reconnect(&mut self) {
        self.links().for_each(|(_, link, _)| link.reconnect());
    }

    /// Frees some of the buffers that were not used lately. See [`Shedding::shed`].
    pub(crate) fn shed(&mut self) -> Surplus {
        let engines = self.ports.iter().map(|port| port.engine.pool());
        self.shedding.shed(engines.chain(&self.pools))
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
        if self.offloads != offloads {
            self.offloads = offloads;
            for port in &self.ports {
                port.engine.set_offloads_icrc(offloads);
            }
        }
    }
}
