// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Why a half of a QP stops, and who calls it again.
//!
//! Each caller has a token, which only the function makes that arranged for the call: it stands in
//! that function's module. A half parks with at least one of them, so none is left with work and
//! without a caller.

use crate::direct::ForPeer;
use crate::memory::ForDoorbell;
use crate::qp::{ForAnswer, ForCommand, ForRequest};
use crate::runtime::{Until, Watched};
use crate::ForFrames;

/// Callers of a half of a QP that stopped: a set that is never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Parked(u16);

/// There is more to do at once: the scheduler makes the QP ready at the end of a turn that returns
/// this in its set.
const AGAIN: u16 = 1 << 0;

impl Parked {
    /// The QP has another turn at once.
    pub(crate) const fn again() -> Self {
        Self(AGAIN)
    }

    /// The callers of both.
    pub(crate) fn and(self, other: impl Into<Self>) -> Self {
        Self(self.0 | other.into().0)
    }

    /// Whether another turn is wanted at once.
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
