// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Test control of a runtime: clock, data path, and saved state.

use std::sync::atomic::Ordering;
use std::time::Duration;

use roce::saved::Epoch;

use super::{PathPolicy, Runtime};

impl Runtime {
    /// Sets the data path between QPs of the process. A QP changes to that path when it next goes
    /// to RTR or RTS.
    pub fn set_path(&self, path: PathPolicy) {
        let direct = path == PathPolicy::Direct;
        self.shared.hcas.direct.store(direct, Ordering::Relaxed);
    }

    /// Drops requester and responder of every QP and the device's state of every CQ, and recreates
    /// them from their saved state. Must not be called within a turn of a worker.
    pub fn rebuild(&self) {
        let epoch = Epoch::new(self.shared.scheduler.start);
        for hca in self.shared.hcas.load().all() {
            for qp in hca.objects.qps.iter() {
                qp.rebuild(hca, epoch);
            }
            hca.objects.cqs.iter().for_each(|cq| cq.rebuild());
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
