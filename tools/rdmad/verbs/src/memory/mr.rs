// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory regions and their keys.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};
use std::sync::Arc;

use virtio_rdma_abi::ib::AccessFlags;

use super::PageMap;
use crate::error::{Errno, Result};
use crate::pd::PdUse;
use crate::table::Table;

/// Bits of a key below the MR's number: they change each time the number is used again, so that an old key does not
/// open a new MR.
const VARIANT_BITS: u32 = 8;

/// A memory region.
#[derive(Debug)]
pub(crate) struct Mr {
    /// L_Key and R_Key.
    key: u32,
    /// PD that it belongs to.
    pd: PdUse,
    /// Rights.
    access: AccessFlags,
    /// Address of its first byte in work requests.
    base: u64,
    pages: PageMap,
    /// Pages counted towards the limit of the device.
    counted: u64,
}

/// A key can't be used: it is unknown, of another PD, lacks a right, or the range is outside of the MR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyFault;

impl Mr {
    /// Whether the `len` bytes at `addr` are inside.
    #[inline]
    fn contains(&self, addr: u64, len: u64) -> bool {
        addr.checked_sub(self.base)
            .and_then(|offset| offset.checked_add(len))
            .is_some_and(|end| end <= self.pages.len())
    }

    /// How many bytes there are from `addr` on, which is inside.
    #[inline]
    pub(crate) fn rest(&self, addr: u64) -> u64 {
        self.pages.len() - (addr - self.base)
    }

    /// The DMA address of `addr`, which is inside, and how many bytes follow it in one piece.
    #[inline]
    pub(crate) fn find(&self, addr: u64) -> (u64, u64) {
        self.pages.find(addr - self.base)
    }
}

/// The MRs of a device.
#[derive(Debug)]
pub(crate) struct MrTable {
    table: Table<Mr>,
    /// Next variant of each number's key.
    variants: Box<[AtomicU8]>,
    /// Pages of all MRs, and their limit.
    pages: AtomicU64,
    max_pages: u64,
}

impl MrTable {
    /// A table of at most `max_mr` MRs with `max_pages` pages in all.
    pub(crate) fn new(max_mr: u32, max_pages: u64) -> Self {
        let random = RandomState::new();
        let variant = |number| {
            let mut hasher = random.build_hasher();
            hasher.write_u32(number);
            AtomicU8::new(hasher.finish() as u8)
        };
        Self {
            // Number 0 stays unused: key 0 opens nothing.
            table: Table::new(1..max_mr + 1),
            variants: (0..=max_mr).map(variant).collect(),
            pages: AtomicU64::new(0),
            max_pages,
        }
    }

    /// Reserves `npages` of the limit, or fails with `ENOMEM`.
    pub(crate) fn reserve_pages(&self, npages: u64) -> Result<PageCharge<'_>> {
        self.pages
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(npages)
                    .filter(|total| *total <= self.max_pages)
            })
            .map_err(|_| Errno::NOMEM)?;
        Ok(PageCharge {
            table: self,
            npages,
        })
    }

    /// Makes a new MR known and returns it. Its first byte has the address `base` in work requests.
    pub(crate) fn insert(
        &self,
        pd: PdUse,
        access: AccessFlags,
        base: u64,
        pages: PageMap,
        mut charge: PageCharge<'_>,
    ) -> Result<(u32, u32)> {
        let reserved = self.table.reserve().ok_or(Errno::NOMEM)?;
        let number = reserved.number();
        let variant = self.variants[number as usize].fetch_add(1, Ordering::Relaxed);
        let key = (number << VARIANT_BITS) | u32::from(variant);
        reserved.insert(Arc::new(Mr {
            key,
            pd,
            access,
            base,
            pages,
            counted: std::mem::take(&mut charge.npages),
        }));
        Ok((number, key))
    }

    /// Removes an MR: its key opens nothing from now on. Workers may still use it until they are synchronised with;
    /// then its number is given back by [`release`](Self::release).
    pub(crate) fn remove(&self, number: u32) -> Option<Arc<Mr>> {
        self.table.remove(number)
    }

    /// Gives back what a removed MR occupied.
    pub(crate) fn release(&self, number: u32, mr: &Mr) {
        self.pages.fetch_sub(mr.counted, Ordering::Relaxed);
        self.table.release(number);
    }

    /// All MRs with their numbers.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.table.iter().map(|mr| mr.key >> VARIANT_BITS).collect()
    }

    /// The MR that `key` opens for `len` bytes at `addr` with all rights of `access`, to work of PD `pdn`.
    #[inline]
    pub(crate) fn open(
        &self,
        key: u32,
        pdn: u32,
        addr: u64,
        len: u64,
        access: AccessFlags,
    ) -> std::result::Result<Arc<Mr>, KeyFault> {
        self.table
            .get(key >> VARIANT_BITS)
            .filter(|mr| {
                mr.key == key
                    && mr.pd.number() == pdn
                    && mr.access.contains(access)
                    && mr.contains(addr, len)
            })
            .ok_or(KeyFault)
    }

    /// Whether [`open`](Self::open) would succeed.
    #[inline]
    pub(crate) fn check(
        &self,
        key: u32,
        pdn: u32,
        addr: u64,
        len: u64,
        access: AccessFlags,
    ) -> std::result::Result<(), KeyFault> {
        let opens = |mr: &Mr| {
            mr.key == key
                && mr.pd.number() == pdn
                && mr.access.contains(access)
                && mr.contains(addr, len)
        };
        match self.table.with(key >> VARIANT_BITS, opens) {
            Some(true) => Ok(()),
            _ => Err(KeyFault),
        }
    }
}

/// Pages that count towards the limit of a [`MrTable`]; they go back when dropped.
#[derive(Debug)]
pub(crate) struct PageCharge<'a> {
    table: &'a MrTable,
    npages: u64,
}

impl Drop for PageCharge<'_> {
    fn drop(&mut self) {
        self.table.pages.fetch_sub(self.npages, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pd::Pd;

    fn all_memory(table: &MrTable, pdn: u32, access: AccessFlags) -> (u32, u32) {
        let charge = table.reserve_pages(0).unwrap();
        table
            .insert(
                PdUse::new(Arc::new(Pd::new(pdn))),
                access,
                0,
                PageMap::identity(),
                charge,
            )
            .unwrap()
    }

    #[test]
    fn a_key_opens_one_mr_only() {
        let table = MrTable::new(1, 10);
        let (number, key) = all_memory(&table, 7, AccessFlags::LOCAL_WRITE);
        assert!(table
            .check(key, 7, 0x1000, 8, AccessFlags::LOCAL_WRITE)
            .is_ok());
        assert!(table.check(key, 7, 0x1000, 8, AccessFlags::NONE).is_ok());
        assert!(
            table.check(key, 8, 0x1000, 8, AccessFlags::NONE).is_err(),
            "PD"
        );
        assert!(
            table
                .check(key, 7, 0x1000, 8, AccessFlags::REMOTE_READ)
                .is_err(),
            "right"
        );
        assert!(
            table
                .check(key ^ 1, 7, 0x1000, 8, AccessFlags::NONE)
                .is_err(),
            "variant"
        );
        assert!(
            table.check(0, 7, 0x1000, 8, AccessFlags::NONE).is_err(),
            "number"
        );
        assert!(
            table.check(key, 7, u64::MAX, 2, AccessFlags::NONE).is_err(),
            "range"
        );
        let mr = table.remove(number).unwrap();
        assert!(table.open(key, 7, 0x1000, 8, AccessFlags::NONE).is_err());
        table.release(number, &mr);
        let (again, other) = all_memory(&table, 7, AccessFlags::LOCAL_WRITE);
        assert_eq!(again, number);
        assert_ne!(other, key);
        assert!(
            table.check(key, 7, 0x1000, 8, AccessFlags::NONE).is_err(),
            "old key"
        );
    }

    #[test]
    fn pages_are_counted() {
        let table = MrTable::new(4, 10);
        let charge = table.reserve_pages(8).unwrap();
        assert_eq!(table.reserve_pages(3).err(), Some(Errno::NOMEM));
        let (number, _) = table
            .insert(
                PdUse::new(Arc::new(Pd::new(1))),
                AccessFlags::NONE,
                0,
                PageMap::identity(),
                charge,
            )
            .unwrap();
        assert_eq!(table.reserve_pages(u64::MAX).err(), Some(Errno::NOMEM));
        drop(table.reserve_pages(2).unwrap());
        let mr = table.remove(number).unwrap();
        table.release(number, &mr);
        assert!(table.reserve_pages(10).is_ok());
    }
}
