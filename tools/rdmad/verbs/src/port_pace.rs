// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Limits of a port: bytes and messages a second, which its QPs share.
//!
//! There is a token bucket for each. A QP that finds too little books a portion: the bucket goes
//! into debt by it, and the QP parks until the debt is paid. So QPs are served in the order of
//! their bookings, each for one portion. A QP that comes too early learns its time again.
//!
//! Without limits, a QP reads one flag here and nothing else.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Credit for one byte or message. A rate of one a second earns 1 a nanosecond.
const UNIT: i128 = 1_000_000_000;
/// Time that the rate needs to carry a burst by default, since a worker may come late by that much.
const DEFAULT_BURST: Duration = Duration::from_millis(5);
/// Time that the rate needs to carry a portion, unless that is longer than one may be.
const PORTION: Duration = Duration::from_millis(10);
/// Bytes and messages of a portion at most.
const MOST_BYTES: u64 = 64 << 10;
const MOST_MESSAGES: u64 = 64;

/// A limit: how much a second, and how much at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bytes or messages a second, not 0.
    pub per_second: u64,
    /// Bytes or messages that may leave at once after a pause; by default what the rate carries in
    /// 5 ms, or a little more if that is very small.
    pub burst: Option<u64>,
}

/// The limits of a port, for its requests. To other ports of the process the bytes of messages
/// count and elsewhere those of frames. A READ counts at the port that asks for it, and local work
/// nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortRates {
    /// Bytes a second.
    pub bytes: Option<Rate>,
    /// Messages a second.
    pub messages: Option<Rate>,
}

/// How long limits have held work of a port back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttled {
    /// The limit of bytes.
    pub bytes: Duration,
    /// The limit of messages.
    pub messages: Duration,
}

/// The bookings of a QP.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PortShare {
    bytes: Share,
    messages: Share,
}

/// The booking of a QP at a bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    /// The limit by which it did.
    version: u64,
    /// When it may spend it; any time if there is none.
    at: Option<Instant>,
    left: u64,
    /// Credit that the QP has to pay before it spends more.
    owed: u64,
}

/// The limits of a port and its buckets.
#[derive(Debug)]
pub(crate) struct PortPacer {
    /// Whether there is any limit.
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
    /// With full buckets.
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

    /// Goes on with other limits. Bookings are void.
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

    /// How long they have held work back so far.
    pub(crate) fn throttled(&self, now: Instant) -> Throttled {
        let Buckets {
            bytes, messages, ..
        } = &*self.buckets.lock();
        Throttled {
            bytes: bytes.throttled(now),
            messages: messages.throttled(now),
        }
    }

    /// Whether there is any limit.
    #[inline]
    pub(crate) fn has_limits(&self) -> bool {
        self.limits.load(Ordering::Acquire)
    }

    /// Spends a message, or tells when to ask again.
    #[inline]
    pub(crate) fn take_message(&self, now: Instant, share: &mut PortShare) -> Result<(), Instant> {
        if !self.has_limits() {
            return Ok(());
        }
        let messages = &mut self.buckets.lock().messages;
        messages.take(now, &mut share.messages, 1, 1).map(drop)
    }

    /// Takes back a message that did not begin after all.
    #[inline]
    pub(crate) fn give_message_back(&self, share: &mut PortShare) {
        if self.has_limits() {
            share.messages.left += 1;
        }
    }

    /// Spends from `least` to `most` bytes and returns how many, or tells when to ask again.
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
        // At most `most`.
        bytes
            .take(now, &mut share.bytes, least, most)
            .map(|taken| taken as usize)
    }

    /// Takes back bytes that did not leave after all.
    #[inline]
    pub(crate) fn give_bytes_back(&self, share: &mut PortShare, bytes: usize) {
        if self.has_limits() {
            share.bytes.left += bytes as u64;
        }
    }

    /// Has the QP pay for bytes that the peer will send before it spends more.
    #[inline]
    pub(crate) fn owe_bytes(&self, share: &mut PortShare, bytes: u64) {
        if self.has_limits() {
            self.buckets.lock().bytes.renew(&mut share.bytes);
            share.bytes.owed += bytes;
        }
    }
}

/// A token bucket, which need not have a limit.
#[derive(Debug)]
struct Bucket {
    /// Number of the limit.
    version: u64,
    /// A second; 0 without a limit.
    rate: u64,
    /// At most `capacity`; below 0 for what is booked.
    credit: i128,
    capacity: i128,
    /// Largest portion of any limit.
    most: u64,
    /// Portion of this one.
    portion: u64,
    /// When `credit` was right.
    at: Instant,
    /// Since when work is held back.
    since: Option<Instant>,
    /// How long it was before that.
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

    /// Goes on with another limit. A limit that comes anew has a full bucket; else the credit
    /// stays, as far as it fits: who changes often gets no more.
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

    /// The bytes or messages that the rate carries in `time`, less than a second.
    fn carried(&self, time: Duration) -> u64 {
        // Less than the rate.
        (u128::from(self.rate) * time.as_nanos() / UNIT.unsigned_abs()) as u64
    }

    /// Spends from `least` to `most`, first of what the QP has booked, and returns how much; or
    /// books, and tells when to ask again.
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
        self.renew(share);
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
            // At most `wanted`.
            let taken = most.min(share.left + more as u64);
            share.left = share.left + more as u64 - taken;
            // `least` is no less.
            return Ok(taken - mem::take(&mut share.owed));
        }
        self.since.get_or_insert(now);
        // A portion is no more than a burst, unless what is needed is.
        let burst = self.capacity / UNIT;
        let portion = burst.min(self.portion.into()).max(1) as u64;
        let booked = portion.max(least) - share.left.min(least);
        self.credit -= i128::from(booked) * UNIT;
        share.left += booked;
        let nanos = self.credit.min(0).unsigned_abs().div_ceil(self.rate.into());
        // Centuries fit.
        let at = now + Duration::from_nanos(nanos.min(u64::MAX.into()) as u64);
        share.at = Some(at);
        Err(at)
    }

    /// Bookings by another limit are void.
    fn renew(&self, share: &mut Share) {
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
        // A sum that does not fit is more than the bucket holds.
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

    /// Takes all that there is for `time` with so many QPs. Returns how much each took.
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
