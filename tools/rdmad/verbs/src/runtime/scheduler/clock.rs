// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The time by which deadlines and rate limits go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::sync::{self, AtomicU64, Ordering};

/// The clock of a runtime: that of the system, or one that stands still until it is told to go on,
/// so that a test sees exactly what happens when.
#[derive(Clone, Debug)]
pub struct Clock(ClockKind);

#[derive(Clone, Debug)]
enum ClockKind {
    System,
    Manual {
        start: Instant,
        /// Since `start`, in nanoseconds.
        elapsed: Arc<AtomicU64>,
    },
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

    /// A clock that stands still but for [`Runtime::advance`](crate::Runtime::advance).
    pub fn manual() -> Self {
        Self(ClockKind::Manual {
            start: sync::now(),
            elapsed: Arc::default(),
        })
    }

    /// The time.
    #[inline]
    pub fn now(&self) -> Instant {
        match &self.0 {
            ClockKind::System => sync::now(),
            ClockKind::Manual { start, elapsed } => {
                *start + Duration::from_nanos(elapsed.load(Ordering::Acquire))
            }
        }
    }

    /// Lets `time` pass. On the clock of the system the current thread sleeps.
    pub(crate) fn pass(&self, time: Duration) {
        match &self.0 {
            ClockKind::System => sync::sleep(time),
            // Five centuries fit.
            ClockKind::Manual { elapsed, .. } => {
                elapsed.fetch_add(time.as_nanos() as u64, Ordering::AcqRel);
            }
        }
    }

    /// Whether it goes on only by [`Runtime::advance`](crate::Runtime::advance).
    pub(crate) fn stands_still(&self) -> bool {
        matches!(self.0, ClockKind::Manual { .. })
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
