// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Congestion: how the ends of a connection learn of it, and what they do about it.
//!
//! Packets of reliable connections say that their sender reacts to congestion (ECT(0) in the IP
//! header, RFC 3168). A switch whose queue grows marks them instead of dropping them (CE). The
//! responder tells the requester by a congestion notification packet (IBTA A17.9.3), and a
//! requester whose READ responses are marked knows by itself.
//!
//! A requester keeps a window, as TCP does (RFC 5681, with the response to marks of RFC 3168):
//! notified, it halves it, once a round trip, down to one packet; it grows by a packet a round
//! trip, and doubles each round trip until it was first told to slow down. A loss halves the window
//! as well, but not below [`LOSS_FLOOR`]: a packet that got lost may have been lost to noise, and a
//! network that marks says so by itself.

use std::time::{Duration, Instant};

use crate::net::{Ecn, Path};

use super::WINDOW;

/// Packets in the window of a new connection.
const INITIAL: u64 = 32;

/// Fewest packets in a window after a loss that no notification came with.
const LOSS_FLOOR: u64 = 16;

/// At least so much time is between two notifications of a connection: as devices in hardware do.
const NOTIFICATION_INTERVAL: Duration = Duration::from_micros(50);

/// The path of packets whose sender reacts to congestion.
pub(super) fn capable(path: Path) -> Path {
    Path {
        traffic_class: Ecn::Capable.within(path.traffic_class),
        ..path
    }
}

/// How many packets a requester may have unacknowledged.
#[derive(Debug)]
pub(super) struct CongestionWindow {
    packets: u64,
    /// It doubles each round trip while it is smaller than this.
    threshold: u64,
    /// Packets that were acknowledged since it last grew.
    acknowledged: u64,
    /// It has reacted to all that happened to packets before this one.
    reacted: u64,
}

impl CongestionWindow {
    pub(super) const fn new() -> Self {
        Self {
            packets: INITIAL,
            threshold: WINDOW as u64,
            acknowledged: 0,
            reacted: 0,
        }
    }

    /// Packets that may be unacknowledged.
    pub(super) const fn packets(&self) -> u64 {
        self.packets
    }

    /// An acknowledgement is asked for once in so many packets: four times a window, so that one
    /// that was just halved is not full of packets that nobody acknowledges.
    pub(super) fn ack_interval(&self) -> u64 {
        (self.packets / 4).max(1)
    }

    /// `count` packets were acknowledged.
    pub(super) fn progress(&mut self, count: u64) {
        self.acknowledged += count;
        let needed = if self.packets < self.threshold {
            1
        } else {
            self.packets
        };
        if self.acknowledged >= needed {
            let grown = self.packets + self.acknowledged / needed;
            self.packets = grown.min(WINDOW.into());
            self.acknowledged %= needed;
        }
    }

    /// A packet after `una` met congestion; packets before `sent` are under way or were.
    pub(super) fn notified(&mut self, una: u64, sent: u64) {
        self.shrink(una, sent, 1);
    }

    /// A packet after `una` got lost.
    pub(super) fn lost(&mut self, una: u64, sent: u64) {
        self.shrink(una, sent, LOSS_FLOOR);
    }

    fn shrink(&mut self, una: u64, sent: u64, floor: u64) {
        if una < self.reacted {
            return;
        }
        self.reacted = sent;
        self.packets = (self.packets / 2).max(floor).min(self.packets);
        self.threshold = self.packets;
        self.acknowledged = 0;
    }
}

/// When a responder notifies its requester.
#[derive(Debug, Default)]
pub(super) struct Notifier {
    last: Option<Instant>,
    owed: bool,
}

impl Notifier {
    /// A packet came along `path`.
    pub(super) fn note(&mut self, path: &Path, now: Instant) {
        let is_quiet = |last: Instant| now.saturating_duration_since(last) >= NOTIFICATION_INTERVAL;
        if Ecn::of(path.traffic_class) == Ecn::Congestion && self.last.is_none_or(is_quiet) {
            self.last = Some(now);
            self.owed = true;
        }
    }

    /// Whether a notification is to be sent.
    pub(super) const fn is_owed(&self) -> bool {
        self.owed
    }

    /// It is sent.
    pub(super) fn sent(&mut self) {
        self.owed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Addresses;

    #[test]
    fn a_window_doubles_until_it_shrinks_and_then_grows_by_one() {
        let mut window = CongestionWindow::new();
        window.progress(32);
        assert_eq!(window.packets(), 64);
        window.progress(100);
        assert_eq!(window.packets(), 128, "at most");
        window.notified(100, 228);
        assert_eq!(window.packets(), 64);
        window.progress(63);
        assert_eq!(window.packets(), 64);
        window.progress(1);
        assert_eq!(window.packets(), 65);
    }

    #[test]
    fn a_round_trip_has_one_reaction() {
        let mut window = CongestionWindow::new();
        window.notified(0, 20);
        window.notified(10, 20);
        window.lost(19, 20);
        assert_eq!(window.packets(), 16);
        window.notified(20, 25);
        assert_eq!(window.packets(), 8);
    }

    #[test]
    fn notifications_leave_one_packet_and_losses_sixteen() {
        let mut window = CongestionWindow::new();
        for sent in 1..10 {
            window.lost(sent - 1, sent);
        }
        assert_eq!(window.packets(), 16);
        for sent in 10..20 {
            window.notified(sent - 1, sent);
        }
        assert_eq!(window.packets(), 1);
        window.lost(20, 21);
        assert_eq!(window.packets(), 1, "a loss makes no window larger");
        window.progress(1);
        assert_eq!(window.packets(), 2);
    }

    /// In a window that was just halved some packet has asked.
    #[test]
    fn half_a_window_has_asked() {
        for packets in 1..=u64::from(WINDOW) {
            let window = CongestionWindow {
                packets,
                ..CongestionWindow::new()
            };
            assert!(window.ack_interval() <= (packets / 2).max(1));
        }
    }

    #[test]
    fn marked_packets_are_told_of_after_an_interval() {
        let (mut notifier, now) = (Notifier::default(), Instant::now());
        let addresses = Addresses::V6(1.into(), 2.into());
        let mut path = Path::new([1; 6], [2; 6], addresses);
        for class in [0, 1, 2, 0xfc] {
            path.traffic_class = class;
            notifier.note(&path, now);
            assert!(!notifier.is_owed(), "{class:#x}");
        }
        path.traffic_class = 0x23;
        let interval = NOTIFICATION_INTERVAL;
        for (after, owed) in [(0, true), (1, false), (2, true)] {
            notifier.note(&path, now + interval / 2 * after);
            assert_eq!(notifier.is_owed(), owed, "{after} halves of the interval");
            notifier.sent();
        }
    }
}
