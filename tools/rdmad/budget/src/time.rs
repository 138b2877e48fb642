// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Limits on the time for which one client keeps a resource from others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A share of the time of a resource, such as a thread that serves many clients.
///
/// A client that has used the resource may use it again when its use is within its share, apart
/// from a burst. All threads may charge a share.
#[derive(Debug)]
pub struct TimeShare {
    /// Denominator of the share: the client may use the resource for 1/`parts` of the time.
    parts: u32,
    burst: Duration,
    start: Instant,
    /// Time since `start`, in nanoseconds, at which the use so far is within the share.
    paid: AtomicU64,
}

impl TimeShare {
    /// A share of 1/`parts` of the time, with bursts of up to `burst`. `start` is any time.
    pub fn new(parts: u32, burst: Duration, start: Instant) -> Self {
        Self {
            parts,
            burst,
            start,
            paid: AtomicU64::new(0),
        }
    }

    /// Charges the client for use of the length `used` that ended at `now`.
    pub fn charge(&self, used: Duration, now: Instant) {
        let now = now.saturating_duration_since(self.start);
        let began = nanoseconds(now.saturating_sub(used));
        let price = nanoseconds(used.saturating_mul(self.parts));
        let paid = |paid: u64| Some(paid.max(began).saturating_add(price));
        // The closure never refuses.
        let _ = self
            .paid
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, paid);
    }

    /// How long after `now` the client must not use the resource.
    pub fn pause(&self, now: Instant) -> Duration {
        self.debt(now).saturating_sub(self.burst * self.parts)
    }

    /// How long after `now` the client may use the resource without a break.
    pub fn longest_use(&self, now: Instant) -> Duration {
        let rest = (self.burst * self.parts).saturating_sub(self.debt(now));
        // While the resource is used, the debt grows by this much in each unit of time.
        rest / (self.parts - 1).max(1)
    }

    fn debt(&self, now: Instant) -> Duration {
        let paid = self.paid.load(Ordering::Relaxed);
        if paid == 0 {
            return Duration::ZERO;
        }
        let paid = Duration::from_nanos(paid);
        paid.saturating_sub(now.saturating_duration_since(self.start))
    }
}

pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn use_beyond_the_burst_is_paid_by_a_pause() {
        let start = Instant::now();
        let share = TimeShare::new(200, 5 * MS, start);
        share.charge(5 * MS, start + 5 * MS);
        assert_eq!(share.pause(start + 5 * MS), Duration::ZERO);
        share.charge(MS, start + 6 * MS);
        assert_eq!(share.pause(start + 6 * MS), 194 * MS);
        assert_eq!(share.pause(start + 156 * MS), 44 * MS);
        assert_eq!(share.pause(start + 200 * MS), Duration::ZERO);
        // Unused time is saved up to the burst only.
        let later = start + 100_000 * MS;
        share.charge(7 * MS, later + 7 * MS);
        assert_eq!(share.pause(later + 7 * MS), 393 * MS);
    }

    #[test]
    fn a_client_that_never_stops_uses_up_its_burst_in_time() {
        let start = Instant::now();
        let share = TimeShare::new(2, 50 * MS, start);
        assert_eq!(share.longest_use(start), 100 * MS);
        for step in 1..=10 {
            let now = start + 10 * step * MS;
            share.charge(10 * MS, now);
            assert_eq!(share.longest_use(now), 10 * (10 - step) * MS);
        }
        // Half of the time is used.
        let later = start + 150 * MS;
        assert_eq!(share.longest_use(later), 50 * MS);
    }

    #[test]
    fn any_length_of_use_is_charged() {
        let start = Instant::now();
        let share = TimeShare::new(200, MS, start);
        share.charge(Duration::MAX, start);
        share.charge(Duration::MAX, start);
        let later = start + 1_000_000 * MS;
        assert!(share.pause(later) > 1_000_000 * MS);
    }
}
