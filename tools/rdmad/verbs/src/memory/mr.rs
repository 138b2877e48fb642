// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory regions and their keys.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering};
use std::sync::Arc;

use budget::{Budget, Charge};
use virtio_rdma_abi::ib::AccessFlags;
use virtio_rdma_abi::number::{MrNumber, MwNumber, Number, Pdn};

use super::fast::{FastMr, Mapped};
use super::mr_cache::{Flat, MrCache};
use super::window::{WindowCount, WindowTable};
use super::{Binding, KeyUser, PageMap, Region};
use crate::config::BOOKKEEPING;
use crate::error::{require, Errno, Result};
use crate::pd::PdUse;
use crate::shuffle::Secret;
use crate::table::{Reserved, Table};

/// Bits of a key below the MR's number: they are drawn anew each time the number is used again, so
/// that an old key does not open a new MR and does not tell its key. REG_MR changes them as its
/// poster likes.
pub(super) const VARIANT_BITS: u32 = 8;

/// The number of the MR or window that `key` names.
#[inline]
pub(crate) fn number_of<N: Number>(key: u32) -> N {
    N::new(key >> VARIANT_BITS)
}

/// Draws the variants of keys: at random, but never the last one of the number again.
#[derive(Debug)]
pub(super) struct Variants<N> {
    secret: Secret,
    /// Keys drawn so far.
    drawn: AtomicU64,
    first: u32,
    /// The variant that each number's key had last.
    last: Box<[AtomicU8]>,
    number: PhantomData<N>,
}

impl<N: Number> Variants<N> {
    /// Variants for keys of these numbers.
    pub(super) fn new(secret: &Secret, numbers: Range<u32>) -> Self {
        Self {
            secret: secret.another(),
            drawn: AtomicU64::new(0),
            first: numbers.start,
            last: numbers.map(|_| AtomicU8::new(0)).collect(),
            number: PhantomData,
        }
    }

    /// A new key for `number`, which nobody else draws for at the same time.
    pub(super) fn key(&self, number: N) -> u32 {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        let last = &self.last[(number.get() - self.first) as usize];
        // From 1 to 255, so that the sum is another variant.
        let step = (self.secret.hash(drawn) % 255) as u8 + 1;
        let variant = last.load(Ordering::Relaxed).wrapping_add(step);
        last.store(variant, Ordering::Relaxed);
        (number.get() << VARIANT_BITS) | u32::from(variant)
    }

    /// Notes the last key of a number, where its user chose the variant.
    pub(super) fn note(&self, key: u32) {
        let number = number_of::<N>(key);
        let last = &self.last[(number.get() - self.first) as usize];
        // The low bits of a key are its variant.
        last.store(key as u8, Ordering::Relaxed);
    }
}

/// A memory region.
#[derive(Debug)]
pub(crate) struct Mr {
    number: MrNumber,
    /// PD that it belongs to.
    pd: PdUse,
    kind: MrKind,
    /// Of the MR that was first made under its number, or of its last new pages.
    charge: Arc<MrCharge>,
    /// Its memory was taken back: its keys open nothing any more.
    is_revoked: AtomicBool,
    /// Windows that are bound to it.
    windows: WindowCount,
}

#[derive(Debug)]
enum MrKind {
    /// Made with its memory.
    Fixed(Arc<Region>),
    /// Made for REG_MR.
    Fast(FastMr),
}

/// A key can't be used: it is unknown, of another PD, lacks a right, or the range is outside of the
/// MR. Or an MR can't be registered or invalidated so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyFault;

pub(super) type KeyResult<T> = std::result::Result<T, KeyFault>;

/// The registration that a REG_MR work request asks for.
pub(crate) struct Registration {
    /// MR.
    pub number: MrNumber,
    /// Its key from now on.
    pub key: u32,
    /// Its rights from now on, which are consistent.
    pub access: AccessFlags,
    /// The pages, if they came with the work request.
    pub pages: Option<Mapped>,
}

/// The MRs and memory windows of a device: what keys open.
#[derive(Debug)]
pub(crate) struct MrTable {
    table: Table<MrNumber, Mr>,
    cache: MrCache,
    windows: WindowTable,
    variants: Variants<MrNumber>,
    /// Pages of all MRs.
    pages: Budget,
    /// Memory that the device may allocate.
    budget: Budget,
}

/// The share of an MR in the limits of its device.
#[derive(Debug)]
pub(crate) struct MrCharge {
    _pages: Charge,
    _memory: Charge,
}

impl MrTable {
    /// A table of at most `max_mr` MRs with `max_pages` pages in all, and at most `max_mw` windows.
    /// Its entries are charged to `budget`.
    pub(crate) fn new(
        secret: &Secret,
        budget: &Budget,
        max_mr: u32,
        max_mw: u32,
        max_pages: u64,
    ) -> Self {
        Self {
            // Number 0 stays unused: key 0 opens nothing.
            table: Table::new(secret, 1..max_mr + 1),
            cache: MrCache::new(max_mr + 1),
            variants: Variants::new(secret, 0..max_mr + 1),
            // Of two kinds of key, only one has a number.
            windows: WindowTable::new(secret, budget, max_mr + 1..max_mr + 1 + max_mw),
            pages: Budget::new(max_pages),
            budget: budget.clone(),
        }
    }

    /// Charges an MR of `npages` pages, or fails with `ENOMEM`.
    pub(crate) fn charge(&self, npages: u64) -> Result<MrCharge> {
        let region = size_of::<(Region, PageMap)>();
        Ok(MrCharge {
            _pages: self.pages.charge(npages)?,
            _memory: self.budget.charge_object::<Mr>(region + BOOKKEEPING)?,
        })
    }

    /// Makes a new MR known and returns its number and key. Its first byte has the address `base`
    /// in work requests.
    pub(crate) fn insert(
        &self,
        pd: PdUse,
        access: AccessFlags,
        base: u64,
        pages: PageMap,
        charge: MrCharge,
    ) -> Result<(MrNumber, u32)> {
        let (reserved, key) = self.reserve()?;
        let region = Region::new(key, access, base, Arc::new(pages));
        let flat = region.flat(pd.number());
        let kind = MrKind::Fixed(Arc::new(region));
        let number = Self::make(reserved, pd, kind, charge);
        // The object that had the number before is gone, and no worker is at it any more.
        if let Some(flat) = flat {
            self.cache.write(number, key, flat);
        }
        Ok((number, key))
    }

    /// Makes a new MR for fast registration of up to `max_pages` pages known and returns its number
    /// and first key. There are up to `maps` maps of its pages at a time.
    pub(crate) fn insert_fast(
        &self,
        pd: PdUse,
        max_pages: u32,
        maps: u64,
        charge: MrCharge,
    ) -> Result<(MrNumber, u32)> {
        let maps = self.budget.part(maps * PageMap::longest(max_pages))?;
        let (reserved, key) = self.reserve()?;
        let kind = MrKind::Fast(FastMr::new(max_pages, maps));
        Ok((Self::make(reserved, pd, kind, charge), key))
    }

    /// Takes a number, and the next key for it.
    fn reserve(&self) -> Result<(Reserved<'_, MrNumber, Mr>, u32)> {
        let reserved = self.table.reserve().ok_or(Errno::NOMEM)?;
        let key = self.variants.key(reserved.number());
        Ok((reserved, key))
    }

    fn make(
        reserved: Reserved<'_, MrNumber, Mr>,
        pd: PdUse,
        kind: MrKind,
        charge: MrCharge,
    ) -> MrNumber {
        let number = reserved.number();
        reserved.insert(Arc::new(Mr {
            number,
            pd,
            kind,
            charge: Arc::new(charge),
            is_revoked: AtomicBool::new(false),
            windows: WindowCount::default(),
        }))
    }

    /// The most pages that MR `number` can register, and the budget that pays for their map.
    /// `EINVAL` if the MR is not for fast registration.
    pub(crate) fn fast_limits(&self, number: MrNumber) -> Result<(u32, Budget)> {
        self.table
            .with(number, |mr| mr.fast().map(FastMr::limits))
            .flatten()
            .ok_or(Errno::INVAL)
    }

    /// Sets the pages of MR `number` for its next registration, or fails with `EINVAL`.
    pub(crate) fn map(&self, number: MrNumber, mapped: Mapped) -> Result<()> {
        let done = self
            .table
            .with(number, |mr| mr.fast().map(|fast| fast.map(mapped)));
        require(done.flatten().is_some())
    }

    /// Registers pages in an MR for fast registration, for a QP in PD `pdn`: the MR is of that PD
    /// and free, the key is its own but for the variant.
    pub(crate) fn register(&self, pdn: Pdn, wanted: Registration) -> KeyResult<()> {
        if number_of::<MrNumber>(wanted.key) != wanted.number {
            return Err(KeyFault);
        }
        let register = |mr: &Mr| {
            let fast = mr.fast().filter(|_| mr.pd.number() == pdn);
            fast.ok_or(KeyFault)?
                .register(wanted.key, wanted.access, wanted.pages)
        };
        self.table
            .with(wanted.number, register)
            .unwrap_or(Err(KeyFault))
    }

    /// Invalidates `key`, of an MR for fast registration or a window of type 2, on behalf of work
    /// at a QP in its PD: the MR or window is free then and nobody uses the memory any more. Takes
    /// as long as another worker's slice at most. The caller has no [`Message`](super::Message)
    /// open.
    pub(crate) fn invalidate(&self, key: u32, by: KeyUser) -> KeyResult<()> {
        if self.windows.owns(key) {
            return self.windows.invalidate(key, by);
        }
        let mr = self.table.get(number_of(key)).ok_or(KeyFault)?;
        mr.fast()
            .filter(|_| mr.pd.number() == by.pdn)
            .ok_or(KeyFault)?
            .invalidate(key)
    }

    /// Binds a window to a part of the MR that `lkey` names, for work of a QP: all are of one PD.
    /// Returns the window's number if it belongs to the QP now. The caller has no
    /// [`Message`](super::Message) open.
    pub(crate) fn bind(
        &self,
        by: KeyUser,
        lkey: u32,
        wanted: &Binding,
    ) -> KeyResult<Option<MwNumber>> {
        if wanted.len == 0 {
            return self.windows.bind(by, wanted, None);
        }
        let mr = self.table.get(number_of(lkey)).ok_or(KeyFault)?;
        let names = |region: &Arc<Region>| region.key() == lkey;
        if mr.pd.number() != by.pdn || !mr.fixed().is_some_and(names) {
            return Err(KeyFault);
        }
        self.windows.bind(by, wanted, Some(&mr))
    }

    /// The memory windows.
    pub(crate) fn windows(&self) -> &WindowTable {
        &self.windows
    }

    /// The PD and memory of MR `number`, one that was made with its memory and has it, or fails
    /// with `EINVAL`.
    pub(crate) fn current(&self, number: MrNumber) -> Result<(PdUse, Arc<Region>)> {
        let current = |mr: &Mr| {
            let is_revoked = mr.is_revoked.load(Ordering::Relaxed);
            let region = mr.fixed().filter(|_| !is_revoked)?;
            Some((mr.pd.again(), region.clone()))
        };
        self.table
            .with(number, current)
            .flatten()
            .ok_or(Errno::INVAL)
    }

    /// Makes MR `number` into this, under its old key; `charge` is there if it has new pages.
    /// Workers may still use what it was until they are synchronised with; then
    /// [`replaced`](Self::replaced) is to be called.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is none, `EBUSY` while windows are bound to it.
    pub(crate) fn replace(
        &self,
        number: MrNumber,
        pd: PdUse,
        region: Region,
        charge: Option<MrCharge>,
    ) -> Result<()> {
        let old = self.table.get(number).ok_or(Errno::INVAL)?;
        if !old.windows.close() {
            return Err(Errno::BUSY);
        }
        let charge = charge.map_or_else(|| old.charge.clone(), Arc::new);
        let new = Mr {
            number,
            pd,
            kind: MrKind::Fixed(Arc::new(region)),
            charge,
            is_revoked: AtomicBool::new(false),
            windows: WindowCount::default(),
        };
        self.cache.clear(number);
        self.table.replace(number, Arc::new(new));
        Ok(())
    }

    /// Workers have been synchronised with since MR `number` was replaced.
    pub(crate) fn replaced(&self, number: MrNumber) {
        let flat = |mr: &Mr| {
            let region = mr.fixed()?;
            Some((region.key(), region.flat(mr.pd.number())?))
        };
        if let Some((key, flat)) = self.table.with(number, flat).flatten() {
            self.cache.write(number, key, flat);
        }
    }

    /// Removes an MR: its key opens nothing from now on. Workers may still use it until they are
    /// synchronised with; then its number is given back by [`release`](Self::release).
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is none, `EBUSY` while windows are bound to it.
    pub(crate) fn remove(&self, number: MrNumber) -> Result<Arc<Mr>> {
        let idle = self.table.with(number, |mr| mr.windows.close());
        match idle {
            Some(true) => {
                self.cache.clear(number);
                self.table.remove(number).ok_or(Errno::INVAL)
            }
            Some(false) => Err(Errno::BUSY),
            None => Err(Errno::INVAL),
        }
    }

    /// Takes the memory of an MR away that was made with it, without windows: its keys open nothing
    /// from now on, and stay its own. Workers may still use the memory until they are synchronised
    /// with. Returns whether there is such an MR.
    pub(crate) fn revoke(&self, number: MrNumber) -> bool {
        let revoke = |mr: &Mr| {
            let windowless = |region: &Arc<Region>| !region.access().contains(AccessFlags::MW_BIND);
            let can_be = mr.fixed().is_some_and(windowless);
            mr.is_revoked.fetch_or(can_be, Ordering::Release);
            if can_be {
                self.cache.clear(number);
            }
            can_be
        };
        self.table.with(number, revoke) == Some(true)
    }

    /// Gives back what a removed MR, which nobody uses any more, occupied.
    pub(crate) fn release(&self, number: MrNumber, mr: Arc<Mr>) {
        drop(mr);
        self.table.release(number);
    }

    /// The numbers of all MRs.
    pub(crate) fn numbers(&self) -> Vec<MrNumber> {
        self.table.iter().map(|mr| mr.number).collect()
    }

    /// The cache entry of the MR that `key` names, if there is one.
    #[inline]
    pub(super) fn flat(&self, key: u32) -> Option<Flat> {
        self.cache.read(number_of(key), key)
    }

    /// Calls `visit` with what the MR that `key` names has open to work of PD `pdn`, if anything.
    #[inline]
    pub(super) fn visit<R>(
        &self,
        key: u32,
        pdn: Pdn,
        visit: impl FnOnce(&Arc<Region>) -> R,
    ) -> Option<R> {
        let visit = |mr: &Mr| {
            if mr.pd.number() != pdn || mr.is_revoked.load(Ordering::Acquire) {
                return None;
            }
            match &mr.kind {
                MrKind::Fixed(region) => Some(visit(region)),
                MrKind::Fast(fast) => fast.with_region(visit),
            }
        };
        self.table.with(number_of(key), visit).flatten()
    }
}

impl Mr {
    /// The region of one that was made with its memory.
    pub(super) fn fixed(&self) -> Option<&Arc<Region>> {
        match &self.kind {
            MrKind::Fixed(region) => Some(region),
            MrKind::Fast(_) => None,
        }
    }

    /// Windows that are bound to it.
    pub(super) fn windows(&self) -> &WindowCount {
        &self.windows
    }

    fn fast(&self) -> Option<&FastMr> {
        match &self.kind {
            MrKind::Fixed(_) => None,
            MrKind::Fast(fast) => Some(fast),
        }
    }
}

#[cfg(test)]
mod tests;
