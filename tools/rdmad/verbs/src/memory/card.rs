// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory that most keys open, found at one look.
//!
//! An MR that was made with its memory, in one piece of DMA space, has a *card*: all that its key
//! opens, in half a cache line, found by the MR's number. To read it takes no lock and no
//! reference. For any other key, and while an MR changes, there is no card, and the table of MRs
//! tells.
//!
//! A card is written only when it is blank and every turn that may have seen what was on it before
//! has ended: an MR is destroyed or changed by control commands, which blank its card and then wait
//! for the workers. So within one turn of a worker a card that bears a key stays as it is, or goes
//! blank; what was read from it may be used until the turn ends, as it may be if it was found in
//! the table.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

use virtio_rdma_abi::ib::AccessFlags;
use virtio_rdma_abi::number::{MrNumber, Pdn};

/// Cards that are made at a time.
const BLOCK: usize = 64;
/// The key on a blank card. No MR has it: its number is 0.
const BLANK: u32 = 0;
/// Rights that a work request may need: what else an MR has is not on its card.
const RIGHTS: u64 = (1 << RIGHTS_BITS) - 1;
const RIGHTS_BITS: u32 = 10;
/// The bits of a PD's number that a card has room for.
const PDN_BITS: u32 = 32 - RIGHTS_BITS;

/// The cards of a table of MRs, by number.
#[derive(Debug)]
pub(super) struct Cards {
    blocks: Box<[OnceLock<Box<[Card]>>]>,
}

/// The memory that a key opens. Two share a cache line, so that those of thousands of MRs fit a
/// second-level cache.
#[derive(Debug, Default)]
#[repr(align(32))]
struct Card {
    /// From the lowest bit: rights, PD, key. Stored last and looked at first.
    title: AtomicU64,
    base: AtomicU64,
    len: AtomicU64,
    iova: AtomicU64,
}

/// Memory in one piece under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flat {
    /// PD.
    pub pdn: Pdn,
    /// Rights.
    pub access: AccessFlags,
    /// Address of its first byte in work requests, and in DMA space.
    pub base: u64,
    pub iova: u64,
    /// Bytes.
    pub len: u64,
}

impl Cards {
    /// Blank cards for the numbers below `end`.
    pub(super) fn new(end: u32) -> Self {
        let blocks = (end as usize).div_ceil(BLOCK);
        Self {
            blocks: (0..blocks).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Writes the card of MR `number`, which is blank, for `key`. It stays blank if there is no
    /// room for the PD's number.
    pub(super) fn write(&self, number: MrNumber, key: u32, flat: Flat) {
        let number = number.get() as usize;
        let Some(block) = self.blocks.get(number / BLOCK) else {
            return;
        };
        if flat.pdn.get() >> PDN_BITS != 0 {
            return;
        }
        let block = block.get_or_init(|| (0..BLOCK).map(|_| Card::default()).collect());
        let card = &block[number % BLOCK];
        card.base.store(flat.base, Ordering::Relaxed);
        card.len.store(flat.len, Ordering::Relaxed);
        card.iova.store(flat.iova, Ordering::Relaxed);
        let rights = u64::from(flat.access.0) & RIGHTS;
        let pdn = u64::from(flat.pdn.get()) << RIGHTS_BITS;
        let title = (u64::from(key) << u32::BITS) | pdn | rights;
        card.title.store(title, Ordering::Release);
    }

    /// Blanks the card of MR `number`. It may be written again when the workers have been
    /// synchronised with.
    pub(super) fn blank(&self, number: MrNumber) {
        if let Some(card) = self.card(number) {
            card.title.store(BLANK.into(), Ordering::Release);
        }
    }

    /// The memory that `key` of MR `number` opens, if the card says so.
    #[inline]
    pub(super) fn read(&self, number: MrNumber, key: u32) -> Option<Flat> {
        let card = self.card(number)?;
        let title = card.title.load(Ordering::Acquire);
        if title >> u32::BITS != u64::from(key) || key == BLANK {
            return None;
        }
        Some(Flat {
            // The half of the title that is not the key.
            pdn: Pdn::new(title as u32 >> RIGHTS_BITS),
            access: AccessFlags((title & RIGHTS) as u32),
            base: card.base.load(Ordering::Relaxed),
            iova: card.iova.load(Ordering::Relaxed),
            len: card.len.load(Ordering::Relaxed),
        })
    }

    #[inline]
    fn card(&self, number: MrNumber) -> Option<&Card> {
        let number = number.get() as usize;
        let block = self.blocks.get(number / BLOCK)?.get()?;
        block.get(number % BLOCK)
    }
}

impl Flat {
    /// No memory.
    pub(super) const NOTHING: Self = Self {
        pdn: Pdn::new(0),
        access: AccessFlags::NONE,
        base: 0,
        iova: 0,
        len: 0,
    };

    /// Whether the `len` bytes at `addr` are inside and may be accessed so by work in PD `pdn`.
    #[inline]
    pub(super) fn allows(&self, pdn: Pdn, addr: u64, len: u64, access: AccessFlags) -> bool {
        let inside = addr
            .checked_sub(self.base)
            .and_then(|offset| offset.checked_add(len))
            .is_some_and(|end| end <= self.len);
        inside && self.pdn == pdn && self.access.contains(access)
    }

    /// How many bytes there are from `addr` on, which is inside.
    #[inline]
    pub(super) fn rest(&self, addr: u64) -> u64 {
        self.len - (addr - self.base)
    }

    /// The DMA address of `addr`, which is inside, and how many bytes follow it.
    #[inline]
    pub(super) fn find(&self, addr: u64) -> (u64, u64) {
        (self.iova + (addr - self.base), self.rest(addr))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAT: Flat = Flat {
        pdn: Pdn::new(3),
        access: AccessFlags::LOCAL_WRITE,
        base: 0x1000,
        iova: 0x9000,
        len: 0x100,
    };

    #[test]
    fn a_card_is_for_one_key() {
        let cards = Cards::new(200);
        let [mr, next, beyond] = [130, 131, 5000].map(MrNumber::new);
        assert_eq!(cards.read(mr, 0x8201), None, "no block yet");
        cards.write(mr, 0x8201, FLAT);
        assert_eq!(cards.read(mr, 0x8201), Some(FLAT));
        assert_eq!(cards.read(mr, 0x8202), None);
        assert_eq!(cards.read(next, 0), None, "a blank card");
        assert_eq!(cards.read(beyond, 1), None, "beyond the table");
        cards.blank(mr);
        assert_eq!(cards.read(mr, 0x8201), None);
    }

    #[test]
    fn what_a_card_has_room_for() {
        let cards = Cards::new(200);
        let most = Flat {
            pdn: Pdn::new((1 << PDN_BITS) - 1),
            access: AccessFlags(RIGHTS as u32),
            base: u64::MAX,
            iova: u64::MAX,
            len: u64::MAX,
        };
        cards.write(MrNumber::new(7), u32::MAX, most);
        assert_eq!(cards.read(MrNumber::new(7), u32::MAX), Some(most));
        let hint = FLAT.access | AccessFlags::RELAXED_ORDERING;
        cards.write(
            MrNumber::new(8),
            0x801,
            Flat {
                access: hint,
                ..FLAT
            },
        );
        assert_eq!(cards.read(MrNumber::new(8), 0x801), Some(FLAT), "no right");
        let pdn = Pdn::new(1 << PDN_BITS);
        cards.write(MrNumber::new(9), 0x901, Flat { pdn, ..FLAT });
        assert_eq!(cards.read(MrNumber::new(9), 0x901), None);
    }

    #[test]
    fn what_is_allowed() {
        let write = AccessFlags::LOCAL_WRITE;
        let (own, other) = (FLAT.pdn, Pdn::new(4));
        assert!(FLAT.allows(own, 0x1000, 0x100, write));
        assert!(FLAT.allows(own, 0x10ff, 1, AccessFlags::NONE));
        assert!(!FLAT.allows(other, 0x1000, 1, write), "PD");
        assert!(
            !FLAT.allows(own, 0x1000, 1, AccessFlags::REMOTE_READ),
            "right"
        );
        assert!(!FLAT.allows(own, 0xfff, 1, write), "before");
        assert!(!FLAT.allows(own, 0x1001, 0x100, write), "behind");
        assert!(!FLAT.allows(own, u64::MAX, 2, write), "wraps");
        assert_eq!(FLAT.find(0x1010), (0x9010, 0xf0));
    }
}
