// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A clock that a test moves, and workers that follow it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock::ClockKind;
use super::sync::{self, AtomicU64, Ordering};
use super::{Clock, Scheduler};

/// The time of a clock that stands still until it is told to go on.
#[derive(Clone, Debug)]
pub(super) struct ManualTime {
    start: Instant,
    /// Since `start`, in nanoseconds.
    elapsed: Arc<AtomicU64>,
}

impl ManualTime {
    /// The time.
    pub(super) fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.elapsed.load(Ordering::Acquire))
    }
}

impl Clock {
    /// A clock that stands still but for [`Runtime::advance`](crate::Runtime::advance) and
    /// [`Runtime::pass`](crate::Runtime::pass).
    pub fn manual() -> Self {
        Self(ClockKind::Manual(ManualTime {
            start: sync::now(),
            elapsed: Arc::default(),
        }))
    }

    /// Lets `time` pass. On the clock of the system the current thread sleeps.
    pub(crate) fn pass(&self, time: Duration) {
        match &self.0 {
            ClockKind::System => sync::sleep(time),
            // Five centuries fit.
            ClockKind::Manual(at) => {
                at.elapsed
                    .fetch_add(time.as_nanos() as u64, Ordering::AcqRel);
            }
        }
    }
}

impl Scheduler {
    /// Lets `time` pass, from one deadline to the next on a clock that stands still, so that each
    /// is met to the nanosecond. Returns when all is done that was due, and what that entailed. On
    /// the clock of the system it sleeps.
    pub(crate) fn advance(&self, time: Duration) {
        if !self.clock.stands_still() {
            return self.clock.pass(time);
        }
        self.settle();
        let end = self.clock.now() + time;
        loop {
            let next = self.next_deadline().map_or(end, |next| next.min(end));
            self.clock
                .pass(next.saturating_duration_since(self.clock.now()));
            self.settle();
            if next == end {
                return;
            }
        }
    }

    /// Returns when nothing is left to do before time passes, which it does not meanwhile.
    fn settle(&self) {
        while !self.is_idle() {
            if self.is_due() {
                // A worker that was about to sleep does not know that the clock went on.
                self.sleep.wake_all();
            }
            sync::yield_now();
        }
    }

    /// Whether no worker has anything to do now. A worker that is not asleep may have.
    fn is_idle(&self) -> bool {
        self.sleep
            .all_sleep_while(|| !self.is_busy() && !self.is_due())
    }
}
