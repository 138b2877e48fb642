// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! VMs whose workers take steps that a test controls.

use verbs::{Clock, Limits, PathPolicy, RuntimeConfig, WorkerKind};

use crate::harness::World;

impl World {
    /// Two VMs with workers that take a step only when the test requests it, and a clock that only
    /// the test advances. All workers are asleep.
    pub fn stepped(workers: usize, path: PathPolicy) -> Self {
        let config = RuntimeConfig {
            path,
            workers: Some(workers),
            clock: Clock::manual(),
            worker_kind: WorkerKind::Stepped,
            ..RuntimeConfig::default()
        };
        Self::with_config(2, config, Limits::default())
    }

    /// Lets these stepped workers take steps until all of them sleep.
    pub fn rest(&self, workers: &[usize]) {
        let step = |_| {
            let steps = workers.iter().map(|&worker| self.runtime.step(worker));
            !steps.fold(false, |awake, step| awake | step)
        };
        assert!((0..100_000).any(step), "workers that do not come to rest");
    }
}
