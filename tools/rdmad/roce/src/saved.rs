// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Saved state: the part of a state machine that has to outlive the process that runs it.
//!
//! Saved state consists of integers of fixed size, which mean the same in another process.
//! Connection, attributes and work requests are not part of it: the caller restores them from
//! commands and from its queues.

use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

use crate::headers::Reth;
use crate::work::WcStatus;

/// Saved value of an absent position or time.
pub const NONE: u64 = u64::MAX;

/// Serializes a position or time; an absent one is null.
pub fn or_null<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    match *value {
        NONE => serializer.serialize_none(),
        value => serializer.serialize_u64(value),
    }
}

/// The time origin of saved state: saved times are nanoseconds after it.
#[derive(Clone, Copy, Debug)]
pub struct Epoch(Instant);

impl Epoch {
    /// An epoch that begins at `start`.
    pub fn new(start: Instant) -> Self {
        Self(start)
    }

    /// Nanoseconds from the epoch to `at`, or [`NONE`].
    pub fn nanos(self, at: Option<Instant>) -> u64 {
        // A u64 of nanoseconds lasts for five centuries, so the cast does not truncate.
        at.map_or(NONE, |at| {
            at.saturating_duration_since(self.0).as_nanos() as u64
        })
    }

    /// Inverse of [`nanos`](Self::nanos): the time `nanos` after the epoch; `None` for [`NONE`].
    pub fn instant(self, nanos: u64) -> Option<Instant> {
        (nanos != NONE).then(|| self.0 + Duration::from_nanos(nanos))
    }
}

/// The first posted work request of a requester that can't be executed. Later work requests are not
/// executed either.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FailedWork {
    /// Index among the work requests that have not ended; `u32::MAX` if all can be executed.
    pub index: u32,
    /// The `WcStatus` that this work request ends with.
    pub status: u32,
}

impl FailedWork {
    /// Every work request can be executed.
    pub const NOTHING: Self = Self {
        index: u32::MAX,
        status: 0,
    };

    /// The first work request that has a status. `statuses` has one entry for each work request
    /// that has not ended.
    pub(crate) fn first(statuses: impl IntoIterator<Item = Option<WcStatus>>) -> Self {
        let mut statuses = (0..).zip(statuses);
        statuses
            .find_map(|(index, status)| {
                let status = status?.value().into();
                Some(Self { index, status })
            })
            .unwrap_or(Self::NOTHING)
    }

    /// The status that the work request at `index` ends with; `None` if it can be executed.
    pub(crate) fn status(&self, index: usize) -> Option<WcStatus> {
        let is_it = u32::try_from(index) == Ok(self.index);
        let status = u8::try_from(self.status).ok().filter(|_| is_it)?;
        Some(WcStatus::try_from(status).unwrap_or(WcStatus::GeneralErr))
    }
}

/// A message whose last packet has not arrived.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MessageState {
    /// Remote address of a WRITE; 0 for a SEND.
    pub va: u64,
    /// R_Key of a WRITE; 0 for a SEND.
    pub rkey: u32,
    /// Length of a WRITE in bytes; 0 for a SEND.
    pub length: u32,
    /// Number of bytes of the message that have arrived.
    pub received: u32,
    /// 0 for no message, 1 for a SEND, 2 for a WRITE.
    pub kind: u32,
}

const SEND: u32 = 1;
const WRITE: u32 = 2;

impl MessageState {
    /// No message is in progress.
    pub(crate) const NONE: Self = Self {
        va: 0,
        rkey: 0,
        length: 0,
        received: 0,
        kind: 0,
    };

    /// A SEND of which `received` bytes have arrived.
    pub(crate) fn send(received: u32) -> Self {
        Self {
            received,
            kind: SEND,
            ..Self::NONE
        }
    }

    /// A WRITE to `reth` of which `received` bytes have arrived.
    pub(crate) fn write(reth: Reth, received: u32) -> Self {
        Self {
            va: reth.va,
            rkey: reth.rkey,
            length: reth.length,
            received,
            kind: WRITE,
        }
    }

    /// Whether the message is a SEND.
    pub(crate) fn is_send(&self) -> bool {
        self.kind == SEND
    }

    /// The remote memory of a WRITE; `None` for a SEND or no message.
    pub(crate) fn reth(&self) -> Option<Reth> {
        (self.kind == WRITE).then_some(Reth {
            va: self.va,
            rkey: self.rkey,
            length: self.length,
        })
    }
}
