// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Mistakes of the other side of a ring.

use core::fmt;

/// The memory of a ring contradicts what its owner may write there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingError {
    /// A position moved backwards or by more than the ring has slots.
    PositionJump,
    /// A slot number is not below the number of slots.
    BadSlot,
    /// A slot was completed that is not outstanding.
    NotOutstanding,
    /// The completion queue has no slot left: it has overflowed.
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
