// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of a transfer.

use roce::saved::{or_null, Epoch, Fault};
use roce::work::WcFault;
use serde::{Deserialize, Serialize};

use super::{Transfer, Wait};
use crate::wqe::Fetched;

/// The state of a [`Transfer`] besides its work request. Times are encoded as in [`Epoch`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TransferState {
    /// Time at which the wait ends, or `roce::saved::NONE`.
    #[serde(with = "or_null")]
    pub deadline: u64,
    /// Bytes transferred so far.
    pub done: u32,
    /// The fault of a work request that is not to be executed.
    pub failed: Fault,
    /// Transport retries that are left.
    pub retries: u8,
    /// RNR retries that are left.
    pub rnr_retries: u8,
    /// The event that the transfer waits for: [`NOTHING`], [`PAUSE`] or [`ANSWER`].
    pub wait: u8,
    /// Padding, 0.
    pub reserved: [u8; 3],
}

const NOTHING: u8 = 0;
pub(crate) const PAUSE: u8 = 1;
pub(crate) const ANSWER: u8 = 2;

impl Transfer {
    /// Whether the peer had no receive for the message, and the transfer waits to try again.
    pub(crate) fn is_paused(&self) -> bool {
        matches!(self.wait, Wait::Pause(_))
    }

    /// The state from which another process can resume the transfer.
    pub(crate) fn save(&self, epoch: Epoch) -> TransferState {
        TransferState {
            deadline: epoch.nanos(self.deadline()),
            done: self.done,
            failed: Fault::of(self.failed),
            retries: self.retries,
            rnr_retries: self.rnr_retries,
            wait: match self.wait {
                Wait::Nothing => NOTHING,
                Wait::Pause(_) => PAUSE,
                Wait::Answer(_) => ANSWER,
            },
            reserved: [0; 3],
        }
    }

    /// Resumes the transfer of the work request in `fetched` from `state`. The driver may have
    /// changed its WQE in the meantime. If it is faulty or too short now, it fails.
    pub(crate) fn restored(fetched: Fetched, state: &TransferState, epoch: Epoch) -> Self {
        let deadline = epoch.instant(state.deadline);
        let Fetched { wr, failed } = fetched;
        let is_changed = failed.is_some() || state.done > wr.length;
        let changed = is_changed.then_some(WcFault::CHANGED);
        Self {
            failed: state.failed.get().or(changed),
            done: state.done.min(wr.length),
            wr,
            retries: state.retries,
            rnr_retries: state.rnr_retries,
            wait: match (state.wait, deadline) {
                (PAUSE, Some(at)) => Wait::Pause(at),
                (ANSWER, at) => Wait::Answer(at),
                _ => Wait::Nothing,
            },
        }
    }
}
