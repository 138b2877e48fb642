// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A manual clock for tests, and helpers to run workers up to a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock::ClockKind;
use super::sync::{self, AtomicU64, Ordering};
use super::{Clock, Scheduler};

/// The time of a manual clock.
#[derive(Clone, Debug)]
pub(super) struct ManualTime {
    start: Instant,
    /// Nanoseconds since `start`.
    elapsed: Arc<AtomicU64>,
    /// Nanoseconds that pass with each look at the clock.
    look: u64,
}

impl ManualTime {
    /// The current time.
    pub(super) fn now(&self) -> Instant {
        let elapsed = match self.look {
            0 => self.elapsed.load(Ordering::Acquire),
            look => self.elapsed.fetch_add(look, Ordering::AcqRel),
        };
        self.start + Duration::from_nanos(elapsed)
    }
}

impl Clock {
    /// A manual clock. Only [`Runtime::advance`](crate::Runtime::advance) and
    /// [`Runtime::pass`](crate::Runtime::pass) move it.
    pub fn manual() -> Self {
        Self::slow(Duration::ZERO)
    }

    /// A manual clock that also advances by `look` with each look at it, as if the host were slow.
    /// Only for workers that are stepped.
    pub fn slow(look: Duration) -> Self {
        Self(ClockKind::Manual(ManualTime {
            start: sync::now(),
            elapsed: Arc::default(),
            look: look.as_nanos() as u64,
        }))
    }

    /// Advances a manual clock by `time`. With the system's clock the thread sleeps.
    pub(crate) fn pass(&self, time: Duration) {
        match &self.0 {
            ClockKind::System => sync::sleep(time),
            // 64 bits of nanoseconds last for five centuries.
            ClockKind::Manual(at) => {
                at.elapsed
                    .fetch_add(time.as_nanos() as u64, Ordering::AcqRel);
            }
        }
    }
}

impl Scheduler {
    /// Advances a manual clock by `time`, in steps that end at each deadline. At each step, and at
    /// the end, waits until the workers have no more work. With the system's clock the thread
    /// sleeps.
    pub(crate) fn advance(&self, time: Duration) {
        if !self.clock.stands_still() {
            return self.clock.pass(time);
        }
        self.wait_until_idle();
        let end = self.clock.now() + time;
        loop {
            let next = self.next_deadline().map_or(end, |next| next.min(end));
            self.clock
                .pass(next.saturating_duration_since(self.clock.now()));
            self.wait_until_idle();
            if next == end {
                return;
            }
        }
    }

    /// Waits until the workers have nothing to do at the current time.
    fn wait_until_idle(&self) {
        while !self.is_idle() {
            if self.is_due() {
                // A worker may have read the clock before it was advanced, and then gone to sleep.
                self.sleep.wake_all();
            }
            sync::yield_now();
        }
    }

    /// Whether all workers sleep, no flow is ready and no deadline has passed.
    fn is_idle(&self) -> bool {
        self.sleep
            .all_sleep_while(|| !self.is_busy() && !self.is_due())
    }
}
