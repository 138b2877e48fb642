// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The filter of source addresses, and the choice of destinations.

use std::time::{Duration, Instant};

use roce::net::{carries_roce, Mac};

use crate::index::{PortIndex, UplinkIndex};
use crate::mac_table::Heard;

use super::port::{Destination, Origin};
use super::Forwarder;

/// Minimum interval between warnings about an address that was seen on two uplinks.
const COMPLAINT: Duration = Duration::from_secs(60);

impl Forwarder {
    /// Whether frames from `origin` may be sent to port `to`: `origin` is an uplink or a port of
    /// the same isolation group.
    pub(super) fn reaches(&self, origin: Origin, to: PortIndex) -> bool {
        let from = origin.port();
        from.is_none_or(|from| self.ports[from.0].group == self.ports[to.0].group)
    }

    /// Whether `origin` may send the frame: its source addresses are valid, it is not RoCE from a
    /// network interface that must not send RoCE, and bridges forward it. Learns addresses behind
    /// uplinks.
    pub(crate) fn admit(&mut self, origin: Origin, frame: &[u8], now: Instant) -> bool {
        let Some(source) = address(frame, 6) else {
            return false;
        };
        if address(frame, 0).is_some_and(|to| is_of_one_segment(&to)) {
            return false;
        }
        match origin {
            Origin::Net(port) => {
                self.by_mac.get(&source) == Some(&port)
                    && (self.ports[port.0].net_roce || !carries_roce(frame))
                    && self.addresses.admit(port, frame)
            }
            Origin::Engine(port) => source == self.ports[port.0].mac,
            Origin::Uplink(at) => {
                // A frame from an uplink is forged, or returns through a loop, if its source is the
                // address of a port, or an address that was just seen on another uplink.
                let valid = !is_multicast(&source)
                    && source != [0; 6]
                    && self.by_mac.get(&source).is_none();
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
        if let Some(&port) = self.by_mac.get(&to) {
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
}

pub(super) fn address(frame: &[u8], at: usize) -> Option<Mac> {
    frame.get(at..)?.first_chunk().copied()
}

const fn is_multicast(mac: &Mac) -> bool {
    mac[0] & 1 != 0
}

/// Whether frames to this address do not leave their segment (IEEE 802.1Q, table 8-1): those of
/// spanning tree and link aggregation, with which a VM could change the host's bridge.
const fn is_of_one_segment(mac: &Mac) -> bool {
    matches!(mac, [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f])
}
