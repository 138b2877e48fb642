// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Turns given by the thread that receives a doorbell.
//!
//! Waking a worker takes longer than the work of most doorbells. So a thread that receives a
//! doorbell while all workers sleep gives the QP a turn itself.
//!
//! The thread wakes a worker instead if the HCA's last doorbell was a moment ago or the QP had a
//! stream of work before. Then more work will follow, and a worker that is awake *watches* the QP,
//! which saves later doorbells. The thread also wakes a worker if another thread that is not a
//! worker is giving a turn, so that both turns run in parallel.

use std::time::{Duration, Instant};

use crate::clock::nanos_since;
use crate::sync::{AtomicU64, Ordering};
use crate::Scheduler;

/// Shortest time without a doorbell and without a turn by [`Scheduler::serve_at_once`] that counts
/// as an idle gap.
const IDLE_GAP: Duration = Duration::from_micros(20);

/// Time of the last doorbell of an HCA.
#[derive(Debug)]
pub struct IdleGap {
    start: Instant,
    /// Time of the last doorbell, in nanoseconds since `start`.
    since: AtomicU64,
}

impl IdleGap {
    /// State whose first idle gap begins at `start`.
    pub fn new(start: Instant) -> Self {
        Self {
            start,
            since: AtomicU64::new(0),
        }
    }

    /// Records a doorbell at `now`. Returns whether the time since the previous doorbell was an
    /// idle gap.
    #[inline]
    fn end(&self, now: Instant) -> bool {
        let at = nanos_since(self.start, now);
        let since = self.since.swap(at, Ordering::Relaxed);
        Duration::from_nanos(at.saturating_sub(since)) >= IDLE_GAP
    }
}

impl Scheduler {
    /// Executes `turn` for an HCA whose doorbell this thread has received, if the doorbell came
    /// after an idle gap and all workers sleep. `turn` gets the time at which it starts. The thread
    /// must not be a worker. Returns whether `turn` was executed.
    pub fn serve_at_once(&self, idle_gap: &IdleGap, turn: impl FnOnce(Instant)) -> bool {
        if !self.at_once {
            return false;
        }
        let now = self.clock.now();
        let served =
            idle_gap.end(now) && self.sleep.all_sleep() && self.quiesce.try_outside(|| turn(now));
        if served {
            // The gap to the next doorbell begins after the turn.
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
