// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A record of sent frames and their senders, and a model of the parties that may receive them.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use roce::net::{carries_roce, is_roce, mark, Mac};

use super::claims::may_send;

/// A party that sends and receives frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    /// The network interface of a port.
    Net(usize),
    /// The engine of a port.
    Engine(usize),
    /// The far end of an uplink.
    Uplink(usize),
}

/// The MAC address of a port.
pub const fn mac(port: usize) -> Mac {
    [2, 0, 0, 0, 0, port as u8 + 1]
}

/// The MAC address of the honest neighbour behind uplink 0. It sends frames so often that the
/// switch never learns its address on another uplink.
pub const HONEST: Mac = [2, 0, 0, 0, 1, 0];
/// An IPv4 address that only port 0 may claim.
pub const ADDRESS: [u8; 4] = [10, 0, 0, 1];
/// A multicast address that the engine of port 0 has joined.
pub const GROUP: Mac = [0x01, 0x00, 0x5e, 1, 2, 3];
/// Number of ports of the switch.
pub const PORTS: usize = 2;

/// The MAC address at offset `at` of a frame: 0 for the destination, 6 for the source.
pub fn address(frame: &[u8], at: usize) -> Mac {
    frame[at..][..6].try_into().expect("an Ethernet header")
}

#[derive(Default)]
struct Sent {
    from: Vec<Party>,
    /// Sequence number of the last send of the frame.
    number: u32,
    arrived: Vec<Party>,
}

/// The record of all frames sent so far.
#[derive(Default)]
pub struct Ledger {
    /// Sent frames, by a hash of their bytes.
    frames: HashMap<u64, Sent>,
    numbers: u32,
    /// Sequence number of the last frame of each sender that arrived at each receiver.
    last: HashMap<(Party, Party), u32>,
    arrivals: HashMap<Party, u64>,
    /// Source addresses of frames that were sent from uplinks.
    sources: HashSet<Mac>,
    /// Whether RoCE of each port's network interface is forwarded.
    pub net_roce: [bool; PORTS],
    /// Whether each port may claim only its own addresses.
    pub restricted: [bool; PORTS],
    /// Whether routers may be behind each uplink.
    pub routed: [bool; 3],
}

/// The hash of a frame. The switch may mark frames that support it as congested, so a marked frame
/// has the same hash as the original.
fn hash(frame: &[u8]) -> u64 {
    let mut marked = frame.to_vec();
    mark(&mut marked);
    let mut hasher = DefaultHasher::new();
    marked.hash(&mut hasher);
    hasher.finish()
}

impl Ledger {
    /// A number that no frame has yet.
    pub fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    /// Records that `from` sends a frame. To be called before an engine sends the frame, which may
    /// arrive at once.
    pub fn send(&mut self, from: Party, frame: &[u8]) {
        if let (Party::Uplink(_), Some(source)) = (from, frame.get(6..12)) {
            self.sources.insert(source.try_into().expect("6 bytes"));
        }
        self.numbers += 1;
        let sent = self.frames.entry(hash(frame)).or_default();
        sent.from.push(from);
        sent.number = self.numbers;
    }

    /// Number of addresses that a switch may have learned.
    pub fn sources(&self) -> usize {
        self.sources.len()
    }

    /// Number of frames that arrived at a party.
    pub fn arrivals(&self, at: Party) -> u64 {
        self.arrivals.get(&at).copied().unwrap_or_default()
    }

    /// Number of times that a frame arrived at a party.
    pub fn times(&self, frame: &[u8], at: Party) -> usize {
        let sent = self.frames.get(&hash(frame));
        sent.map_or(0, |sent| {
            sent.arrived.iter().filter(|to| **to == at).count()
        })
    }

    /// Records the arrival of a frame at party `at`. Asserts that the frame was sent by a party
    /// that may send it to `at`, that it does not arrive more often than it was sent, and that
    /// frames arrive in order.
    pub fn arrive(&mut self, at: Party, frame: &[u8], routed: bool) {
        let head = &frame[..frame.len().min(64)];
        assert!(frame.len() >= 14, "{at:?} gets {head:02x?}");
        let sent = self.frames.get_mut(&hash(frame));
        let sent = sent.unwrap_or_else(|| panic!("{at:?}: nobody sent {head:02x?}"));
        let (net_roce, restricted) = (self.net_roce, self.restricted);
        let may = |from: &Party| {
            let admitted = match *from {
                Party::Net(port) => {
                    address(frame, 6) == mac(port)
                        && (net_roce[port] || !carries_roce(frame))
                        && may_send(port, restricted[port], frame)
                }
                Party::Engine(port) => address(frame, 6) == mac(port),
                Party::Uplink(_) => may_come(address(frame, 6)),
            };
            let is_of_bridges = matches!(address(frame, 0), [0x01, 0x80, 0xc2, 0, 0, 0..=15]);
            admitted && !is_of_bridges && destined(frame, *from, at)
        };
        let from: Vec<Party> = sent.from.iter().copied().filter(may).collect();
        sent.arrived.push(at);
        let times = sent.arrived.iter().filter(|to| **to == at).count();
        assert!(
            times <= from.len(),
            "{at:?} gets {head:02x?} of {:?}",
            sent.from
        );
        *self.arrivals.entry(at).or_default() += 1;
        let &[from] = &sent.from[..] else {
            return;
        };
        if matches!(at, Party::Engine(_)) {
            let expected = matches!(from, Party::Uplink(uplink) if self.routed[uplink]);
            assert_eq!(routed, expected, "{at:?} gets {head:02x?} of {from:?}");
        }
        // Frames between engines are not ordered: multicast passes through the switch's thread, and
        // unicast does not.
        if !matches!((from, at), (Party::Engine(_), Party::Engine(_))) {
            let last = self.last.insert((from, at), sent.number);
            assert!(last.is_none_or(|last| last < sent.number), "out of order");
        }
    }
}

/// Whether the switch accepts frames with the source address `source` from uplinks.
fn may_come(source: Mac) -> bool {
    source[0] & 1 == 0 && source != [0; 6] && !(0..PORTS).any(|port| source == mac(port))
}

/// Whether the party `at` is a destination of a frame that `from` has sent.
fn destined(frame: &[u8], from: Party, at: Party) -> bool {
    let to = address(frame, 0);
    let roce = is_roce(frame);
    let multicast = to[0] & 1 != 0;
    match (from, at) {
        (Party::Uplink(a), Party::Uplink(b)) if a == b => false,
        (Party::Net(a) | Party::Engine(a), Party::Net(b)) if a == b => false,
        (Party::Net(a), Party::Engine(b)) if a == b => false,
        (_, Party::Net(port)) => multicast || (to == mac(port) && !roce),
        (_, Party::Engine(port)) => roce && (multicast || to == mac(port)),
        // The switch has learned the uplink of this address.
        (_, Party::Uplink(uplink)) if to == HONEST => uplink == 0,
        (_, Party::Uplink(_)) => multicast || !(0..PORTS).any(|port| to == mac(port)),
    }
}
