// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Frames that were sent, with their senders, and the places where they may arrive.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use roce::net::{carries_roce, is_roce, Mac};

use super::claims::may_send;

/// A party that sends and receives.
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

/// The address behind uplink 0. It speaks more often than an address is held.
pub const HONEST: Mac = [2, 0, 0, 0, 1, 0];
/// An address that port 0 alone may claim.
pub const ADDRESS: [u8; 4] = [10, 0, 0, 1];
/// A group that the engine of port 0 has joined.
pub const GROUP: Mac = [0x01, 0x00, 0x5e, 1, 2, 3];
/// Ports of the switch.
pub const PORTS: usize = 2;

/// Where to a frame goes, and where from.
pub fn address(frame: &[u8], at: usize) -> Mac {
    frame[at..][..6].try_into().expect("an Ethernet header")
}

#[derive(Default)]
struct Sent {
    from: Vec<Party>,
    /// The last of them.
    number: u32,
    arrived: Vec<Party>,
}

/// All frames so far.
#[derive(Default)]
pub struct Ledger {
    /// By a hash of their bytes.
    frames: HashMap<u64, Sent>,
    numbers: u32,
    /// The last frame of one party that came to another.
    last: HashMap<(Party, Party), u32>,
    arrivals: HashMap<Party, u64>,
    /// Source addresses that came by uplinks.
    sources: HashSet<Mac>,
    /// Whether RoCE of a port's network interface passes.
    pub net_roce: [bool; PORTS],
    /// Ports that speak for their own addresses only.
    pub restricted: [bool; PORTS],
    /// Uplinks that are routed.
    pub routed: [bool; 3],
}

fn hash(frame: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    frame.hash(&mut hasher);
    hasher.finish()
}

impl Ledger {
    /// A number that no frame has.
    pub fn number(&mut self) -> u32 {
        self.numbers += 1;
        self.numbers
    }

    /// `from` sends a frame. Say so before it does: it may arrive at once.
    pub fn send(&mut self, from: Party, frame: &[u8]) {
        if let (Party::Uplink(_), Some(source)) = (from, frame.get(6..12)) {
            self.sources.insert(source.try_into().expect("6 bytes"));
        }
        self.numbers += 1;
        let sent = self.frames.entry(hash(frame)).or_default();
        sent.from.push(from);
        sent.number = self.numbers;
    }

    /// Addresses that a switch may have learned.
    pub fn sources(&self) -> usize {
        self.sources.len()
    }

    /// Frames that came there.
    pub fn arrivals(&self, at: Party) -> u64 {
        self.arrivals.get(&at).copied().unwrap_or_default()
    }

    /// How often a frame came there.
    pub fn times(&self, frame: &[u8], at: Party) -> usize {
        let sent = self.frames.get(&hash(frame));
        sent.map_or(0, |sent| {
            sent.arrived.iter().filter(|to| **to == at).count()
        })
    }

    /// A frame arrives. Checks that a permitted party sent it to this receiver, in order, once.
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
            admitted && destined(frame, *from, at)
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
        // Between engines only frames to groups pass through the switch's thread.
        if !matches!((from, at), (Party::Engine(_), Party::Engine(_))) {
            let last = self.last.insert((from, at), sent.number);
            assert!(last.is_none_or(|last| last < sent.number), "out of order");
        }
    }
}

/// Whether frames of this source may come by uplinks.
fn may_come(source: Mac) -> bool {
    source[0] & 1 == 0 && source != [0; 6] && !(0..PORTS).any(|port| source == mac(port))
}

/// Whether a frame's destination is there, which is not where it comes from.
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
        // It is known where that is.
        (_, Party::Uplink(uplink)) if to == HONEST => uplink == 0,
        (_, Party::Uplink(_)) => multicast || !(0..PORTS).any(|port| to == mac(port)),
    }
}
