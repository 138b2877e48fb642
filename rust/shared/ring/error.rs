// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Protocol errors of the other side of a ring.

use core::fmt;

/// An invalid value in a ring's memory, written by the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingError {
    /// A position moved backwards or by more than the ring has slots.
    PositionJump,
    /// A slot number is not less than the number of slots.
    BadSlot,
    /// The completed slot is not outstanding.
    NotOutstanding,
    /// The completion queue has no free slot: it has overflowed.
    Overflow,
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PositionJump => "position of a ring jumped",
            Self::BadSlot => "slot number out of range",
            Self::NotOutstanding => "completion of a slot that is not outstanding",
            Self::Overflow => "completion queue overflow",
        })
    }
}

impl core::error::Error for RingError {}
