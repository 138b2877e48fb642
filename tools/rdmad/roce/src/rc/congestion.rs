// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Congestion control of reliable connections.
//!
//! Packets of reliable connections are sent as ECT(0) (RFC 3168): their sender reacts to
//! congestion. A switch whose queue grows marks them with CE instead of dropping them. The
//! responder answers marked requests with a congestion notification packet (IBTA A17.9.3). A
//! requester also reacts to marked READ responses.
//!
//! A requester has a congestion window, as TCP does (RFC 5681, with the response to marks of RFC
//! 3168). A notification halves the window, at most once a round trip, down to one packet. The
//! window doubles each round trip until it is first halved, and then grows by one packet a round
//! trip. A loss halves the window too. It does not take the window below [`LOSS_FLOOR`], because
//! the loss may have another cause than congestion, unless frames crowd in the own host or
//! notifications have taken the window there already.
//!
//! The QPs of a port share the packets that they may send before they know the network: a
//! requester starts with its share, also after a long pause.

use std::time::{Duration, Instant};

use crate::net::{Ecn, Path};

use super::WINDOW;

/// Congestion window of a new connection, in packets.
const INITIAL: u64 = 32;

/// Smallest window to which a loss reduces the congestion window, in packets.
const LOSS_FLOOR: u64 = 16;

/// A pause after which a requester knows nothing about the network any more.
const LONG_PAUSE: Duration = Duration::from_millis(10);

/// Minimum interval between two notifications of a connection, similar to that of hardware devices.
const NOTIFICATION_INTERVAL: Duration = Duration::from_micros(50);

/// `path` with ECN field ECT(0): the sender reacts to congestion.
pub(super) fn capable(path: Path) -> Path {
    Path {
        traffic_class: Ecn::Capable.within(path.traffic_class),
        ..path
    }
}

/// Congestion window: the maximum number of packets that a requester may have unacknowledged.
#[derive(Debug)]
pub(super) struct CongestionWindow {
    packets: u64,
    /// Window size in packets below which the window doubles each round trip.
    threshold: u64,
    /// Number of packets acknowledged since the window last grew or shrank.
    acknowledged: u64,
    /// Marks and losses of packets before this position do not shrink the window, because it has
    /// already shrunk in their round trip.
    reacted: u64,
    /// Since when the requester has had nothing to send; `None` before its first packet.
    paused: Option<Instant>,
    /// Whether the requester has had something to send since its last pause.
    is_open: bool,
}

impl CongestionWindow {
    pub(super) const fn new() -> Self {
        Self {
            packets: INITIAL,
            threshold: WINDOW as u64,
            acknowledged: 0,
            reacted: 0,
            paused: None,
            is_open: false,
        }
    }

    /// Records that the requester has nothing to send at `now`.
    pub(super) fn pause(&mut self, now: Instant) {
        if self.is_open {
            self.is_open = false;
            self.paused = Some(now);
        }
    }

    /// Records that the requester has something to send. After a long pause, or for its first
    /// packets, it starts with at most `share` packets.
    pub(super) fn go_on(&mut self, now: Instant, share: impl FnOnce() -> u64) {
        if self.is_open {
            return;
        }
        self.is_open = true;
        let is_short = |since: Instant| now.saturating_duration_since(since) < LONG_PAUSE;
        if !self.paused.is_some_and(is_short) {
            self.packets = self.packets.min(share().max(1));
        }
    }

    /// Size of the window in packets.
    pub(super) const fn packets(&self) -> u64 {
        self.packets
    }

    /// Number of packets after which the requester requests an acknowledgement: a quarter of the
    /// window. So even a window that was just halved contains a request for an acknowledgement.
    pub(super) fn ack_interval(&self) -> u64 {
        (self.packets / 4).max(1)
    }

    /// Grows the window after `count` packets were acknowledged.
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

    /// Shrinks the window: a packet at or after position `una` met congestion. `sent` is the
    /// position after the last packet that was sent.
    pub(super) fn notified(&mut self, una: u64, sent: u64) {
        self.shrink(una, sent, 1);
    }

    /// Shrinks the window: a packet at or after position `una` got lost. `sent` is the position
    /// after the last packet that was sent. `is_crowded` is set if many frames wait in the own
    /// host.
    pub(super) fn lost(&mut self, una: u64, sent: u64, is_crowded: bool) {
        let may_fall = is_crowded || self.packets < LOSS_FLOOR;
        self.shrink(una, sent, if may_fall { 1 } else { LOSS_FLOOR });
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

/// Whether a packet with this path arrived with a congestion mark.
pub(super) fn is_marked(path: &Path) -> bool {
    Ecn::of(path.traffic_class) == Ecn::Congestion
}

/// Decides when a responder sends a congestion notification.
#[derive(Debug, Default)]
pub(super) struct CongestionNotifier {
    last: Option<Instant>,
    owed: bool,
}

impl CongestionNotifier {
    /// Handles a marked packet: requests a notification, unless the last one was requested less
    /// than [`NOTIFICATION_INTERVAL`] ago.
    pub(super) fn note(&mut self, now: Instant) {
        let is_quiet = |last: Instant| now.saturating_duration_since(last) >= NOTIFICATION_INTERVAL;
        if self.last.is_none_or(is_quiet) {
            self.last = Some(now);
            self.owed = true;
        }
    }

    /// Whether a notification has to be sent.
    pub(super) const fn is_owed(&self) -> bool {
        self.owed
    }

    /// Records that the notification was sent.
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
        window.lost(19, 20, true);
        assert_eq!(window.packets(), 16);
        window.notified(20, 25);
        assert_eq!(window.packets(), 8);
    }

    #[test]
    fn notifications_leave_one_packet_and_losses_sixteen() {
        let mut window = CongestionWindow::new();
        for sent in 1..10 {
            window.lost(sent - 1, sent, false);
        }
        assert_eq!(window.packets(), 16);
        for sent in 10..20 {
            window.notified(sent - 1, sent);
        }
        assert_eq!(window.packets(), 1);
        window.lost(20, 21, false);
        assert_eq!(window.packets(), 1, "a loss makes no window larger");
        window.progress(1);
        assert_eq!(window.packets(), 2);
    }

    #[test]
    fn losses_leave_one_packet_if_frames_crowd_or_marks_were_seen() {
        let mut window = CongestionWindow::new();
        for sent in 1..10 {
            window.lost(sent - 1, sent, true);
        }
        assert_eq!(window.packets(), 1);
        let mut window = CongestionWindow::new();
        window.notified(0, 1);
        window.notified(1, 2);
        assert_eq!(window.packets(), 8);
        for sent in 3..10 {
            window.lost(sent - 1, sent, false);
        }
        assert_eq!(window.packets(), 1);
    }

    #[test]
    fn a_window_starts_with_the_share_of_the_port() {
        let (mut window, mut now) = (CongestionWindow::new(), Instant::now());
        window.go_on(now, || 100);
        assert_eq!(window.packets(), INITIAL);
        let unasked = || unreachable!("no long pause has passed");
        window.go_on(now + 2 * LONG_PAUSE, unasked);
        window.pause(now);
        window.pause(now + LONG_PAUSE);
        now += LONG_PAUSE / 2;
        window.go_on(now, unasked);
        window.pause(now);
        window.go_on(now + LONG_PAUSE, || 0);
        assert_eq!(window.packets(), 1);
        window.progress(1);
        window.progress(2);
        assert_eq!(window.packets(), 4, "it doubles each round trip");
    }

    /// A window that was just halved contains a packet that requests an acknowledgement.
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
        let addresses = Addresses::V6(1.into(), 2.into());
        let mut path = Path::new([1; 6], [2; 6], addresses);
        for (class, expected) in [
            (0, false),
            (1, false),
            (2, false),
            (0xfc, false),
            (0x23, true),
        ] {
            path.traffic_class = class;
            assert_eq!(is_marked(&path), expected, "{class:#x}");
        }
        let (mut notifier, now) = (CongestionNotifier::default(), Instant::now());
        assert!(!notifier.is_owed());
        let interval = NOTIFICATION_INTERVAL;
        for (after, owed) in [(0, true), (1, false), (2, true)] {
            notifier.note(now + interval / 2 * after);
            assert_eq!(notifier.is_owed(), owed, "{after} halves of the interval");
            notifier.sent();
        }
    }
}
