// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Doorbells that are served by the thread that hears them.
//!
//! To wake a worker takes longer than what most doorbells are for. So a thread that hears one while
//! every worker sleeps gives the QP a turn itself. Not if it heard another a moment ago, or if the
//! QP had a stream of work before: then more will come, and a worker that is awake *watches* the
//! QP, so that it need not ring. Nor if another thread is at it in the same way: workers do things
//! side by side.

use std::time::{Duration, Instant};

use super::clock::nanos_since;
use super::sync::{AtomicU64, Ordering};
use super::Scheduler;

/// A doorbell comes after an idle gap if for so long there was none, and none was served.
const IDLE_GAP: Duration = Duration::from_micros(20);

/// Since when a device has been quiet.
#[derive(Debug)]
pub(crate) struct IdleGap {
    start: Instant,
    /// In nanoseconds after `start`.
    since: AtomicU64,
}

impl IdleGap {
    /// Since `start`.
    pub(crate) fn new(start: Instant) -> Self {
        Self {
            start,
            since: AtomicU64::new(0),
        }
    }

    /// It is not at `now`. Returns whether it was before.
    fn end(&self, now: Instant) -> bool {
        let at = nanos_since(self.start, now);
        let since = self.since.swap(at, Ordering::Relaxed);
        Duration::from_nanos(at.saturating_sub(since)) >= IDLE_GAP
    }
}

impl Scheduler {
    /// Has the current thread, which is no worker, take `turn` for a device whose doorbell it
    /// hears, if that is the better way. Returns whether it has.
    pub(crate) fn serve_at_once(&self, idle_gap: &IdleGap, turn: impl FnOnce()) -> bool {
        let served = self.at_once
            && idle_gap.end(self.clock.now())
            && self.sleep.all_sleep()
            && self.quiesce.try_outside(turn);
        if served {
            // Work that was posted meanwhile is rung for now.
            idle_gap.end(self.clock.now());
        }
        served
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_idle_gap_is_between_two_doorbells() {
        let start = Instant::now();
        let idle_gap = IdleGap::new(start);
        let at = |micros| start + Duration::from_micros(micros);
        assert!(!idle_gap.end(at(19)), "the device has just come");
        assert!(!idle_gap.end(at(30)));
        assert!(!idle_gap.end(at(49)));
        assert!(idle_gap.end(at(69)));
        assert!(!idle_gap.end(at(70)));
        assert!(!idle_gap.end(at(60)), "another thread was faster");
        assert!(idle_gap.end(at(1_000_000)));
    }
}
