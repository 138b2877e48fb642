// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Own rings: ring layout, arm word and doorbell.
//!
//! `Documentation/rings.md` describes the protocol. A ring starts page-aligned with its slots. The
//! words follow, each on a separate cache line:
//!
//! ```text
//! 0              slots     n << slot_shift bytes
//! next 64 bytes  owner     le32: producer's position, or the consumer's of a CQ
//! next 64 bytes  device    le32: doorbell position, or the producer's position of a CQ
//! next           arm       le64 (CQ), on a cache line
//!                order     le16[n] (SRQ), filled up to a cache line
//! ```

use super::cqe::CQ_SLOT_SHIFT;
use super::ib::MASK_24;
use super::number::{Cqn, Qpn, Srqn};
use super::wqe::INLINE_OFFSET;

/// Bytes of a cache line: the alignment of words and of `order`.
pub const CACHE_LINE: u32 = 64;
/// Smallest and largest number of slots of an SQ, RQ or SRQ. Only powers of two are valid.
pub const WORK_SLOTS: core::ops::RangeInclusive<u32> = 2..=32_768;
/// Smallest and largest number of slots of a CQ. Only powers of two are valid.
pub const CQ_SLOTS: core::ops::RangeInclusive<u32> = 2..=4_194_304;
/// Smallest and largest slot shift: slots have 64 to 4,096 bytes. No slot crosses a page boundary.
pub const SLOT_SHIFT_RANGE: core::ops::RangeInclusive<u8> = 6..=12;
/// Smallest and largest page shift of a ring's page list: 4 KiB to 1 GiB.
pub const PAGE_SHIFT_RANGE: core::ops::RangeInclusive<u8> = 12..=30;
/// Smallest and largest distance of doorbell pages, as a shift: 4 KiB to 1 GiB.
pub const DOORBELL_SHIFT_RANGE: core::ops::RangeInclusive<u8> = 12..=30;
/// Doorbell page of the guest's kernel.
pub const KERNEL_DOORBELL_PAGE: u32 = 0;

wire_struct! {
    /// The memory of a ring, as described by commands that create and resize queues.
    pub struct RingAddr: 24 {
        /// DMA address of the page list, which holds the DMA address of each page of the ring.
        0 => pages: u64,
        /// Number of pages.
        8 => npages: u32,
        /// Number of slots; 0 for no ring.
        12 => slots: u32,
        /// Pages have 2ⁿ bytes.
        16 => page_shift: u8,
        /// Slots have 2ⁿ bytes.
        17 => slot_shift: u8,
        /// Format of the page list, [`PageListDepth`](super::ctrl::PageListDepth).
        18 => depth: u8,
        /// Reserved, zero.
        19 => reserved: [u8; 5],
    }
}

/// Kind of a ring, which determines the words after its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingKind {
    /// Work requests of an SQ or RQ.
    Work,
    /// Work requests of an SRQ, which complete in any order.
    Shared,
    /// Completions.
    Completion,
}

#[allow(dead_code)]
impl RingKind {
    /// Smallest and largest number of slots. Only powers of two are valid.
    pub const fn slots(self) -> core::ops::RangeInclusive<u32> {
        match self {
            Self::Work | Self::Shared => WORK_SLOTS,
            Self::Completion => CQ_SLOTS,
        }
    }

    /// Smallest and largest slot shift.
    pub const fn slot_shifts(self) -> core::ops::RangeInclusive<u8> {
        match self {
            Self::Work | Self::Shared => SLOT_SHIFT_RANGE,
            Self::Completion => CQ_SLOT_SHIFT..=CQ_SLOT_SHIFT,
        }
    }
}

/// Offsets of the parts of a ring, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    kind: RingKind,
    slot_shift: u8,
    // The fields below are precomputed, since each work request needs them. `mask` is the number of
    // slots minus one.
    mask: u32,
    /// Offset of the end of the slots, where the words start.
    words: u32,
}

#[allow(dead_code)]
impl RingLayout {
    /// Layout of a ring of `slots` slots of `1 << slot_shift` bytes. `None` if a number is invalid.
    pub const fn new(kind: RingKind, slots: u32, slot_shift: u8) -> Option<Self> {
        let (range, shifts) = (kind.slots(), kind.slot_shifts());
        let valid = slots.is_power_of_two()
            && slots >= *range.start()
            && slots <= *range.end()
            && slot_shift >= *shifts.start()
            && slot_shift <= *shifts.end();
        if !valid {
            return None;
        }
        Some(Self {
            kind,
            slot_shift,
            mask: slots - 1,
            // A multiple of a cache line, since each slot is.
            words: slots << slot_shift,
        })
    }

    /// Layout of a CQ's ring with `slots` slots. `None` if the number is invalid.
    pub const fn completions(slots: u32) -> Option<Self> {
        Self::new(RingKind::Completion, slots, CQ_SLOT_SHIFT)
    }

    /// Kind of the ring.
    #[inline]
    pub const fn kind(&self) -> RingKind {
        self.kind
    }

    /// Number of slots.
    #[inline]
    pub const fn slots(&self) -> u32 {
        self.mask + 1
    }

    /// Slots have `1 << slot_shift` bytes.
    #[inline]
    pub const fn slot_shift(&self) -> u8 {
        self.slot_shift
    }

    /// Bytes of a slot.
    #[inline]
    pub const fn slot_size(&self) -> u32 {
        1 << self.slot_shift
    }

    /// Whether `count` is from 1 to the number of slots.
    #[inline]
    pub const fn holds(&self, count: u32) -> bool {
        count.wrapping_sub(1) <= self.mask
    }

    /// The slot at a position.
    #[inline]
    pub const fn slot_index(&self, position: u32) -> usize {
        (position & self.mask) as usize
    }

    /// Offset of the slot at a position.
    #[inline]
    pub const fn slot(&self, position: u32) -> u32 {
        // The offset is less than the ring's size and so fits 32 bits: the shift need not be
        // checked.
        (position & self.mask).wrapping_shl(self.slot_shift as u32)
    }

    /// Offset of the position that the owner of the ring writes: the producer's position, or the
    /// consumer's position of a CQ.
    #[inline]
    pub const fn owner(&self) -> u32 {
        self.words
    }

    /// Offset of the position that the device writes: the doorbell position, or the producer's
    /// position of a CQ.
    #[inline]
    pub const fn device(&self) -> u32 {
        self.words + CACHE_LINE
    }

    /// Offset of the arm word of a CQ.
    #[inline]
    pub const fn arm(&self) -> u32 {
        self.words + 2 * CACHE_LINE
    }

    /// Offset of `order[position % slots]` of an SRQ.
    #[inline]
    pub const fn order(&self, position: u32) -> u32 {
        self.words + 2 * CACHE_LINE + 2 * (position & self.mask)
    }

    /// Bytes of the whole ring.
    #[inline]
    pub const fn size(&self) -> u32 {
        let end = self.words + 2 * CACHE_LINE;
        match self.kind {
            RingKind::Work => end,
            RingKind::Shared => end + (2 * self.slots()).next_multiple_of(CACHE_LINE),
            RingKind::Completion => end + CACHE_LINE,
        }
    }
}

/// Slot shift for WQEs of up to `bytes` bytes, or `None` if they exceed the largest slot.
pub const fn slot_shift_for(bytes: usize) -> Option<u8> {
    let mut shift = *SLOT_SHIFT_RANGE.start();
    while shift <= *SLOT_SHIFT_RANGE.end() {
        if bytes <= 1 << shift {
            return Some(shift);
        }
        shift += 1;
    }
    None
}

/// Bytes of inline payload for which a slot of 2ⁿ bytes has room, at most `limit`.
pub const fn inline_room(slot_shift: u8, limit: u32) -> u32 {
    let room = (1u32 << slot_shift).saturating_sub(INLINE_OFFSET as u32);
    if room < limit {
        room
    } else {
        limit
    }
}

wire_enum! {
    /// The completions that an arm word covers.
    pub enum ArmKind: u8 {
        /// None: the CQ is not armed.
        None = 0,
        /// The next completion.
        Next = 1,
        /// The next solicited completion or error.
        Solicited = 2,
    }
}

/// The arm word of a CQ: `sequence << 34 | kind << 32 | position`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArmWord {
    /// Sequence of 30 bits. It starts at 1 and is incremented when an event of the CQ was received.
    pub sequence: u32,
    /// The completions for which an event is requested.
    pub kind: ArmKind,
    /// The producer's position, as the owner knows it.
    pub position: u32,
}

impl ArmWord {
    /// Mask of the sequence.
    pub const SEQUENCE_MASK: u32 = (1 << 30) - 1;

    /// The word as stored in the ring.
    #[inline]
    pub const fn to_u64(self) -> u64 {
        (((self.sequence & Self::SEQUENCE_MASK) as u64) << 34)
            | ((self.kind as u64) << 32)
            | self.position as u64
    }

    /// Decodes a word. The unknown kind, 3, counts as none.
    #[inline]
    pub const fn from_u64(word: u64) -> Self {
        Self {
            sequence: (word >> 34) as u32,
            kind: match (word >> 32) & 3 {
                1 => ArmKind::Next,
                2 => ArmKind::Solicited,
                _ => ArmKind::None,
            },
            position: word as u32,
        }
    }
}

wire_enum! {
    /// Kind of queue that a doorbell rings.
    pub enum DoorbellKind: u8 {
        /// Send queue of a QP.
        Sq = 1,
        /// Receive queue of a QP.
        Rq = 2,
        /// Completion queue.
        Cq = 3,
        /// Shared receive queue.
        Srq = 4,
    }
}

/// The value written to offset 0 of a doorbell page: [`DoorbellKind`] in bits 31–24, the queue's
/// number in bits 23–0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// Send queue of a QP.
    Sq(Qpn),
    /// Receive queue of a QP.
    Rq(Qpn),
    /// Completion queue.
    Cq(Cqn),
    /// Shared receive queue.
    Srq(Srqn),
}

#[allow(dead_code)]
impl Doorbell {
    /// The value to write. A number is truncated to 24 bits; no queue has a larger number.
    #[inline]
    pub const fn to_u32(self) -> u32 {
        let (kind, number) = match self {
            Self::Sq(qpn) => (DoorbellKind::Sq, qpn.get()),
            Self::Rq(qpn) => (DoorbellKind::Rq, qpn.get()),
            Self::Cq(cqn) => (DoorbellKind::Cq, cqn.get()),
            Self::Srq(srqn) => (DoorbellKind::Srq, srqn.get()),
        };
        ((kind as u32) << 24) | (number & MASK_24)
    }

    /// The queue that a written value rings, or `None` for an unknown kind.
    #[inline]
    pub fn from_u32(value: u32) -> Option<Self> {
        let number = value & MASK_24;
        Some(match DoorbellKind::try_from((value >> 24) as u8).ok()? {
            DoorbellKind::Sq => Self::Sq(Qpn::new(number)),
            DoorbellKind::Rq => Self::Rq(Qpn::new(number)),
            DoorbellKind::Cq => Self::Cq(Cqn::new(number)),
            DoorbellKind::Srq => Self::Srq(Srqn::new(number)),
        })
    }
}
