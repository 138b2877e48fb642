// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Time in tests: workers run up to a time of a manual clock.

use std::time::Duration;

use crate::sync;
use crate::Scheduler;

impl Scheduler {
    /// Advances a manual clock by `time`, in steps that end at each deadline. At each step, and
    /// at the end, waits until the workers have no more work. With the system's clock the
    /// thread sleeps.
    pub fn advance(&self, time: Duration) {
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
                // A worker may have read the clock before it was advanced, and then gone to
                // sleep.
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
