// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The clock for deadlines and rate limits.

use std::time::Instant;

use super::sync;
#[cfg(feature = "testing")]
use super::testing::ManualTime;

/// The clock of a runtime: the system's clock, or in tests a manual clock, which stands still until
/// the test advances it.
#[derive(Clone, Debug)]
pub struct Clock(pub(super) ClockKind);

#[derive(Clone, Debug)]
pub(super) enum ClockKind {
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
    /// The clock of the system.
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
    pub(crate) fn stands_still(&self) -> bool {
        match &self.0 {
            ClockKind::System => false,
            #[cfg(feature = "testing")]
            ClockKind::Manual(_) => true,
        }
    }

    /// Time until which a thread sleeps if it must act at `deadline`. With a manual clock this is
    /// `None`: the thread sleeps until it is woken.
    pub(super) fn alarm(&self, deadline: Instant) -> Option<Instant> {
        (!self.stands_still()).then_some(deadline)
    }
}

/// Nanoseconds from `start` to `at`, or 0 if `at` is earlier. 64 bits last for five centuries.
#[inline]
pub(super) fn nanos_since(start: Instant, at: Instant) -> u64 {
    at.saturating_duration_since(start).as_nanos() as u64
}
