// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of a rate limit.

use std::time::Instant;

use roce::saved::Epoch;
use serde::{Deserialize, Serialize};

use super::Pacer;
use super::RateLimitAttr;

/// The state of a [`Pacer`] besides its limit.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PacerState {
    /// Credit of the bucket, at most `capacity`.
    pub credit: u64,
    /// Maximum credit that the bucket holds.
    pub capacity: u64,
    /// Time at which `credit` was computed, encoded as in [`Epoch`].
    pub at: u64,
}

impl Pacer {
    /// The state from which another process can resume the bucket.
    pub(crate) fn save(&self, epoch: Epoch) -> PacerState {
        PacerState {
            credit: self.credit,
            capacity: self.capacity,
            at: epoch.nanos(Some(self.at)),
        }
    }

    /// The rate limit as the driver set it.
    pub(crate) fn limit(&self) -> RateLimitAttr {
        self.limit
    }

    /// Resumes the bucket from `state`. If `state` has no valid time, `now` is used.
    pub(crate) fn restored(
        limit: RateLimitAttr,
        state: &PacerState,
        epoch: Epoch,
        now: Instant,
    ) -> Self {
        Self {
            limit,
            credit: state.credit,
            capacity: state.capacity,
            at: epoch.instant(state.at).unwrap_or(now),
        }
    }
}
