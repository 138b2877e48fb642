// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Probes detect the loss of the last packets of a connection long before the local ACK timeout.
//!
//! If a packet gets lost and later packets arrive, the responder sends a NAK. No NAK reports the
//! loss of the last packet. So if no response arrives for longer than a round trip takes, the
//! requester sends the last packet once more and requests an acknowledgement (the tail loss probe
//! of RFC 8985). The responder acknowledges the probe if it is the expected packet or a duplicate.
//! If earlier packets are missing, the responder sends a NAK and the requester retransmits them.
//!
//! A responder sends only one NAK for a missing packet, and this NAK may get lost. Therefore every
//! second probe in a row retransmits all unacknowledged packets.
//!
//! Probes use up no retries and do not change the local ACK timeout. A connection without that
//! timeout sends no probes.

use std::time::{Duration, Instant};

/// Time without a response after which a probe is sent, until a round trip has been measured.
const FIRST_GUESS: Duration = Duration::from_millis(4);

/// Minimum time without a response before a probe: a software peer may need that long to respond.
const SHORTEST: Duration = Duration::from_micros(500);

/// Maximum number of doublings of the time without a response before a probe.
const MAX_DOUBLINGS: u32 = 10;

/// The packets that a probe sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// The last packet that was sent.
    Last,
    /// All unacknowledged packets.
    All,
}

/// Round-trip time of a connection, smoothed as in RFC 6298.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    mean: Duration,
    deviation: Duration,
}

impl RoundTrip {
    fn first(time: Duration) -> Self {
        Self {
            mean: time,
            deviation: time / 2,
        }
    }

    fn then(self, time: Duration) -> Self {
        Self {
            mean: (self.mean * 7 + time) / 8,
            deviation: (self.deviation * 3 + self.mean.abs_diff(time)) / 4,
        }
    }

    /// Time within which a response can be expected.
    fn silence(self) -> Duration {
        (self.mean * 2 + self.deviation * 4).max(SHORTEST)
    }
}

/// Decides when a requester sends a probe.
#[derive(Debug, Default)]
pub(super) struct Prober {
    round_trip: Option<RoundTrip>,
    /// Position after the packet whose round trip is being measured, and when it was sent. Any
    /// retransmission ends the measurement, because a response may then belong to either
    /// transmission (Karn's rule).
    timed: Option<(u64, Instant)>,
    deadline: Option<Instant>,
    /// Number of probes sent since a packet was last acknowledged.
    sent: u32,
    /// Number of times that the time before a probe was doubled. Reset only when a round trip is
    /// measured. Otherwise a round trip longer than that time could never be measured: each probe
    /// would end the measurement.
    doublings: u32,
}

impl Prober {
    /// Begins to measure a round trip, unless one is being measured. Call this when a packet that
    /// requests a response is first sent. The response acknowledges packets before `end`.
    pub(super) fn asks(&mut self, end: u64, now: Instant) {
        if self.timed.is_none() {
            self.timed = Some((end, now));
        }
    }

    /// Records that packets before `una` are acknowledged, and cancels the probe.
    pub(super) fn progress(&mut self, una: u64, now: Instant) {
        self.deadline = None;
        self.sent = 0;
        if let Some((_, since)) = self.timed.filter(|(end, _)| *end <= una) {
            let time = now.saturating_duration_since(since);
            self.round_trip = Some(match self.round_trip {
                Some(known) => known.then(time),
                None => RoundTrip::first(time),
            });
            self.timed = None;
            self.doublings = 0;
        }
    }

    /// Prepares for a retransmission: ends the measurement of a round trip and cancels the probe.
    pub(super) fn repeat(&mut self) {
        self.timed = None;
        self.deadline = None;
    }

    /// Schedules a probe: nothing is left to send, but packets are unacknowledged. If `sent`,
    /// packets were sent just now, and the time before a probe restarts.
    pub(super) fn wait(&mut self, sent: bool, now: Instant) {
        if sent || self.deadline.is_none() {
            let silence = self.round_trip.map_or(FIRST_GUESS, RoundTrip::silence);
            self.deadline = Some(now + silence * (1 << self.doublings));
        }
    }

    /// Cancels the probe: no packets are unacknowledged, or there is more to send.
    pub(super) fn rest(&mut self) {
        self.deadline = None;
    }

    /// Time of the next probe.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The probe that the caller has to send, if one is due.
    pub(super) fn due(&mut self, now: Instant) -> Option<Probe> {
        self.deadline.filter(|at| *at <= now)?;
        self.repeat();
        self.sent = self.sent.wrapping_add(1);
        self.doublings = MAX_DOUBLINGS.min(self.doublings + 1);
        Some(if self.sent % 2 == 1 {
            Probe::Last
        } else {
            Probe::All
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Time from sending a packet to the probe.
    fn silence(prober: &mut Prober, now: Instant) -> Duration {
        prober.wait(true, now);
        prober.deadline().unwrap() - now
    }

    #[test]
    fn silence_follows_the_round_trip() {
        let (mut prober, now) = (Prober::default(), Instant::now());
        assert_eq!(silence(&mut prober, now), FIRST_GUESS);
        prober.asks(1, now);
        prober.progress(1, now + 10 * MS);
        assert_eq!(silence(&mut prober, now), 40 * MS, "2 · 10 + 4 · 5");
        for round in 1..50 {
            prober.asks(1 + round, now);
            prober.progress(1 + round, now + 10 * MS);
        }
        let steady = silence(&mut prober, now);
        assert!(steady >= 20 * MS && steady < 21 * MS, "{steady:?}");
        for round in 50..200 {
            prober.asks(1 + round, now);
            prober.progress(1 + round, now);
        }
        assert_eq!(silence(&mut prober, now), SHORTEST);
    }

    #[test]
    fn the_packet_that_was_first_to_ask_is_timed() {
        let (mut prober, now) = (Prober::default(), Instant::now());
        prober.asks(4, now);
        prober.asks(8, now + MS);
        prober.progress(3, now + 2 * MS);
        assert!(prober.round_trip.is_none(), "it is not acknowledged");
        prober.progress(8, now + 3 * MS);
        assert_eq!(prober.round_trip.map(|times| times.mean), Some(3 * MS));
    }

    #[test]
    fn what_was_repeated_is_not_timed() {
        let (mut prober, now) = (Prober::default(), Instant::now());
        prober.asks(4, now);
        prober.repeat();
        prober.progress(4, now + MS);
        assert!(prober.round_trip.is_none());
    }

    #[test]
    fn probes_alternate_and_their_distance_doubles_until_a_packet_is_timed() {
        let (mut prober, now) = (Prober::default(), Instant::now());
        for (count, kind) in [Probe::Last, Probe::All, Probe::Last]
            .into_iter()
            .enumerate()
        {
            let after = silence(&mut prober, now);
            assert_eq!(after, FIRST_GUESS * (1 << count));
            assert_eq!(prober.due(now + after - MS), None);
            assert_eq!(prober.due(now + after), Some(kind));
            assert_eq!(prober.due(now + after), None, "until it is waited again");
        }
        prober.progress(1, now);
        assert_eq!(silence(&mut prober, now), 8 * FIRST_GUESS);
        assert_eq!(prober.due(now + 8 * FIRST_GUESS), Some(Probe::Last));
        prober.asks(2, now);
        prober.progress(2, now + MS);
        assert_eq!(silence(&mut prober, now), 4 * MS);
    }

    #[test]
    fn the_wait_is_since_what_was_sent_last() {
        let (mut prober, now) = (Prober::default(), Instant::now());
        prober.wait(false, now);
        let deadline = prober.deadline();
        prober.wait(false, now + MS);
        assert_eq!(prober.deadline(), deadline);
        prober.wait(true, now + MS);
        assert_eq!(prober.deadline(), deadline.map(|at| at + MS));
        prober.rest();
        assert_eq!(prober.due(now + 100 * MS), None);
    }
}
