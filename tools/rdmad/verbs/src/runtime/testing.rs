// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Control of a runtime by a test: its clock, and the path of data.

use std::sync::atomic::Ordering;
use std::time::Duration;

use roce::committed::Epoch;

use super::{PathPolicy, Runtime};

impl Runtime {
    /// Whether QPs of this process exchange data directly. Takes effect on a QP when it next goes
    /// to RTR or RTS.
    pub fn set_path(&self, path: PathPolicy) {
        let direct = path == PathPolicy::Direct;
        self.shared.direct.store(direct, Ordering::Relaxed);
    }

    /// Drops both halves of every QP and the device side of every CQ, and makes them anew of their
    /// committed state. Not within a turn of a worker.
    pub fn rebuild(&self) {
        let epoch = Epoch::new(self.shared.scheduler.start);
        for device in self.shared.devices.load().iter() {
            for qp in device.qps.iter() {
                qp.rebuild(device, epoch);
            }
            device.cqs.iter().for_each(|cq| cq.rebuild());
        }
    }

    /// Lets `time` pass on a clock that stands still. Work that is due then is left to
    /// [steps](Self::step). On the clock of the system it sleeps.
    pub fn pass(&self, time: Duration) {
        self.shared.scheduler.clock.pass(time);
    }

    /// How long it is to the next deadline, if there is one.
    pub fn next_deadline(&self) -> Option<Duration> {
        let scheduler = &self.shared.scheduler;
        let next = scheduler.next_deadline()?;
        Some(next.saturating_duration_since(scheduler.clock.now()))
    }

    /// Lets `time` pass on a clock that stands still, from one deadline to the next: each is met to
    /// the nanosecond. Returns when all is done that was due, and what that entailed. On the clock
    /// of the system it sleeps.
    pub fn advance(&self, time: Duration) {
        self.shared.scheduler.advance(time);
    }
}
