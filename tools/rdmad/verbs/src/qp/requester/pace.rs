// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Rate limit of a QP: a token bucket, whose tokens are called credit.
//!
//! A frame may be sent when the bucket holds as much credit as the frame has bytes. The bucket
//! fills at the rate and holds one burst, so in any period t at most rate · t + burst bytes are
//! sent. Credit is exact, in fractions of a byte. The bucket has no timer: a QP that must wait
//! parks with a deadline, like a QP that waits for an acknowledgement.

mod saved;

use std::time::{Duration, Instant};

pub(in crate::qp) use self::saved::PacerState;

/// Credit for one byte. A rate of 1 kb/s earns a credit of 1 per nanosecond.
const BYTE: u64 = 8_000_000;
/// The default burst is as much as the rate carries in this time. A worker may be late by this time
/// without loss of throughput.
const DEFAULT_BURST: Duration = Duration::from_millis(5);

/// A rate limit as the driver sets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RateLimitAttr {
    /// Rate in kb/s, not 0.
    pub rate: u32,
    /// Burst in bytes; 0 for the default.
    pub burst: u32,
    /// Length of a typical packet in bytes. After a burst the QP pauses until the rate has earned
    /// the credit for such a packet.
    pub packet: u32,
}

impl RateLimitAttr {
    /// Length of a burst in bytes. A default burst is at least as long as a typical packet.
    /// [`Pacer::admit`] raises the capacity for longer frames.
    pub(crate) fn burst(&self) -> u64 {
        match self.burst {
            0 => {
                let carried = u64::from(self.rate) * DEFAULT_BURST.as_nanos() as u64 / BYTE;
                carried.max(self.packet.into())
            }
            given => given.into(),
        }
    }
}

/// The token bucket of a QP.
#[derive(Debug)]
pub(crate) struct Pacer {
    limit: RateLimitAttr,
    /// Amount that may be spent now, in units of 1 / [`BYTE`] byte; at most `capacity`.
    credit: u64,
    capacity: u64,
    /// Time at which `credit` was computed.
    at: Instant,
}

impl Pacer {
    /// A full bucket.
    pub(crate) fn new(limit: RateLimitAttr, now: Instant) -> Self {
        let capacity = capacity(&limit);
        Self {
            limit,
            credit: capacity,
            capacity,
            at: now,
        }
    }

    /// Changes rate and burst. The credit stays the same, up to the new capacity, so frequent
    /// changes gain nothing.
    pub(crate) fn change(&mut self, limit: RateLimitAttr, now: Instant) {
        self.fill(now);
        self.limit = limit;
        self.capacity = capacity(&limit);
        self.credit = self.credit.min(self.capacity);
    }

    /// Returns `Ok` if a frame of `bytes` may be sent now, or else the time of the next attempt. A
    /// frame that is longer than the burst could never be sent, so the capacity is raised to its
    /// length.
    pub(crate) fn admit(&mut self, now: Instant, bytes: usize) -> Result<(), Instant> {
        self.fill(now);
        let needed = credit(bytes);
        self.capacity = self.capacity.max(needed);
        if needed <= self.credit {
            return Ok(());
        }
        let wanted = needed.max(credit(self.limit.packet as usize).min(self.capacity));
        let nanos = (wanted - self.credit).div_ceil(self.limit.rate.max(1).into());
        Err(now + Duration::from_nanos(nanos))
    }

    /// Spends credit for an admitted frame of `bytes`.
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.credit = self.credit.saturating_sub(credit(bytes));
    }

    /// Gives back the credit for frames of `bytes` in all, which were not sent.
    pub(crate) fn give_back(&mut self, bytes: usize) {
        self.credit = self.capacity.min(self.credit + credit(bytes));
    }

    fn fill(&mut self, now: Instant) {
        let nanos = now.saturating_duration_since(self.at).as_nanos();
        let earned = nanos * u128::from(self.limit.rate);
        let sum = u128::from(self.credit) + earned;
        // `min` with the capacity, so the cast can't truncate.
        self.credit = sum.min(self.capacity.into()) as u64;
        self.at = self.at.max(now);
    }
}

fn capacity(limit: &RateLimitAttr) -> u64 {
    limit.burst() * BYTE
}

fn credit(bytes: usize) -> u64 {
    // No overflow: `bytes` is the length of a frame, or of the frames of one turn.
    bytes as u64 * BYTE
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// Shortest time between two attempts of a worker in these tests.
    const STEP: Duration = Duration::from_micros(1);

    /// Sends frames for `time`, each as soon as the bucket permits. `next` returns the length of
    /// each frame. After a pause the worker starts `late` after the permitted time. Returns the
    /// time and length of each frame.
    fn run(
        pacer: &mut Pacer,
        start: Instant,
        time: Duration,
        mut next: impl FnMut() -> usize,
        late: Duration,
    ) -> Vec<(Duration, usize)> {
        let mut sent = Vec::new();
        let mut now = start;
        let mut frame = next();
        while now < start + time {
            match pacer.admit(now, frame) {
                Ok(()) => {
                    pacer.spend(frame);
                    sent.push((now - start, frame));
                    frame = next();
                }
                Err(at) => {
                    assert!(at > now, "waits for the past");
                    now = at + late;
                }
            }
        }
        sent
    }

    fn total(sent: &[(Duration, usize)]) -> u64 {
        sent.iter().map(|(_, bytes)| *bytes as u64).sum()
    }

    /// Maximum number of bytes sent in any window of this length.
    fn fullest(sent: &[(Duration, usize)], window: Duration) -> u64 {
        let mut inside: VecDeque<(Duration, u64)> = VecDeque::new();
        let (mut sum, mut most) = (0, 0);
        for &(at, bytes) in sent {
            inside.push_back((at, bytes as u64));
            sum += bytes as u64;
            while let Some(&(first, bytes)) = inside.front() {
                if first + window > at {
                    break;
                }
                sum -= bytes;
                inside.pop_front();
            }
            most = most.max(sum);
        }
        most
    }

    fn in_time(rate: u32, time: Duration) -> u64 {
        (u128::from(rate) * time.as_nanos() / u128::from(BYTE)) as u64
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// For any rate, burst and packet lengths: the number of bytes in a second is within 5 % of
        /// the rate, and in no window of 10 ms are more bytes sent than the rate carries plus one
        /// burst.
        // abi
        #[test]
        fn a_rate_is_kept_over_a_second_and_no_window_holds_more_than_a_burst_above_it(
            exponent in 3.0f64..6.0,
            burst in prop_oneof![Just(0u32), 64..200_000u32],
            packet in prop_oneof![Just(1024u32), 64..4_200u32],
            frames in prop::collection::vec(256usize..4_200, 1..20),
            late in 0u64..200,
        ) {
            // The rate is 1 Mb/s to 1 Gb/s.
            let rate = 10f64.powf(exponent) as u32;
            let limit = RateLimitAttr { rate, burst, packet };
            let start = Instant::now();
            let mut pacer = Pacer::new(limit, start);
            let largest = *frames.iter().max().unwrap() as u64;
            let burst = limit.burst().max(largest);
            // A worker may be late by less than the time in which the rate carries a burst: the
            // bucket holds the credit that is earned meanwhile.
            let slack = (burst - largest.max(burst.min(packet.into()))) * BYTE / u64::from(rate);
            let late = Duration::from_micros(late).min(Duration::from_nanos(slack));
            let mut at = 0;
            let next = || {
                at += 1;
                frames[at % frames.len()]
            };
            let second = Duration::from_secs(1);
            // The first second is not checked, since it contains the initial burst.
            let sent = run(&mut pacer, start, 2 * second, next, late);
            let steady: Vec<_> = sent.iter().copied().filter(|(at, _)| *at >= second).collect();
            let asked = in_time(rate, second) as f64;
            let got = total(&steady) as f64;
            prop_assert!((got - asked).abs() <= 0.05 * asked, "{got} of {asked} bytes");
            let window = Duration::from_millis(10);
            prop_assert!(fullest(&sent, window) <= in_time(rate, window) + burst + 1);
        }

        /// However often the rate limit is changed, it never permits more bytes than the highest
        /// of the rates and the largest of the bursts would.
        // abi: R-836
        #[test]
        fn changes_earn_nothing(
            limits in prop::collection::vec((1_000u32..100_000, 64u32..50_000), 1..20),
        ) {
            let start = Instant::now();
            let limit = |&(rate, burst): &(u32, u32)| RateLimitAttr { rate, burst, packet: 1_000 };
            let mut pacer = Pacer::new(limit(&limits[0]), start);
            let (mut now, mut bytes) = (start, 0);
            for next in &limits {
                pacer.change(limit(next), now);
                while pacer.admit(now, 1_000).is_ok() {
                    pacer.spend(1_000);
                    bytes += 1_000;
                }
                now += Duration::from_millis(3);
            }
            let rate = limits.iter().map(|limit| limit.0).max().unwrap();
            let burst = limits.iter().map(|limit| limit.1).max().unwrap().max(1_000);
            prop_assert!(bytes <= in_time(rate, now - start) + u64::from(burst));
        }
    }

    // abi: R-832
    #[test]
    fn a_burst_is_a_packet_at_least() {
        let start = Instant::now();
        let limit = RateLimitAttr {
            rate: 1_000,
            burst: 100,
            packet: 1_000,
        };
        let mut pacer = Pacer::new(limit, start);
        assert_eq!(pacer.admit(start, 100), Ok(()));
        pacer.spend(100);
        // At 1 Mb/s, 4,000 bytes take 32 ms.
        let after = Duration::from_millis(32);
        assert_eq!(pacer.admit(start, 4_000), Err(start + after));
        assert!(pacer.admit(start + after - STEP, 4_000).is_err());
        assert_eq!(pacer.admit(start + after, 4_000), Ok(()));
    }

    // abi: R-827
    #[test]
    fn the_pause_after_a_burst_is_as_long_as_a_typical_packet() {
        let start = Instant::now();
        for (packet, ms) in [(1_000, 8), (250, 2), (10, 1)] {
            let limit = RateLimitAttr {
                rate: 1_000,
                burst: 5_000,
                packet,
            };
            let mut pacer = Pacer::new(limit, start);
            assert_eq!(pacer.admit(start, 5_000), Ok(()));
            pacer.spend(5_000);
            // The pause is the time that a typical packet takes, but at least the time that the
            // next frame takes: 1 ms for 125 bytes.
            let pause = Duration::from_millis(ms);
            assert_eq!(pacer.admit(start, 125), Err(start + pause), "{packet}");
        }
    }

    #[test]
    fn the_default_burst_follows_the_rate() {
        let limit = |rate| RateLimitAttr {
            rate,
            burst: 0,
            packet: 1_500,
        };
        assert_eq!(limit(1_000).burst(), 1_500);
        assert_eq!(limit(1_000_000).burst(), 625_000);
    }

    #[test]
    fn what_was_not_sent_is_given_back() {
        let start = Instant::now();
        let limit = RateLimitAttr {
            rate: 1_000,
            burst: 3_000,
            packet: 1_000,
        };
        let mut pacer = Pacer::new(limit, start);
        pacer.spend(3_000);
        pacer.give_back(2_000);
        assert_eq!(pacer.admit(start, 2_000), Ok(()));
        assert!(pacer.admit(start, 2_001).is_err());
        pacer.give_back(9_000);
        assert!(pacer.admit(start, 3_000).is_ok());
        assert!(pacer.admit(start, 3_001).is_err(), "no more than a burst");
    }
}
