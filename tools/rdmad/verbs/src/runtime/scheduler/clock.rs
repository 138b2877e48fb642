// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The time by which deadlines and rate limits go.

use std::time::Instant;

use super::sync;
#[cfg(feature = "testing")]
use super::testing::ManualTime;

/// The clock of a runtime: that of the system. A test may have one that stands still until it is
/// told to go on, so that the test sees exactly what happens when.
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

    /// The time.
    #[inline]
    pub fn now(&self) -> Instant {
        match &self.0 {
            ClockKind::System => sync::now(),
            #[cfg(feature = "testing")]
            ClockKind::Manual(time) => time.now(),
        }
    }

    /// Whether it goes on only when it is told to.
    pub(crate) fn stands_still(&self) -> bool {
        match &self.0 {
            ClockKind::System => false,
            #[cfg(feature = "testing")]
            ClockKind::Manual(_) => true,
        }
    }

    /// Until when a thread sleeps that is to act at `deadline`: for ever if the clock stands still.
    pub(super) fn alarm(&self, deadline: Instant) -> Option<Instant> {
        (!self.stands_still()).then_some(deadline)
    }
}

/// Nanoseconds from `start` to `at`, or 0 if that is earlier. Five centuries fit.
#[inline]
pub(super) fn nanos_since(start: Instant, at: Instant) -> u64 {
    at.saturating_duration_since(start).as_nanos() as u64
}
