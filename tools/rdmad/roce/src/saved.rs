// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Saved state: the part of a state machine that has to outlive the process that runs it.
//!
//! Saved state consists of integers of fixed size, which mean the same in another process.
//! Connection, attributes and work requests are not part of it: the caller restores them from
//! commands and from its queues.

use std::time::{Duration, Instant};

use rustix::time::{clock_gettime, ClockId};
use serde::{Deserialize, Serialize};

use crate::headers::Reth;
use crate::work::{WcFault, WcReason, WcStatus};

/// Saved value of an absent position or time.
pub const NONE: u64 = u64::MAX;

/// Serialization of a position or time, for `serde(with)`; an absent one is null.
pub mod or_null {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::NONE;

    /// Serializes `value`.
    #[allow(clippy::trivially_copy_pass_by_ref)] // The derived code passes references.
    pub fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        Some(*value)
            .filter(|value| *value != NONE)
            .serialize(serializer)
    }

    /// Inverse of [`serialize`].
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        Ok(Option::deserialize(deserializer)?.unwrap_or(NONE))
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

    /// The time at which the host started, which is the same for all its processes.
    pub fn of_boot() -> Self {
        let since = clock_gettime(ClockId::Monotonic);
        let now = Instant::now();
        // The clock of `Instant` is this one.
        let since = Duration::try_from(since).unwrap_or_default();
        Self(now.checked_sub(since).unwrap_or(now))
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

/// The fault of a work request that must not be executed, or no fault.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Status; 0 if there is no fault.
    pub status: u8,
    /// Reason for the status.
    pub reason: u8,
}

impl Fault {
    /// Saves a fault.
    pub fn of(fault: Option<WcFault>) -> Self {
        match fault {
            Some(WcFault { status, reason }) => Self {
                status: status.value(),
                reason: reason.value(),
            },
            None => Self {
                status: 0,
                reason: 0,
            },
        }
    }

    /// The fault.
    pub fn get(self) -> Option<WcFault> {
        (self.status != 0).then(|| {
            WcFault::new(
                WcStatus::try_from(self.status).unwrap_or(WcStatus::GeneralErr),
                WcReason::try_from(self.reason).unwrap_or(WcReason::Flushed),
            )
        })
    }
}

/// The first posted work request of a requester that can't be executed. Later work requests are not
/// executed either.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedWork {
    /// Index among the work requests that have not ended; `u32::MAX` if all can be executed.
    pub index: u32,
    /// The fault that this work request ends with.
    pub fault: Fault,
    /// Padding, 0.
    pub reserved: [u8; 2],
}

impl FailedWork {
    /// The first work request that has a fault. `faults` has one entry for each work request that
    /// has not ended.
    pub(crate) fn first(faults: impl IntoIterator<Item = Option<WcFault>>) -> Self {
        let first = (0..).zip(faults).find(|(_, fault)| fault.is_some());
        let (index, fault) = first.unwrap_or((u32::MAX, None));
        Self {
            index,
            fault: Fault::of(fault),
            reserved: [0; 2],
        }
    }

    /// Whether the work request at `index`, in which `fault` was found now, had no fault before.
    pub(crate) fn is_new(&self, index: usize, fault: Option<WcFault>) -> bool {
        fault.is_some() && u32::try_from(index).is_ok_and(|index| index < self.index)
    }

    /// The fault that the work request at `index` ends with; `None` if it can be executed.
    pub(crate) fn fault(&self, index: usize) -> Option<WcFault> {
        let is_it = u32::try_from(index) == Ok(self.index);
        self.fault.get().filter(|_| is_it)
    }
}

/// A message whose last packet has not arrived.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
