// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A cache of the memory of MRs, indexed by the MR's number.
//!
//! An MR has an entry if it was created with its memory and that memory is contiguous in DMA space.
//! The entry has all that a check of the MR's key needs. An entry takes half a cache line and is
//! read without lock or reference count. For other keys, and while an MR changes, the entry is
//! empty and the table of MRs is used.
//!
//! An entry is written only while it is empty, after every turn that may have read its old content
//! has ended: a control command that destroys or changes an MR first clears the entry, then waits
//! for the workers. So within a worker's turn a filled entry either stays as it is or becomes
//! empty. Its content is valid until the turn ends, like that of an MR found in the table.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

use virtio_rdma_abi::ib::AccessFlags;
use virtio_rdma_abi::number::{MrNumber, Pdn};

/// Number of entries that are allocated at a time.
const BLOCK: usize = 64;
/// The key of an empty entry. No MR has key 0, since no MR has number 0.
const EMPTY: u32 = 0;
/// Mask of the access flags that a work request may need; other flags are not cached.
const ACCESS: u64 = (1 << ACCESS_BITS) - 1;
const ACCESS_BITS: u32 = 10;
/// Bits of a PD's number in an entry.
const PDN_BITS: u32 = 32 - ACCESS_BITS;

/// The cache entries, one for each MR number.
#[derive(Debug)]
pub(super) struct MrCache {
    blocks: Box<[OnceLock<Box<[Entry]>>]>,
}

/// The cache entry of one MR. Two entries share a cache line, so the entries of thousands of MRs
/// fit a second-level cache.
#[derive(Debug, Default)]
#[repr(align(32))]
struct Entry {
    /// Holds, from the lowest bit: access flags, PD number, key. This word is stored after the
    /// other words of the entry, and read before them.
    tag: AtomicU64,
    base: AtomicU64,
    len: AtomicU64,
    iova: AtomicU64,
}

/// The content of a cache entry: contiguous memory under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flat {
    /// PD of the MR.
    pub pdn: Pdn,
    /// Access flags of the MR.
    pub access: AccessFlags,
    /// Addresses of the first byte: in work requests (`base`) and in DMA space (`iova`).
    pub base: u64,
    pub iova: u64,
    /// Length in bytes.
    pub len: u64,
}

impl MrCache {
    /// Empty entries for all numbers below `end`.
    pub(super) fn new(end: u32) -> Self {
        let blocks = (end as usize).div_ceil(BLOCK);
        Self {
            blocks: (0..blocks).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Stores `key` and `flat` in the entry of MR `number`, which must be empty. The entry stays
    /// empty if the PD's number does not fit.
    pub(super) fn write(&self, number: MrNumber, key: u32, flat: Flat) {
        let number = number.get() as usize;
        let Some(block) = self.blocks.get(number / BLOCK) else {
            return;
        };
        if flat.pdn.get() >> PDN_BITS != 0 {
            return;
        }
        let block = block.get_or_init(|| (0..BLOCK).map(|_| Entry::default()).collect());
        let entry = &block[number % BLOCK];
        entry.base.store(flat.base, Ordering::Relaxed);
        entry.len.store(flat.len, Ordering::Relaxed);
        entry.iova.store(flat.iova, Ordering::Relaxed);
        let access = u64::from(flat.access.0) & ACCESS;
        let pdn = u64::from(flat.pdn.get()) << ACCESS_BITS;
        let tag = (u64::from(key) << u32::BITS) | pdn | access;
        entry.tag.store(tag, Ordering::Release);
    }

    /// Clears the entry of MR `number`. The caller must synchronize with the workers before it
    /// fills the entry again.
    pub(super) fn clear(&self, number: MrNumber) {
        if let Some(entry) = self.entry(number) {
            entry.tag.store(EMPTY.into(), Ordering::Release);
        }
    }

    /// The content of the entry of MR `number`, if the entry holds `key`.
    #[inline]
    pub(super) fn read(&self, number: MrNumber, key: u32) -> Option<Flat> {
        let entry = self.entry(number)?;
        let tag = entry.tag.load(Ordering::Acquire);
        if tag >> u32::BITS != u64::from(key) || key == EMPTY {
            return None;
        }
        Some(Flat {
            // The cast keeps the low half, without the key.
            pdn: Pdn::new(tag as u32 >> ACCESS_BITS),
            access: AccessFlags((tag & ACCESS) as u32),
            base: entry.base.load(Ordering::Relaxed),
            iova: entry.iova.load(Ordering::Relaxed),
            len: entry.len.load(Ordering::Relaxed),
        })
    }

    #[inline]
    fn entry(&self, number: MrNumber) -> Option<&Entry> {
        let number = number.get() as usize;
        let block = self.blocks.get(number / BLOCK)?.get()?;
        block.get(number % BLOCK)
    }
}

impl Flat {
    /// Content that grants no access.
    pub(super) const NOTHING: Self = Self {
        pdn: Pdn::new(0),
        access: AccessFlags::NONE,
        base: 0,
        iova: 0,
        len: 0,
    };

    /// Whether the `len` bytes at `addr` are inside this memory, and work of PD `pdn` may access
    /// them with all of `access`.
    #[inline]
    pub(super) fn allows(&self, pdn: Pdn, addr: u64, len: u64, access: AccessFlags) -> bool {
        let inside = addr
            .checked_sub(self.base)
            .and_then(|offset| offset.checked_add(len))
            .is_some_and(|end| end <= self.len);
        inside && self.pdn == pdn && self.access.contains(access)
    }

    /// Number of bytes from `addr` to the end of this memory. `addr` must be inside.
    #[inline]
    pub(super) fn rest(&self, addr: u64) -> u64 {
        self.len - (addr - self.base)
    }

    /// The DMA address of the byte at `addr`, and the number of bytes from there to the end of this
    /// memory. `addr` must be inside.
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
    fn an_entry_is_for_one_key() {
        let cache = MrCache::new(200);
        let [mr, next, beyond] = [130, 131, 5000].map(MrNumber::new);
        assert_eq!(cache.read(mr, 0x8201), None, "no block yet");
        cache.write(mr, 0x8201, FLAT);
        assert_eq!(cache.read(mr, 0x8201), Some(FLAT));
        assert_eq!(cache.read(mr, 0x8202), None);
        assert_eq!(cache.read(next, 0), None, "an empty entry");
        assert_eq!(cache.read(beyond, 1), None, "beyond the table");
        cache.clear(mr);
        assert_eq!(cache.read(mr, 0x8201), None);
    }

    #[test]
    fn what_an_entry_has_room_for() {
        let cache = MrCache::new(200);
        let most = Flat {
            pdn: Pdn::new((1 << PDN_BITS) - 1),
            access: AccessFlags(ACCESS as u32),
            base: u64::MAX,
            iova: u64::MAX,
            len: u64::MAX,
        };
        cache.write(MrNumber::new(7), u32::MAX, most);
        assert_eq!(cache.read(MrNumber::new(7), u32::MAX), Some(most));
        let hint = FLAT.access | AccessFlags::RELAXED_ORDERING;
        cache.write(
            MrNumber::new(8),
            0x801,
            Flat {
                access: hint,
                ..FLAT
            },
        );
        assert_eq!(
            cache.read(MrNumber::new(8), 0x801),
            Some(FLAT),
            "no access flag"
        );
        let pdn = Pdn::new(1 << PDN_BITS);
        cache.write(MrNumber::new(9), 0x901, Flat { pdn, ..FLAT });
        assert_eq!(cache.read(MrNumber::new(9), 0x901), None);
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
            "access flag"
        );
        assert!(!FLAT.allows(own, 0xfff, 1, write), "before");
        assert!(!FLAT.allows(own, 0x1001, 0x100, write), "past the end");
        assert!(!FLAT.allows(own, u64::MAX, 2, write), "wraps");
        assert_eq!(FLAT.find(0x1010), (0x9010, 0xf0));
    }
}
