// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The time of a manual clock, which only tests move.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sync::{self, AtomicU64, Ordering};

/// The time of a manual clock.
#[derive(Clone, Debug)]
pub(crate) struct ManualTime {
    start: Instant,
    /// Nanoseconds since `start`.
    elapsed: Arc<AtomicU64>,
    /// Nanoseconds that pass with each look at the clock.
    look: u64,
}

impl ManualTime {
    /// The time of a clock that advances by `look` with each look at it.
    pub fn new(look: Duration) -> Self {
        Self {
            start: sync::now(),
            elapsed: Arc::default(),
            look: nanos(look),
        }
    }

    /// The current time.
    pub fn now(&self) -> Instant {
        let elapsed = match self.look {
            0 => self.elapsed.load(Ordering::Acquire),
            look => self.elapsed.fetch_add(look, Ordering::AcqRel),
        };
        self.start + Duration::from_nanos(elapsed)
    }

    /// Advances the clock.
    pub fn pass(&self, time: Duration) {
        self.elapsed.fetch_add(nanos(time), Ordering::AcqRel);
    }
}

fn nanos(time: Duration) -> u64 {
    // 64 bits of nanoseconds last for five centuries.
    time.as_nanos() as u64
}
