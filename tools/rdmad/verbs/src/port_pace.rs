// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Rate limits of a port: bytes and messages per second, shared by its QPs.
//!
//! Each limit has a token bucket; its tokens are called credit. A QP that finds too little credit
//! books a portion: the portion is taken from the credit, which becomes negative, and the QP parks
//! until the rate has earned the missing amount. So QPs are served in the order of their bookings,
//! one portion each. If a QP tries again before that time, its booking stays the same.
//!
//! Without limits, a QP only reads one flag.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use scheduler::shared::Mutex;

/// Credit for one byte or message. A rate of one per second earns a credit of 1 per nanosecond.
const UNIT: i128 = 1_000_000_000;
/// The default burst is as much as the rate carries in this time. A worker may be late by this time
/// without loss of throughput.
const DEFAULT_BURST: Duration = Duration::from_millis(5);
/// A portion is as much as the rate carries in this time, up to [`MOST_BYTES`] or
/// [`MOST_MESSAGES`].
const PORTION: Duration = Duration::from_millis(10);
/// Largest portion, in bytes and in messages.
const MOST_BYTES: u64 = 64 << 10;
const MOST_MESSAGES: u64 = 64;

/// A limit: amount per second, and burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bytes or messages per second, not 0.
    pub per_second: u64,
    /// Number of bytes or messages that may be sent at once after a pause. The default is as much
    /// as the rate carries in 5 ms, but at least one portion. A portion is as much as the rate
    /// carries in 10 ms, but at most 64 KiB or 64 messages.
    pub burst: Option<u64>,
}

/// The limits of a port, for the requests of its own QPs. For requests to ports of the same process
/// the bytes of messages are counted; for other destinations, the bytes of frames. The data of a
/// READ is counted at the requesting port. Local work requests are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortRates {
    /// Limit of bytes.
    pub bytes: Option<Rate>,
    /// Limit of messages.
    pub messages: Option<Rate>,
}

/// Time for which the limits have delayed the port's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttled {
    /// Time for which the limit of bytes delayed work.
    pub bytes: Duration,
    /// Time for which the limit of messages delayed work.
    pub messages: Duration,
}

/// The bookings of a QP at the port's limits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PortShare {
    bytes: Share,
    messages: Share,
}

/// The booking of a QP at one bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    /// Version of the limit at which the booking was made.
    version: u64,
    /// Time from which the QP may spend its booking; `None` if it may spend it now.
    at: Option<Instant>,
    left: u64,
    /// Amount that was used without payment: the QP's next attempt must pay for it too.
    owed: u64,
}

/// The limits of a port and their token buckets.
#[derive(Debug)]
pub(crate) struct PortPacer {
    /// Whether any limit is set.
    limits: AtomicBool,
    buckets: Mutex<Buckets>,
}

#[derive(Debug)]
struct Buckets {
    rates: PortRates,
    bytes: Bucket,
    messages: Bucket,
}

impl PortPacer {
    /// Limits with full buckets.
    pub(crate) fn new(rates: PortRates, now: Instant) -> Self {
        let pacer = Self {
            limits: AtomicBool::new(false),
            buckets: Mutex::new(Buckets {
                rates: PortRates::default(),
                bytes: Bucket::new(MOST_BYTES, now),
                messages: Bucket::new(MOST_MESSAGES, now),
            }),
        };
        pacer.change(rates, now);
        pacer
    }

    /// Replaces the limits. Bookings become void.
    pub(crate) fn change(&self, rates: PortRates, now: Instant) {
        let buckets = &mut *self.buckets.lock();
        buckets.rates = rates;
        buckets.bytes.change(rates.bytes, now);
        buckets.messages.change(rates.messages, now);
        let any = rates.bytes.is_some() || rates.messages.is_some();
        self.limits.store(any, Ordering::Release);
    }

    /// The limits.
    pub(crate) fn rates(&self) -> PortRates {
        self.buckets.lock().rates
    }

    /// Time for which the limits have delayed work so far.
    pub(crate) fn throttled(&self, now: Instant) -> Throttled {
        let Buckets {
            bytes, messages, ..
        } = &*self.buckets.lock();
        Throttled {
            bytes: bytes.throttled(now),
            messages: messages.throttled(now),
        }
    }

    /// Whether any limit is set.
    #[inline]
    pub(crate) fn has_limits(&self) -> bool {
        self.limits.load(Ordering::Acquire)
    }

    /// Charges one message to the limit of messages, or returns the time of the next attempt.
    #[inline]
    pub(crate) fn take_message(&self, now: Instant, share: &mut PortShare) -> Result<(), Instant> {
        if !self.has_limits() {
            return Ok(());
        }
        let messages = &mut self.buckets.lock().messages;
        messages.take(now, &mut share.messages, 1, 1).map(drop)
    }

    /// Gives the charge for a message back, since the message was not started.
    #[inline]
    pub(crate) fn give_message_back(&self, share: &mut PortShare) {
        if self.has_limits() {
            share.messages.left += 1;
        }
    }

    /// Charges between `least` and `most` bytes to the limit of bytes and returns their number, or
    /// returns the time of the next attempt.
    #[inline]
    pub(crate) fn take_bytes(
        &self,
        now: Instant,
        share: &mut PortShare,
        least: usize,
        most: usize,
    ) -> Result<usize, Instant> {
        if !self.has_limits() {
            return Ok(most);
        }
        let (least, most) = (least as u64, most as u64);
        let bytes = &mut self.buckets.lock().bytes;
        // `taken` is at most `most`, so the cast can't truncate.
        bytes
            .take(now, &mut share.bytes, least, most)
            .map(|taken| taken as usize)
    }

    /// Gives the charge for `bytes` bytes back, since they were not sent.
    #[inline]
    pub(crate) fn give_bytes_back(&self, share: &mut PortShare, bytes: usize) {
        if self.has_limits() {
            share.bytes.left += bytes as u64;
        }
    }

    /// Charges the QP for bytes that the peer will send in response. The QP's next attempt to send
    /// has to pay for them.
    #[inline]
    pub(crate) fn owe_bytes(&self, share: &mut PortShare, bytes: u64) {
        if self.has_limits() {
            self.buckets.lock().bytes.void_if_stale(&mut share.bytes);
            share.bytes.owed += bytes;
        }
    }
}

/// A token bucket. If `rate` is 0, there is no limit.
#[derive(Debug)]
struct Bucket {
    /// Version of the limit, which each change increments.
    version: u64,
    /// Bytes or messages per second; 0 without a limit.
    rate: u64,
    /// Amount that may be spent now, in units of [`UNIT`]: at most `capacity`, negative while the
    /// rate has not earned all bookings.
    credit: i128,
    capacity: i128,
    /// Maximum of `portion`.
    most: u64,
    /// Number of bytes or messages in a portion, at the current rate.
    portion: u64,
    /// Time at which `credit` was computed.
    at: Instant,
    /// Time since which the limit has been delaying work, or `None` if it does not delay work now.
    since: Option<Instant>,
    /// Time for which the limit delayed work before `since`.
    throttled: Duration,
}

impl Bucket {
    fn new(most: u64, now: Instant) -> Self {
        Self {
            version: 0,
            rate: 0,
            credit: 0,
            capacity: 0,
            most,
            portion: 0,
            at: now,
            since: None,
            throttled: Duration::ZERO,
        }
    }

    /// Replaces the limit. If there was no limit before, the bucket is full. Otherwise the credit
    /// stays the same, up to the new capacity, so frequent changes gain nothing.
    fn change(&mut self, limit: Option<Rate>, now: Instant) {
        self.fill(now);
        self.let_through(now);
        let had_limit = self.rate != 0;
        self.version += 1;
        self.rate = limit.map_or(0, |limit| limit.per_second.max(1));
        self.portion = self.carried(PORTION).clamp(1, self.most);
        let burst = limit.and_then(|limit| limit.burst);
        let burst = burst.unwrap_or(self.carried(DEFAULT_BURST).max(self.portion));
        self.capacity = i128::from(burst.max(1)) * UNIT;
        self.credit = if had_limit {
            self.credit.clamp(0, self.capacity)
        } else {
            self.capacity
        };
    }

    /// The bytes or messages that the rate carries in `time`, which must be less than a second.
    fn carried(&self, time: Duration) -> u64 {
        // The result is less than the rate, so the cast can't truncate.
        (u128::from(self.rate) * time.as_nanos() / UNIT.unsigned_abs()) as u64
    }

    /// Spends an amount between `least` and `most`, first from the QP's booking, and returns it. If
    /// less than `least` is available, books a portion and returns the time of the next attempt.
    fn take(
        &mut self,
        now: Instant,
        share: &mut Share,
        least: u64,
        most: u64,
    ) -> Result<u64, Instant> {
        if self.rate == 0 {
            return Ok(most);
        }
        self.void_if_stale(share);
        if let Some(at) = share.at.filter(|at| now < *at) {
            self.since.get_or_insert(now);
            return Err(at);
        }
        share.at = None;
        self.fill(now);
        let (least, most) = (least + share.owed, most + share.owed);
        let missing = least.saturating_sub(share.left);
        let free = (self.credit / UNIT).max(0);
        if i128::from(missing) <= free {
            self.let_through(now);
            let wanted = most.saturating_sub(share.left);
            let more = free.min(wanted.into());
            self.credit -= more * UNIT;
            // `more` is at most `wanted`, so the casts can't truncate.
            let taken = most.min(share.left + more as u64);
            share.left = share.left + more as u64 - taken;
            // No underflow: `taken` is at least `least`, which includes the owed amount.
            return Ok(taken - mem::take(&mut share.owed));
        }
        self.since.get_or_insert(now);
        // A portion is at most one burst, but never less than `least`.
        let burst = self.capacity / UNIT;
        let portion = burst.min(self.portion.into()).max(1) as u64;
        let booked = portion.max(least) - share.left.min(least);
        self.credit -= i128::from(booked) * UNIT;
        share.left += booked;
        let nanos = self.credit.min(0).unsigned_abs().div_ceil(self.rate.into());
        // 64 bits of nanoseconds last for five centuries, so a cut to 64 bits does not matter.
        let at = now + Duration::from_nanos(nanos.min(u64::MAX.into()) as u64);
        share.at = Some(at);
        Err(at)
    }

    /// Voids a booking that was made before the limit was changed.
    fn void_if_stale(&self, share: &mut Share) {
        if share.version != self.version {
            *share = Share {
                version: self.version,
                ..Share::default()
            };
        }
    }

    fn throttled(&self, now: Instant) -> Duration {
        let since = self.since.map(|since| now.saturating_duration_since(since));
        self.throttled + since.unwrap_or_default()
    }

    fn let_through(&mut self, now: Instant) {
        self.throttled = self.throttled(now);
        self.since = None;
    }

    fn fill(&mut self, now: Instant) {
        let nanos = now.saturating_duration_since(self.at).as_nanos();
        let most = (self.capacity - self.credit).max(0);
        // If the earned amount does not fit an `i128`, the bucket becomes full.
        let earned = i128::try_from(nanos.saturating_mul(self.rate.into())).unwrap_or(most);
        self.credit += earned.min(most);
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limit(bytes: u64, burst: Option<u64>) -> PortRates {
        PortRates {
            bytes: Some(Rate {
                per_second: bytes,
                burst,
            }),
            messages: None,
        }
    }

    /// Lets `qps` QPs spend as much as the limit permits in `time`. Returns the amount that each QP
    /// spent.
    fn drain(pacer: &PortPacer, qps: usize, start: Instant, time: Duration) -> Vec<u64> {
        let mut all = vec![(PortShare::default(), start, 0); qps];
        loop {
            let (share, now, taken) = all.iter_mut().min_by_key(|(_, now, _)| *now).unwrap();
            if *now >= start + time {
                return all.iter().map(|(_, _, taken)| *taken).collect();
            }
            match pacer.take_bytes(*now, share, 1, 64 << 10) {
                Ok(bytes) => *taken += bytes as u64,
                Err(at) => {
                    assert!(at > *now, "waits for the past");
                    *now = at;
                }
            }
        }
    }

    #[test]
    fn rates_from_slow_to_fast_hold() {
        for rate in [1_000, 1_000_000, 4_000_000_000] {
            let start = Instant::now();
            let pacer = PortPacer::new(limit(rate, None), start);
            let taken: u64 = drain(&pacer, 1, start, 10 * SECOND).iter().sum();
            let asked = 10 * rate;
            assert!(taken.abs_diff(asked) <= asked / 50, "{taken}");
        }
    }

    #[test]
    fn qps_get_equal_shares() {
        let start = Instant::now();
        let pacer = PortPacer::new(limit(1_000_000, None), start);
        let taken = drain(&pacer, 10, start, 10 * SECOND);
        for of_one in taken {
            assert!(of_one.abs_diff(1_000_000) <= 20_000, "{of_one}");
        }
    }

    #[test]
    fn who_comes_too_early_loses_nothing() {
        let start = Instant::now();
        let pacer = PortPacer::new(limit(1_000, Some(100)), start);
        let share = &mut PortShare::default();
        assert_eq!(pacer.take_bytes(start, share, 1, 200), Ok(100));
        let at = pacer.take_bytes(start, share, 50, 200).unwrap_err();
        assert_eq!(at, start + SECOND / 20);
        for early in [0, 1, 10] {
            let early = start + early * SECOND / 1_000;
            assert_eq!(pacer.take_bytes(early, share, 50, 200), Err(at));
        }
        assert_eq!(pacer.take_bytes(at, share, 50, 200), Ok(50));
    }

    #[test]
    fn debts_are_paid() {
        let start = Instant::now();
        let pacer = PortPacer::new(limit(1_000_000, Some(1)), start);
        let share = &mut PortShare::default();
        pacer.owe_bytes(share, 2_000_001);
        let at = pacer.take_bytes(start, share, 100, 100).unwrap_err();
        assert_eq!(at, start + 2 * SECOND + SECOND / 10_000);
        assert_eq!(pacer.take_bytes(at, share, 100, 100), Ok(100));
        assert!(pacer.take_bytes(at, share, 100, 100).is_err());
    }

    #[test]
    fn a_frame_may_be_longer_than_a_burst() {
        let start = Instant::now();
        let pacer = PortPacer::new(limit(1_000, Some(100)), start);
        let share = &mut PortShare::default();
        let at = pacer.take_bytes(start, share, 4_000, 4_000).unwrap_err();
        assert_eq!(at, start + 39 * SECOND / 10);
        assert_eq!(pacer.take_bytes(at, share, 4_000, 4_000), Ok(4_000));
    }

    #[test]
    fn what_did_not_leave_is_given_back_and_changes_earn_nothing() {
        let start = Instant::now();
        let pacer = PortPacer::new(limit(1_000, Some(500)), start);
        let share = &mut PortShare::default();
        assert_eq!(pacer.take_bytes(start, share, 1, 400), Ok(400));
        pacer.give_bytes_back(share, 200);
        assert_eq!(pacer.take_bytes(start, share, 1, 250), Ok(250));
        pacer.change(limit(2_000, Some(30)), start);
        assert_eq!(pacer.take_bytes(start, share, 1, 800), Ok(30));
        pacer.change(limit(9_000, Some(900)), start);
        assert!(pacer.take_bytes(start, share, 1, 800).is_err());
        pacer.change(PortRates::default(), start);
        assert_eq!(pacer.take_bytes(start, share, 1, 800), Ok(800));
    }

    #[test]
    fn the_time_of_each_limit_is_told() {
        let start = Instant::now();
        let messages = Some(Rate {
            per_second: 10,
            burst: Some(1),
        });
        let rates = PortRates {
            bytes: None,
            messages,
        };
        let pacer = PortPacer::new(rates, start);
        let share = &mut PortShare::default();
        pacer.take_message(start, share).unwrap();
        let at = pacer.take_message(start, share).unwrap_err();
        assert_eq!(at, start + SECOND / 10);
        assert_eq!(pacer.throttled(start + SECOND / 20).messages, SECOND / 20);
        assert_eq!(pacer.take_message(at, share), Ok(()));
        let told = Throttled {
            bytes: Duration::ZERO,
            messages: SECOND / 10,
        };
        assert_eq!(pacer.throttled(at + SECOND), told);
    }
}
