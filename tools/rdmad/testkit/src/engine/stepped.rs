// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Runtimes whose workers take steps that the caller controls.

use verbs::{Clock, Limits, PathPolicy, Runtime, RuntimeConfig, WorkerKind};

use super::World;

/// Number of rounds after which workers that still have work count as endless.
const ENDLESS: usize = 100_000;

/// A runtime with workers that take a step only when the caller requests it, and a clock that only
/// the caller advances. Nothing in it is random.
pub fn config(workers: usize) -> RuntimeConfig {
    RuntimeConfig {
        workers: Some(workers),
        clock: Clock::manual(),
        worker_kind: WorkerKind::Stepped,
        secret: Some(7),
        ..RuntimeConfig::default()
    }
}

/// Lets these workers take steps until all of them sleep.
pub fn rest(runtime: &Runtime, workers: &[usize]) {
    let step = |_| {
        let steps = workers.iter().map(|&worker| runtime.step(worker));
        !steps.fold(false, |awake, step| awake | step)
    };
    assert!((0..ENDLESS).any(step), "workers that do not come to rest");
}

impl World {
    /// Two VMs with [stepped](config) workers, which are all asleep.
    pub fn stepped(workers: usize, path: PathPolicy) -> Self {
        let config = RuntimeConfig {
            path,
            ..config(workers)
        };
        Self::with_config(2, config, Limits::default())
    }

    /// Lets these stepped workers take steps until all of them sleep.
    pub fn rest(&self, workers: &[usize]) {
        rest(&self.runtime, workers);
    }
}
