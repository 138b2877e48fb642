// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Own rings: where the parts of a ring lie, the arm word and the doorbell.
//!
//! A ring is a split virtqueue whose descriptor table is implicit: descriptor i is slot i. It starts page-aligned
//! with its slots; avail, used and arm word follow, each on cache lines of its own:
//!
//! ```text
//! 0              slots   n << slot_shift bytes
//! next 64 bytes  avail   le16 flags, le16 idx, le16 ring[n]
//! next 64 bytes  used    le16 flags, le16 idx, { le32 id, le32 len } ring[n], le16 avail_event
//! next 64 bytes  arm     le32 (CQ only)
//! ```

/// Alignment of avail, used and arm word.
pub const CACHE_LINE: u32 = 64;
/// Least and greatest number of slots; only powers of two are valid.
pub const SLOTS_RANGE: core::ops::RangeInclusive<u32> = 2..=32_768;
/// Least and greatest slot shift: slots of 64 to 4,096 bytes, of which none crosses a page.
pub const SLOT_SHIFT_RANGE: core::ops::RangeInclusive<u8> = 6..=12;
/// Least and greatest page shift of a ring's page list: 4 KiB to 1 GiB.
pub const PAGE_SHIFT_RANGE: core::ops::RangeInclusive<u8> = 12..=30;
/// Least and greatest distance of two doorbell pages, as a shift: 4 KiB to 1 GiB.
pub const DOORBELL_SHIFT_RANGE: core::ops::RangeInclusive<u8> = 12..=30;
/// The kernel's doorbell page.
pub const KERNEL_DOORBELL_PAGE: u32 = 0;

wire_struct! {
    /// Where a ring lies in memory, as the commands that create and resize queues carry it.
    pub struct RingAddr: 24 {
        /// DMA address of the page list: `npages` le64, each the DMA address of a page of the ring.
        0 => pages: u64,
        /// Number of pages.
        8 => npages: u32,
        /// Number of slots; 0 for no ring.
        12 => slots: u32,
        /// Page size is 2ⁿ bytes.
        16 => page_shift: u8,
        /// Slot size is 2ⁿ bytes.
        17 => slot_shift: u8,
        /// Reserved, zero.
        18 => reserved: [u8; 6],
    }
}

/// Offsets of the parts of a ring, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    slot_shift: u8,
    // Computed once: they are looked up for each work request.
    /// Number of slots less one: a power of two less one.
    mask: u32,
    avail_idx: u32,
    avail_ring: u32,
    used_idx: u32,
    used_ring: u32,
    avail_event: u32,
    arm: u32,
}

const fn align(offset: u32) -> u32 {
    (offset + CACHE_LINE - 1) & !(CACHE_LINE - 1)
}

#[allow(dead_code)]
impl RingLayout {
    /// A ring of `slots` slots of `1 << slot_shift` bytes, or `None` if the ABI has no such ring.
    pub const fn new(slots: u32, slot_shift: u8) -> Option<Self> {
        let valid = slots.is_power_of_two()
            && slots >= *SLOTS_RANGE.start()
            && slots <= *SLOTS_RANGE.end()
            && slot_shift >= *SLOT_SHIFT_RANGE.start()
            && slot_shift <= *SLOT_SHIFT_RANGE.end();
        if !valid {
            return None;
        }
        let avail = align(slots << slot_shift);
        let used = align(avail + 4 + 2 * slots);
        let avail_event = used + 4 + 8 * slots;
        let arm = align(avail_event + 2);
        Some(Self {
            slot_shift,
            mask: slots - 1,
            avail_idx: avail + 2,
            avail_ring: avail + 4,
            used_idx: used + 2,
            used_ring: used + 4,
            avail_event,
            arm,
        })
    }

    /// Number of slots.
    #[inline]
    pub const fn slots(&self) -> u32 {
        self.mask + 1
    }

    /// Slot size is `1 << slot_shift` bytes.
    #[inline]
    pub const fn slot_shift(&self) -> u8 {
        self.slot_shift
    }

    /// Bytes of a slot.
    #[inline]
    pub const fn slot_size(&self) -> u32 {
        1 << self.slot_shift
    }

    /// The slot of a position: slots are taken in turn.
    #[inline]
    pub const fn slot_index(&self, position: u16) -> usize {
        (position as u32 & self.mask) as usize
    }

    /// Offset of slot `index`; the index is taken modulo the number of slots.
    #[inline]
    pub const fn slot(&self, index: u16) -> u32 {
        (index as u32 & self.mask) << self.slot_shift
    }

    /// Offset of `avail.flags`.
    #[inline]
    pub const fn avail(&self) -> u32 {
        self.avail_idx - 2
    }

    /// Offset of `avail.idx`.
    #[inline]
    pub const fn avail_idx(&self) -> u32 {
        self.avail_idx
    }

    /// Offset of `avail.ring[index % n]`.
    #[inline]
    pub const fn avail_ring(&self, index: u16) -> u32 {
        self.avail_ring + 2 * (index as u32 & self.mask)
    }

    /// Offset of `used.flags`.
    #[inline]
    pub const fn used(&self) -> u32 {
        self.used_idx - 2
    }

    /// Offset of `used.idx`.
    #[inline]
    pub const fn used_idx(&self) -> u32 {
        self.used_idx
    }

    /// Offset of `used.ring[index % n]`: le32 slot, le32 length.
    #[inline]
    pub const fn used_ring(&self, index: u16) -> u32 {
        self.used_ring + 8 * (index as u32 & self.mask)
    }

    /// Offset of `used.avail_event`.
    #[inline]
    pub const fn avail_event(&self) -> u32 {
        self.avail_event
    }

    /// Offset of the arm word.
    #[inline]
    pub const fn arm(&self) -> u32 {
        self.arm
    }

    /// Bytes of the whole ring.
    #[inline]
    pub const fn size(&self) -> u32 {
        self.arm + CACHE_LINE
    }
}

/// Slot shift for WQEs of up to `bytes` bytes, or `None` if they fit no slot.
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

wire_enum! {
    /// What an armed CQ waits for.
    pub enum ArmKind: u8 {
        /// Nothing.
        None = 0,
        /// The next completion.
        Next = 1,
        /// The next solicited completion or error.
        Solicited = 2,
    }
}

/// The arm word of a CQ: `sequence << 18 | kind << 16 | index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArmWord {
    /// Sequence of 14 bits; it advances when an event of the CQ was received. It starts at 1.
    pub sequence: u16,
    /// What is waited for.
    pub kind: ArmKind,
    /// The `used.idx` that the owner knows.
    pub index: u16,
}

impl ArmWord {
    /// Mask of the sequence.
    pub const SEQUENCE_MASK: u16 = (1 << 14) - 1;

    /// The word in memory.
    #[inline]
    pub const fn to_u32(self) -> u32 {
        (((self.sequence & Self::SEQUENCE_MASK) as u32) << 18)
            | ((self.kind as u32) << 16)
            | self.index as u32
    }

    /// Reads a word; the kind that does not exist counts as none.
    #[inline]
    pub const fn from_u32(word: u32) -> Self {
        Self {
            sequence: (word >> 18) as u16,
            kind: match (word >> 16) & 3 {
                1 => ArmKind::Next,
                2 => ArmKind::Solicited,
                _ => ArmKind::None,
            },
            index: word as u16,
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

/// The value written to offset 0 of a doorbell page: kind in bits 31–24, number in bits 23–0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell {
    /// Kind of queue.
    pub kind: DoorbellKind,
    /// QPN, or handle of the CQ or SRQ.
    pub number: u32,
}

impl Doorbell {
    /// The value written.
    #[inline]
    pub const fn to_u32(self) -> u32 {
        ((self.kind as u32) << 24) | (self.number & super::ib::MASK_24)
    }

    /// What a written value rings, or `None` for a kind that does not exist.
    #[inline]
    pub fn from_u32(value: u32) -> Option<Self> {
        Some(Self {
            kind: DoorbellKind::try_from((value >> 24) as u8).ok()?,
            number: value & super::ib::MASK_24,
        })
    }
}
