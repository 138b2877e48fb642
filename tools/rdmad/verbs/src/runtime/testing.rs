// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Test control of a runtime: clock, data path, and saved state.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{PathPolicy, Runtime};

impl Runtime {
    /// Sets the data path between QPs of the process. A QP changes to that path when it next goes
    /// to RTR or RTS.
    pub fn set_path(&self, path: PathPolicy) {
        let direct = path == PathPolicy::Direct;
        self.shared.hcas.direct.store(direct, Ordering::Relaxed);
    }

    /// Saves the state of each HCA with own rings, destroys its objects without a trace, and
    /// restores them. All get a turn. Must not be called within a turn of a worker.
    pub fn rebuild(&self) {
        for hca in self.shared.hcas.load().all() {
            if hca.has_failed() || !hca.has_own_rings() {
                continue;
            }
            let saved = hca.save().expect("the HCA can be saved");
            for qp in hca.objects.qps.iter() {
                qp.forget(hca);
            }
            hca.reset();
            hca.restore(&saved).expect("the state can be restored");
            assert_eq!(hca.save(), Ok(saved));
            hca.resume();
        }
    }

    /// Advances a manual clock by `time`, without running workers: due work waits for
    /// [steps](Self::step). With the system's clock the thread sleeps.
    pub fn pass(&self, time: Duration) {
        self.shared.scheduler.clock.pass(time);
    }

    /// Time until the earliest deadline, if there is one.
    pub fn next_deadline(&self) -> Option<Duration> {
        let scheduler = &self.shared.scheduler;
        let next = scheduler.next_deadline()?;
        Some(next.saturating_duration_since(scheduler.clock.now()))
    }

    /// Advances a manual clock by `time`, in steps that end at each deadline. At each step, and at
    /// the end, waits until the workers have no more work. With the system's clock the thread
    /// sleeps.
    pub fn advance(&self, time: Duration) {
        self.shared.scheduler.advance(time);
    }
}
