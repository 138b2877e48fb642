// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Ports and uplinks of the switch, and sources and destinations of frames.

use std::iter;
use std::sync::Arc;
use std::time::Instant;

use roce::net::Mac;

use crate::engine_queues::EngineQueues;
use crate::index::{PortIndex, UplinkIndex};
use crate::link::Link;
use crate::pcap::PcapWriter;
use crate::stats::FrameCounters;
use crate::switch::PortConfig;

use super::patience::Patience;

/// A port of the switch: one virtual machine.
pub(crate) struct SwitchPort {
    pub(crate) mac: Mac,
    /// Additional addresses of `net`.
    pub(crate) more_macs: Vec<Mac>,
    pub(crate) net: Option<Link>,
    /// Whether RoCE from `net` is forwarded.
    pub(crate) net_roce: bool,
    /// Number of the isolation group.
    pub(crate) group: u32,
    pub(crate) engine: Arc<EngineQueues>,
    pub(crate) counters: Arc<FrameCounters>,
    /// The capture of the port's frames, if there is one.
    pub(crate) capture: Option<PcapWriter>,
    /// How long `net` may wait for network interfaces of other ports.
    pub(super) patience: Patience,
}

/// MAC address of a free index. No frame has this source address or this unicast destination.
pub(super) const NOBODY: Mac = [0xff; 6];

impl SwitchPort {
    /// A port with this link to its network interface.
    pub(crate) fn new(config: &PortConfig, net: Option<Link>, engine: Arc<EngineQueues>) -> Self {
        if let Some(calls) = net.as_ref().and_then(Link::calls) {
            engine.counters().set_calls(calls.clone());
        }
        Self {
            mac: config.mac,
            more_macs: config.more_macs.clone(),
            net,
            net_roce: config.net_roce,
            group: config.group,
            counters: engine.counters().clone(),
            engine,
            capture: None,
            patience: Patience::new(Instant::now()),
        }
    }

    /// All addresses of the port.
    pub(super) fn macs(&self) -> impl Iterator<Item = Mac> + '_ {
        iter::once(self.mac).chain(self.more_macs.iter().copied())
    }

    /// The contents of a free index. `engine` is a dummy.
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
