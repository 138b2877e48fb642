// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Parked sides of QPs, and the callers that will give them their next turn.
//!
//! Each kind of caller has a token type. Only the function that arranges the caller can create the
//! token, since both are in the same module. A side parks with at least one token, so each parked
//! side has a caller.

use crate::direct::ForPeer;
use crate::memory::ForDoorbell;
use crate::qp::{ForAnswer, ForCommand, ForRequest};
use crate::runtime::{Until, Watched};
use crate::ForFrames;

/// A nonempty set of callers that will give a stopped side its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Parked(u16);

/// The side has more work: the scheduler makes the QP ready at the end of the turn.
const AGAIN: u16 = 1 << 0;
/// Bits of callers that [`QpDetails`](crate::QpDetails) explains.
const FRAMES: u16 = 1;
const DOORBELL: u16 = 5;

impl Parked {
    /// Requests another turn at once.
    pub(crate) const fn again() -> Self {
        Self(AGAIN)
    }

    /// The callers of both sets.
    pub(crate) fn and(self, other: impl Into<Self>) -> Self {
        Self(self.0 | other.into().0)
    }

    /// The callers, in words.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        let has = move |(bit, _): &&(u16, _)| self.0 & bit != 0;
        CALLERS.iter().filter(has).map(|(_, name)| *name)
    }

    /// Whether room for frames gives the next turn.
    pub(crate) const fn is_for_frames(self) -> bool {
        self.0 & (1 << FRAMES) != 0
    }

    /// Whether a doorbell gives the next turn.
    pub(crate) const fn is_for_doorbell(self) -> bool {
        self.0 & (1 << DOORBELL) != 0
    }

    /// Whether another turn is requested at once.
    pub(crate) const fn is_again(self) -> bool {
        self.0 & AGAIN != 0
    }
}

macro_rules! callers {
    ($($token:ident = $bit:expr, $text:literal;)*) => {
        $(
            impl From<$token> for Parked {
                fn from(_: $token) -> Self {
                    Self(1 << $bit)
                }
            }
        )*

        /// The callers in words.
        const CALLERS: &[(u16, &str)] = &[(AGAIN, "its next turn"), $((1 << $bit, $text),)*];
    };
}

callers! {
    ForFrames = FRAMES, "room for its frames at the port";
    Until = 2, "a deadline";
    ForAnswer = 3, "a response of its peer";
    ForPeer = 4, "a change of its peer";
    ForDoorbell = DOORBELL, "a doorbell";
    Watched = 6, "a work request, for which a worker polls";
    ForCommand = 7, "a command";
    ForRequest = 8, "a request of its peer";
}
