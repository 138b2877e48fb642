// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Doorbells served by the thread that receives them.
//!
//! Waking a worker takes longer than the work of most doorbells. So a thread that receives a
//! doorbell while all workers sleep gives the QP a turn itself. It does not if it received another
//! doorbell a moment ago, or if the QP had a stream of work before: then more work will follow, and
//! a worker that is awake *watches* the QP, which saves further doorbells. If another thread is
//! giving such a turn already, a worker is woken instead, so that both turns run in parallel.

use std::time::{Duration, Instant};

use super::clock::nanos_since;
use super::sync::{AtomicU64, Ordering};
use super::Scheduler;

/// Shortest time without a doorbell and without a turn by [`Scheduler::serve_at_once`] that counts
/// as an idle gap.
const IDLE_GAP: Duration = Duration::from_micros(20);

/// Time of the last doorbell of a device.
#[derive(Debug)]
pub(crate) struct IdleGap {
    start: Instant,
    /// In nanoseconds since `start`.
    since: AtomicU64,
}

impl IdleGap {
    /// An idle gap that begins at `start`.
    pub(crate) fn new(start: Instant) -> Self {
        Self {
            start,
            since: AtomicU64::new(0),
        }
    }

    /// Ends the gap with a doorbell at `now`. Returns whether the gap was long enough.
    fn end(&self, now: Instant) -> bool {
        let at = nanos_since(self.start, now);
        let since = self.since.swap(at, Ordering::Relaxed);
        Duration::from_nanos(at.saturating_sub(since)) >= IDLE_GAP
    }
}

impl Scheduler {
    /// Executes `turn` for a device whose doorbell this thread, which is no worker, has received,
    /// if that is faster than waking a worker. Returns whether it did.
    pub(crate) fn serve_at_once(&self, idle_gap: &IdleGap, turn: impl FnOnce()) -> bool {
        let served = self.at_once
            && idle_gap.end(self.clock.now())
            && self.sleep.all_sleep()
            && self.quiesce.try_outside(turn);
        if served {
            // The time of the turn does not count as a gap.
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
