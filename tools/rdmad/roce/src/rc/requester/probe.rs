// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Probes: how a requester finds that the end of what it sent got lost, long before the local ACK
//! timeout.
//!
//! A gap in the middle is told by the packets behind it; behind the last packet there is nothing.
//! So when a connection is silent for longer than its round trips take, the last packet goes out
//! once more, asking for an acknowledgement (the tail loss probe of RFC 8985). To the responder it
//! is the expected packet, a duplicate or a packet behind a gap, and each has the answer that the
//! IBTA gives it: an acknowledgement, the same again, or a NAK, on which everything is repeated.
//!
//! A responder that has sent its NAK says nothing more until the gap is filled. Therefore every
//! second probe in a row repeats all that is not acknowledged.
//!
//! Probes take no retries and leave the local ACK timeout as it is. A connection without that
//! timeout has no probes.

use std::time::{Duration, Instant};

/// A probe before the first round trip is known.
const FIRST_GUESS: Duration = Duration::from_millis(4);

/// The shortest silence that is taken for a loss: a peer in software is seldom quicker for sure.
const SHORTEST: Duration = Duration::from_micros(500);

/// The silence that is taken for a loss doubles so many times at most.
const MAX_DOUBLINGS: u32 = 10;

/// The packets that a probe sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// The last packet.
    Last,
    /// All that is not acknowledged.
    All,
}

/// Times of a connection, smoothed as RFC 6298 says.
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

    /// Silence that is longer than an answer may take.
    fn silence(self) -> Duration {
        (self.mean * 2 + self.deviation * 4).max(SHORTEST)
    }
}

/// When a requester probes.
#[derive(Debug, Default)]
pub(super) struct Prober {
    round_trip: Option<RoundTrip>,
    /// End of a packet that is timed, and when it was sent. Its acknowledgement is that of its
    /// first sending (Karn's rule), since it is forgotten when anything is repeated.
    timed: Option<(u64, Instant)>,
    deadline: Option<Instant>,
    /// Probes since the last progress.
    sent: u32,
    /// Doublings of the silence. They stay until a round trip is timed: one that has become longer
    /// than the silence could never be, otherwise.
    doublings: u32,
}

impl Prober {
    /// A packet that asks for an answer is sent the first time; the answer acknowledges up to
    /// `end`.
    pub(super) fn asks(&mut self, end: u64, now: Instant) {
        if self.timed.is_none() {
            self.timed = Some((end, now));
        }
    }

    /// Packets before `una` are acknowledged.
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

    /// Packets are to be repeated: it can't be told which sending an answer is for, and silence
    /// begins anew.
    pub(super) fn repeat(&mut self) {
        self.timed = None;
        self.deadline = None;
    }

    /// There is nothing to send, but there are packets that an answer is to come for. `sent` says
    /// that some of them left just now.
    pub(super) fn wait(&mut self, sent: bool, now: Instant) {
        if sent || self.deadline.is_none() {
            let silence = self.round_trip.map_or(FIRST_GUESS, RoundTrip::silence);
            self.deadline = Some(now + silence * (1 << self.doublings));
        }
    }

    /// Nothing is waited for, or there is more to send.
    pub(super) fn rest(&mut self) {
        self.deadline = None;
    }

    /// When a probe is due.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The probe that is due, which the caller sends.
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

    /// How long a prober that sent something waits.
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
        let settled = silence(&mut prober, now);
        assert!(settled >= 20 * MS && settled < 21 * MS, "{settled:?}");
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
