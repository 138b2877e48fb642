// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Committed state: the part of a state machine that has to outlive the process that runs it.
//!
//! It is plain: integers of fixed size, which mean the same in another process. Connection,
//! attributes and work requests are no part of it, since the caller has them from commands and from
//! its queues.

use std::time::{Duration, Instant};

use crate::headers::Reth;
use crate::work::WcStatus;

/// A position or a time that is not there.
pub const NONE: u64 = u64::MAX;

/// The time from which times in committed state count.
#[derive(Clone, Copy, Debug)]
pub struct Epoch(Instant);

impl Epoch {
    /// Times count from `start`.
    pub fn new(start: Instant) -> Self {
        Self(start)
    }

    /// Nanoseconds from the epoch to `at`, or [`NONE`].
    pub fn nanos(self, at: Option<Instant>) -> u64 {
        // Five centuries fit.
        at.map_or(NONE, |at| {
            at.saturating_duration_since(self.0).as_nanos() as u64
        })
    }

    /// The time of [`nanos`](Self::nanos).
    pub fn instant(self, nanos: u64) -> Option<Instant> {
        (nanos != NONE).then(|| self.0 + Duration::from_nanos(nanos))
    }
}

/// The work request of a requester that can't be executed, as an index among those that have not
/// ended, and the status that it ends with. It is the first such one: none behind it is executed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedWork {
    /// Index, or `u32::MAX` if there is none.
    pub index: u32,
    /// A `WcStatus`.
    pub status: u32,
}

impl FailedWork {
    /// Every work request can be executed.
    pub const NOTHING: Self = Self {
        index: u32::MAX,
        status: 0,
    };

    /// The first of these that has a status.
    pub(crate) fn first(statuses: impl IntoIterator<Item = Option<WcStatus>>) -> Self {
        let mut statuses = (0..).zip(statuses);
        statuses
            .find_map(|(index, status)| {
                let status = status?.value().into();
                Some(Self { index, status })
            })
            .unwrap_or(Self::NOTHING)
    }

    /// The status of the work request at `index`.
    pub(crate) fn status(&self, index: usize) -> Option<WcStatus> {
        let is_it = u32::try_from(index) == Ok(self.index);
        let status = u8::try_from(self.status).ok().filter(|_| is_it)?;
        Some(WcStatus::try_from(status).unwrap_or(WcStatus::GeneralErr))
    }
}

/// A message of which the last packet has not arrived.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageState {
    /// Address of a WRITE.
    pub va: u64,
    /// R_Key of a WRITE.
    pub rkey: u32,
    /// Bytes of a WRITE.
    pub length: u32,
    /// Bytes that have arrived.
    pub received: u32,
    /// 0 for no message, 1 for a SEND, 2 for a WRITE.
    pub kind: u32,
}

const SEND: u32 = 1;
const WRITE: u32 = 2;

impl MessageState {
    /// No message.
    pub(crate) const NONE: Self = Self {
        va: 0,
        rkey: 0,
        length: 0,
        received: 0,
        kind: 0,
    };

    /// A SEND.
    pub(crate) fn send(received: u32) -> Self {
        Self {
            received,
            kind: SEND,
            ..Self::NONE
        }
    }

    /// A WRITE.
    pub(crate) fn write(reth: Reth, received: u32) -> Self {
        Self {
            va: reth.va,
            rkey: reth.rkey,
            length: reth.length,
            received,
            kind: WRITE,
        }
    }

    /// Whether it is a SEND.
    pub(crate) fn is_send(&self) -> bool {
        self.kind == SEND
    }

    /// The memory that a WRITE names.
    pub(crate) fn reth(&self) -> Option<Reth> {
        (self.kind == WRITE).then_some(Reth {
            va: self.va,
            rkey: self.rkey,
            length: self.length,
        })
    }
}
