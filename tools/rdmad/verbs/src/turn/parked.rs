// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Parked requesters and responders, and the causes of their next turn.
//!
//! Each kind of cause has a token type. Only the function that arranges the cause can create the
//! token, since both are in the same module. A half of a QP parks with at least one token, so each
//! parked half has a cause.

use recorder::CAUSES;
use scheduler::Until;

use crate::direct::ForPeer;
use crate::memory::ForDoorbell;
use crate::port_frames::ForFrames;
use crate::qp::{ForAnswer, ForCommand, ForRequest};
use crate::runtime::Watched;

/// A nonempty set of causes, each of which gives a stopped half of a QP its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Parked(u16);

/// The half has more work: the scheduler makes the QP ready at the end of the turn.
const AGAIN: u16 = 1 << 0;
/// Bits of causes: indices in [`CAUSES`], which has their names.
const FRAMES: u16 = 1;
const DEADLINE: u16 = 2;
const ANSWER: u16 = 3;
const PEER: u16 = 4;
const DOORBELL: u16 = 5;

impl Parked {
    /// Requests another turn at once.
    pub(crate) const fn again() -> Self {
        Self(AGAIN)
    }

    /// The causes of both sets.
    pub(crate) fn and(self, other: impl Into<Self>) -> Self {
        Self(self.0 | other.into().0)
    }

    /// The causes, in words.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        let has = move |&(bit, _): &(usize, _)| self.0 & (1 << bit) != 0;
        CAUSES
            .into_iter()
            .enumerate()
            .filter(has)
            .map(|(_, name)| name)
    }

    /// The causes as bits: bit n is that of cause n of the [recorder](CAUSES).
    pub(crate) fn bits(self) -> u32 {
        self.0.into()
    }

    /// Whether the half waits for something other than work.
    pub(crate) const fn is_for_work(self) -> bool {
        self.0 & ((1 << FRAMES) | (1 << DEADLINE) | (1 << ANSWER) | (1 << PEER)) != 0
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

macro_rules! causes {
    ($($token:ident = $bit:expr;)*) => {
        $(
            impl From<$token> for Parked {
                fn from(_: $token) -> Self {
                    Self(1 << $bit)
                }
            }
        )*
    };
}

causes! {
    ForFrames = FRAMES;
    Until = DEADLINE;
    ForAnswer = ANSWER;
    ForPeer = PEER;
    ForDoorbell = DOORBELL;
    Watched = 6;
    ForCommand = 7;
    ForRequest = 8;
}
