// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The committed state of a rate limit.

use std::time::Instant;

use roce::committed::Epoch;

use super::{Pacer, Shape};

/// The state of a [`Pacer`] beside its shape.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacerState {
    /// Credit, at most `capacity`.
    pub credit: u64,
    /// Credit that the bucket holds.
    pub capacity: u64,
    /// When `credit` was right, as in [`Epoch`].
    pub at: u64,
}

impl Pacer {
    /// The state to go on from in another process.
    pub(crate) fn commit(&self, epoch: Epoch) -> PacerState {
        PacerState {
            credit: self.credit,
            capacity: self.capacity,
            at: epoch.nanos(Some(self.at)),
        }
    }

    /// The limit that the driver asks for.
    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// The bucket that goes on from `state`; from `now`, if that has no time.
    pub(crate) fn restored(shape: Shape, state: &PacerState, epoch: Epoch, now: Instant) -> Self {
        Self {
            shape,
            credit: state.credit,
            capacity: state.capacity,
            at: epoch.instant(state.at).unwrap_or(now),
        }
    }
}
