// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Parked halves of QPs, and the callers that will give them their next turn.
//!
//! Each kind of caller has a token type. Only the function that arranges the caller can create the
//! token, since both are in the same module. A half parks with at least one token, so each parked
//! half has a caller.

use crate::direct::ForPeer;
use crate::memory::ForDoorbell;
use crate::qp::{ForAnswer, ForCommand, ForRequest};
use crate::runtime::{Until, Watched};
use crate::ForFrames;

/// A nonempty set of callers that will give a stopped half its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Parked(u16);

/// The half has more work: the scheduler makes the QP ready at the end of the turn.
const AGAIN: u16 = 1 << 0;

impl Parked {
    /// Requests another turn at once.
    pub(crate) const fn again() -> Self {
        Self(AGAIN)
    }

    /// The callers of both sets.
    pub(crate) fn and(self, other: impl Into<Self>) -> Self {
        Self(self.0 | other.into().0)
    }

    /// Whether another turn is requested at once.
    pub(crate) const fn is_again(self) -> bool {
        self.0 & AGAIN != 0
    }
}

macro_rules! callers {
    ($($token:ident = $bit:literal,)*) => {$(
        impl From<$token> for Parked {
            fn from(_: $token) -> Self {
                Self(1 << $bit)
            }
        }
    )*};
}

callers! {
    ForFrames = 1,
    Until = 2,
    ForAnswer = 3,
    ForPeer = 4,
    ForDoorbell = 5,
    Watched = 6,
    ForCommand = 7,
    ForRequest = 8,
}
