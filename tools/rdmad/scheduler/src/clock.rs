// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The clock for deadlines and rate limits.

#[cfg(feature = "testing")]
mod manual;

#[cfg(feature = "testing")]
use std::time::Duration;
use std::time::Instant;

#[cfg(feature = "testing")]
use self::manual::ManualTime;
use crate::sync;

/// The clock of a runtime: the system's clock, or in tests a manual clock, which stands still until
/// the test advances it.
#[derive(Clone, Debug)]
pub struct Clock(ClockKind);

#[derive(Clone, Debug)]
enum ClockKind {
    System,
    #[cfg(feature = "testing")]
    Manual(ManualTime),
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl Clock {
    pub fn system() -> Self {
        Self(ClockKind::System)
    }

    /// The current time.
    #[inline]
    pub fn now(&self) -> Instant {
        match &self.0 {
            ClockKind::System => sync::now(),
            #[cfg(feature = "testing")]
            ClockKind::Manual(time) => time.now(),
        }
    }

    /// Whether this is a manual clock.
    #[inline]
    pub fn stands_still(&self) -> bool {
        match &self.0 {
            ClockKind::System => false,
            #[cfg(feature = "testing")]
            ClockKind::Manual(_) => true,
        }
    }

    /// Time until which a thread sleeps if it must act at `deadline`. With a manual clock this is
    /// `None`: the thread sleeps until it is woken.
    #[inline]
    pub(crate) fn alarm(&self, deadline: Instant) -> Option<Instant> {
        (!self.stands_still()).then_some(deadline)
    }
}

/// Nanoseconds from `start` to `at`, or 0 if `at` is earlier. 64 bits last for five centuries.
#[inline]
pub(crate) fn nanos_since(start: Instant, at: Instant) -> u64 {
    at.saturating_duration_since(start).as_nanos() as u64
}

#[cfg(feature = "testing")]
impl Clock {
    /// A manual clock. Only [`advance`](crate::Scheduler::advance) and [`pass`](Self::pass) move
    /// it.
    pub fn manual() -> Self {
        Self::slow(Duration::ZERO)
    }

    /// A manual clock that also advances by `look` with each look at it, as if the host were slow.
    /// Only for workers that are stepped.
    pub fn slow(look: Duration) -> Self {
        Self(ClockKind::Manual(ManualTime::new(look)))
    }

    /// Advances a manual clock by `time`. With the system's clock the thread sleeps.
    pub fn pass(&self, time: Duration) {
        match &self.0 {
            ClockKind::System => sync::sleep(time),
            ClockKind::Manual(manual) => manual.pass(time),
        }
    }
}
