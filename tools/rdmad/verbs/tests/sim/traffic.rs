// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counts of the packets that a port sends, in total and to each connected QP.

use std::collections::HashMap;
use std::ops::{Add, AddAssign, Sub};

use roce::headers::Body;
use roce::{Frame, Packet};
use virtio_rdma_abi::ctrl::RspQueryCounters;
use virtio_rdma_abi::number::Qpn;

/// Packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    packets: u64,
    bytes: u64,
}

impl Traffic {
    /// The sent packets of `counters`.
    pub fn sent(counters: &RspQueryCounters) -> Self {
        Self {
            packets: counters.tx_packets,
            bytes: counters.tx_bytes,
        }
    }
}

impl Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Traffic {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            packets: self.packets - other.packets,
            bytes: self.bytes - other.bytes,
        }
    }
}

/// The way of packets to a connected QP. All of them are from the peer of this QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    to: [u8; 6],
    qpn: Qpn,
}

impl Route {
    /// The way to QP `qpn` of the port `to`.
    pub fn new(to: [u8; 6], qpn: Qpn) -> Self {
        Self { to, qpn }
    }

    /// The way of a frame; `None` for a datagram.
    fn of(frame: &Frame) -> Option<Self> {
        let packet = Packet::parse_frame(frame).expect("a packet");
        let qpn = packet.headers.bth.dest_qpn;
        let is_datagram = matches!(packet.headers.body, Body::Ud { .. });
        (!is_datagram).then(|| Self::new(frame[..6].try_into().unwrap(), qpn))
    }
}

/// The packets that a port has sent.
#[derive(Default)]
pub struct Sent {
    total: Traffic,
    along: HashMap<Route, Traffic>,
}

impl Sent {
    pub fn total(&self) -> Traffic {
        self.total
    }

    /// The packets to one connected QP.
    pub fn along(&self, route: Route) -> Traffic {
        self.along.get(&route).copied().unwrap_or_default()
    }

    /// Counts a frame.
    pub fn count(&mut self, frame: &Frame) {
        let traffic = Traffic {
            packets: 1,
            bytes: frame.len() as u64,
        };
        self.total += traffic;
        if let Some(route) = Route::of(frame) {
            *self.along.entry(route).or_default() += traffic;
        }
    }
}
