// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory regions and their keys.

mod saved;

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicU8, Ordering};
use std::sync::Arc;

use budget::{Charge, MemoryBudget};
use roce::work::WcReason;
use virtio_rdma_abi::ib::AccessFlags;
use virtio_rdma_abi::number::{MrNumber, MwNumber, Number, Pdn};

pub(crate) use self::saved::{MrState, VariantsState};
use super::fast::{FastMr, Mapped};
use super::key_fault::{KeyFault, KeyResult};
use super::mr_cache::{Flat, MrCache};
use super::window::{WindowCount, WindowTable};
use super::{KeyUser, MwBind, PageMap, Region};
use crate::config::BOOKKEEPING;
use crate::details::MrDetails;
use crate::error::{in_use, no_such, refusal, Reason, Refusal, Result, What};
use crate::pd::PdUse;
use crate::shuffle::Secret;
use crate::table::{Held, Reserved, Table};

/// Number of low bits of a key that hold its variant. The MR's number is above them. A new MR gets
/// a random variant, so the key of an old MR with the same number does not match and does not
/// reveal the new key. The poster of a REG_MR chooses the variant freely.
pub(super) const VARIANT_BITS: u32 = 8;

/// The number of the MR or window that `key` names.
#[inline]
pub(crate) fn number_of<N: Number>(key: u32) -> N {
    N::new(key >> VARIANT_BITS)
}

/// Draws the variants of keys at random, but never the previous variant of the same number.
#[derive(Debug)]
pub(super) struct Variants<N> {
    secret: Secret,
    /// Number of keys drawn so far.
    drawn: AtomicU64,
    first: u32,
    /// The last variant of each number's key.
    last: Box<[AtomicU8]>,
    number: PhantomData<N>,
}

impl<N: Number> Variants<N> {
    /// Draws variants for keys of the MRs or windows with these numbers.
    pub(super) fn new(secret: &Secret, numbers: Range<u32>) -> Self {
        Self {
            secret: secret.another(),
            drawn: AtomicU64::new(0),
            first: numbers.start,
            last: numbers.map(|_| AtomicU8::new(0)).collect(),
            number: PhantomData,
        }
    }

    /// Draws a new key for `number`. No other thread may draw a key for this number at the same
    /// time.
    pub(super) fn key(&self, number: N) -> u32 {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        let last = &self.last[(number.get() - self.first) as usize];
        // 1 to 255, so the sum differs from the last variant.
        let step = (self.secret.hash(drawn) % 255) as u8 + 1;
        let variant = last.load(Ordering::Relaxed).wrapping_add(step);
        last.store(variant, Ordering::Relaxed);
        (number.get() << VARIANT_BITS) | u32::from(variant)
    }

    /// Records a key whose variant the guest chose, as the last key of its number.
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
    /// The position among all MRs that the driver has registered, from 1; 0 for all memory.
    order: u32,
    pd: PdUse,
    kind: MrKind,
    /// Charge for the pages. A replacement that keeps the pages also keeps their charge.
    charge: Arc<MrCharge>,
    /// Whether the MR was revoked: its keys are invalid.
    is_revoked: AtomicBool,
    /// Number of windows bound to the MR.
    windows: WindowCount,
}

#[derive(Debug)]
enum MrKind {
    /// An MR created with its memory.
    Fixed(Arc<Region>),
    /// An MR for fast registration, created for REG_MR.
    Fast(FastMr),
}

/// Memory that a turn accesses. The memory stays registered as long as this object exists.
pub(crate) enum Opened {
    /// The memory of an MR that was created with its memory.
    Mr(Held<Mr>),
    /// The memory of a fast registration or a window, which can end within a turn.
    Region(Arc<Region>),
}

impl Opened {
    /// The memory. Never `None`: an [`Opened::Mr`] is always an MR with memory.
    #[inline]
    pub(super) fn region(&self) -> Option<&Region> {
        match self {
            Self::Mr(mr) => mr.get()?.fixed().map(|region| &**region),
            Self::Region(region) => Some(region),
        }
    }
}

/// The operation of a REG_MR work request.
pub(crate) struct RegWr {
    pub number: MrNumber,
    pub key: u32,
    /// The new access flags, which [`check_access`](super::check_access) has accepted.
    pub access: AccessFlags,
    /// The pages, if the work request names them; otherwise those that MAP_MR_SG set are used.
    pub pages: Option<Mapped>,
}

/// The MRs and memory windows of an HCA, found by key.
#[derive(Debug)]
pub(crate) struct MrTable {
    table: Table<MrNumber, Mr>,
    cache: MrCache,
    windows: WindowTable,
    variants: Variants<MrNumber>,
    /// Number of MRs that the driver has registered since the last reset, without those of all
    /// memory.
    pub(crate) registered: AtomicU32,
    /// The limit of pages of all MRs together, as a budget.
    pages: MemoryBudget,
    /// Memory that the HCA may allocate.
    budget: MemoryBudget,
}

/// The charges of an MR: its pages to the HCA's limit of pages, and its memory to the budget.
#[derive(Debug)]
pub(crate) struct MrCharge {
    pages: Charge,
    _memory: Charge,
}

impl MrTable {
    /// A table of at most `max_mr` MRs with `max_pages` pages in all, and at most `max_mw` windows.
    /// Each MR and window is charged to `budget`.
    pub(crate) fn new(
        secret: &Secret,
        budget: &MemoryBudget,
        max_mr: u32,
        max_mw: u32,
        max_pages: u64,
    ) -> Self {
        Self {
            // Number 0 stays unused, so key 0 is never valid.
            table: Table::new(secret, 1..max_mr + 1),
            cache: MrCache::new(max_mr + 1),
            variants: Variants::new(secret, 0..max_mr + 1),
            registered: AtomicU32::new(0),
            // The numbers of windows are above those of MRs, so a key shows whether it is of an MR
            // or of a window.
            windows: WindowTable::new(secret, budget, max_mr + 1..max_mr + 1 + max_mw),
            pages: MemoryBudget::new(max_pages),
            budget: budget.clone(),
        }
    }

    /// Charges an MR of `npages` pages.
    pub(crate) fn charge(&self, npages: u64) -> Result<MrCharge> {
        let region = size_of::<(Region, PageMap)>();
        Ok(MrCharge {
            pages: self.pages.charge(npages).map_err(|exhausted| Refusal {
                what: What::Npages,
                ..exhausted.into()
            })?,
            _memory: self.budget.charge_object::<Mr>(region + BOOKKEEPING)?,
        })
    }

    /// Creates an MR and returns its number and key. `base` is the address that work requests use
    /// for the first byte of the MR.
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
        let number = self.make(reserved, pd, kind, charge);
        // The cache entry is empty and may be filled: no worker uses the previous MR with this
        // number any more.
        if let Some(flat) = flat {
            self.cache.write(number, key, flat);
        }
        Ok((number, key))
    }

    /// Creates an MR for fast registration of at most `max_pages` pages. Returns its number and
    /// first key. Up to `maps` page maps of the MR may exist at the same time.
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
        Ok((self.make(reserved, pd, kind, charge), key))
    }

    /// Calls `visit` with MR `number`. If that fails, the reason is the MR.
    fn on<R>(
        &self,
        number: MrNumber,
        visit: impl FnOnce(&Mr) -> std::result::Result<R, Reason>,
    ) -> Result<R> {
        let visited = self.table.with(number, visit);
        visited
            .unwrap_or(Err(Reason::NoSuch))
            .map_err(|reason| refusal(reason, What::Mrn, number.get()))
    }

    /// Reserves a number, and draws a key for it.
    fn reserve(&self) -> Result<(Reserved<'_, MrNumber, Mr>, u32)> {
        let reserved = self.table.number(What::Mrn)?;
        let key = self.variants.key(reserved.number());
        Ok((reserved, key))
    }

    fn make(
        &self,
        reserved: Reserved<'_, MrNumber, Mr>,
        pd: PdUse,
        kind: MrKind,
        charge: MrCharge,
    ) -> MrNumber {
        let number = reserved.number();
        let order = match &kind {
            MrKind::Fixed(region) if region.pages().is_identity() => 0,
            _ => self
                .registered
                .fetch_add(1, Ordering::Relaxed)
                .saturating_add(1),
        };
        reserved.insert(Arc::new(Mr {
            number,
            order,
            pd,
            kind,
            charge: Arc::new(charge),
            is_revoked: AtomicBool::new(false),
            windows: WindowCount::default(),
        }))
    }

    /// Maximum number of pages that MR `number` can register, and the budget to which their map is
    /// charged. Refused if the MR is not for fast registration.
    pub(crate) fn fast_limits(&self, number: MrNumber) -> Result<(u32, MemoryBudget)> {
        self.on(number, |mr| {
            mr.fast().map(FastMr::limits).ok_or(Reason::Unsuitable)
        })
    }

    /// Sets the pages of MR `number` for its next registration.
    pub(crate) fn map(&self, number: MrNumber, mapped: Mapped) -> Result<()> {
        self.on(number, |mr| {
            let fast = mr.fast().ok_or(Reason::Unsuitable)?;
            fast.map(mapped);
            Ok(())
        })
    }

    /// Registers pages in an MR for fast registration, for a QP in PD `pdn`. The MR must be free
    /// and in that PD, and the new key may differ from the old one only in its variant.
    pub(crate) fn register(&self, pdn: Pdn, wanted: RegWr) -> KeyResult<()> {
        if number_of::<MrNumber>(wanted.key) != wanted.number {
            return Err(KeyFault(WcReason::KeyMismatch));
        }
        let register = |mr: &Mr| {
            mr.fast_in(pdn)?
                .register(wanted.key, wanted.access, wanted.pages)
        };
        self.table
            .with(wanted.number, register)
            .unwrap_or(Err(KeyFault(WcReason::NoSuchKey)))
    }

    /// Invalidates `key` of a fast-registration MR or of a type 2 window, for work of a QP in the
    /// same PD. On return the MR or window is free, and no thread uses its memory any more. Waits
    /// at most until other workers have ended the copy that they are executing. The caller must
    /// have no [`Message`](super::Message) open.
    pub(crate) fn invalidate(&self, key: u32, by: KeyUser) -> KeyResult<()> {
        if self.windows.owns(key) {
            return self.windows.invalidate(key, by);
        }
        let mr = self.table.get(number_of(key));
        let mr = mr.ok_or(KeyFault(WcReason::NoSuchKey))?;
        mr.fast_in(by.pdn)?.invalidate(key)
    }

    /// Binds a window to a part of the MR that `lkey` names, for work of a QP. Window, MR and QP
    /// must have the same PD. Returns the window's number if only this QP may use the binding.
    /// The caller must have no [`Message`](super::Message) open.
    pub(crate) fn bind(
        &self,
        by: KeyUser,
        lkey: u32,
        wanted: &MwBind,
    ) -> KeyResult<Option<MwNumber>> {
        if wanted.len == 0 {
            return self.windows.bind(by, wanted, None);
        }
        let mr = self.table.get(number_of(lkey));
        let mr = mr.ok_or(KeyFault(WcReason::NoSuchKey))?;
        if mr.pd.number() != by.pdn {
            return Err(KeyFault(WcReason::OtherPd));
        }
        let region = mr.fixed().ok_or(KeyFault(WcReason::UnsuitableKey))?;
        if region.key() != lkey {
            return Err(KeyFault(WcReason::NoSuchKey));
        }
        self.windows.bind(by, wanted, Some(&mr))
    }

    /// The memory windows.
    pub(crate) fn windows(&self) -> &WindowTable {
        &self.windows
    }

    /// The PD and memory of MR `number`. Refused if the MR does not exist, was created without
    /// memory, or is revoked.
    pub(crate) fn current(&self, number: MrNumber) -> Result<(PdUse, Arc<Region>)> {
        let current = |mr: &Mr| {
            if mr.is_revoked.load(Ordering::Relaxed) {
                return Err(Reason::Failed);
            }
            let region = mr.fixed().ok_or(Reason::Unsuitable)?;
            Ok((mr.pd.again(), region.clone()))
        };
        self.on(number, current)
    }

    /// Replaces the memory, access flags and PD of MR `number`. The key stays the same. `charge` is
    /// `None` if the pages stay the same. Workers may use the old memory until the caller has
    /// synchronized with them. After that the caller must call [`replaced`](Self::replaced).
    ///
    /// # Errors
    ///
    /// The MR does not exist, or windows are bound to it.
    pub(crate) fn replace(
        &self,
        number: MrNumber,
        pd: PdUse,
        region: Region,
        charge: Option<MrCharge>,
    ) -> Result<()> {
        let old = self.table.find(What::Mrn, number)?;
        if !old.windows.close() {
            return Err(in_use(What::Mrn, number));
        }
        let charge = charge.map_or_else(|| old.charge.clone(), Arc::new);
        let new = Mr {
            number,
            order: old.order,
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

    /// Ends the replacement of MR `number`: fills its cache entry. The caller must have
    /// synchronized with all workers.
    pub(crate) fn replaced(&self, number: MrNumber) {
        let flat = |mr: &Mr| {
            let region = mr.fixed()?;
            Some((region.key(), region.flat(mr.pd.number())?))
        };
        if let Some((key, flat)) = self.table.with(number, flat).flatten() {
            self.cache.write(number, key, flat);
        }
    }

    /// Removes an MR: its key is invalid from now on. Workers may use the memory until the caller
    /// has synchronized with them. After that [`release`](Self::release) frees the number.
    ///
    /// # Errors
    ///
    /// The MR does not exist, or windows are bound to it.
    pub(crate) fn remove(&self, number: MrNumber) -> Result<Arc<Mr>> {
        self.on(number, |mr| {
            let is_idle = mr.windows.close();
            is_idle.then_some(()).ok_or(Reason::InUse)
        })?;
        self.cache.clear(number);
        self.table.remove(number).ok_or(no_such(What::Mrn, number))
    }

    /// Revokes an MR that was created with its memory and does not permit windows: its keys are
    /// invalid from now on, but not reused. Workers may use the memory until the caller has
    /// synchronized with them. Refused if there is no such MR.
    pub(crate) fn revoke(&self, number: MrNumber) -> Result<()> {
        let revoke = |mr: &Mr| {
            let windowless = |region: &Arc<Region>| !region.access().contains(AccessFlags::MW_BIND);
            let can_be = mr.fixed().is_some_and(windowless);
            mr.is_revoked.fetch_or(can_be, Ordering::Release);
            if can_be {
                self.cache.clear(number);
            }
            can_be.then_some(()).ok_or(Reason::Unsuitable)
        };
        self.on(number, revoke)
    }

    /// Frees a removed MR, which no worker uses any more, and its number.
    pub(crate) fn release(&self, number: MrNumber, mr: Arc<Mr>) {
        drop(mr);
        self.table.release(number);
    }

    /// MR `number`.
    pub(super) fn find(&self, number: MrNumber) -> Result<Arc<Mr>> {
        self.table.find(What::Mrn, number)
    }

    /// The order of the MR with this key; 0 if there is none.
    pub(crate) fn order(&self, key: u32) -> u32 {
        let mr = self.table.get(number_of(key));
        mr.filter(|mr| mr.with_region(Region::key) == Some(key))
            .map_or(0, |mr| mr.order)
    }

    /// Number of MRs.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// The state of the MR of a key, or of all MRs.
    pub(crate) fn details(&self, key: Option<u32>) -> Vec<MrDetails> {
        let mrs: Vec<_> = match key {
            Some(key) => self.table.get(number_of(key)).into_iter().collect(),
            None => self.table.iter().collect(),
        };
        mrs.iter().map(|mr| mr.details()).collect()
    }

    /// The numbers of all MRs.
    pub(crate) fn numbers(&self) -> Vec<MrNumber> {
        self.table.iter().map(|mr| mr.number).collect()
    }

    /// The cache entry of `key`, if there is one.
    #[inline]
    pub(super) fn flat(&self, key: u32) -> Option<Flat> {
        self.cache.read(number_of(key), key)
    }

    /// Calls `visit` with the memory of the MR that `key` names, if the MR is in PD `pdn` and not
    /// revoked. To be called within a turn.
    #[inline]
    pub(super) fn visit<R>(
        &self,
        key: u32,
        pdn: Pdn,
        visit: impl FnOnce(&Region) -> R,
    ) -> Option<R> {
        let held = self.table.hold(number_of(key))?;
        let mr = held.get().filter(|mr| mr.serves(pdn))?;
        mr.with_region(visit)
    }

    /// Why `key` does not give work of PD `pdn` all of `access` to the bytes in `range`, or to any
    /// bytes if there is no range: the first check that fails. Called after a check that failed, so
    /// that checks that succeed need no more than one answer.
    #[cold]
    pub(super) fn fault(
        &self,
        key: u32,
        pdn: Pdn,
        range: Option<(u64, u64)>,
        access: AccessFlags,
    ) -> KeyFault {
        let Some(mr) = self.table.get(number_of(key)) else {
            return KeyFault(WcReason::NoSuchKey);
        };
        let (named, fault) = mr
            .with_region(|region| (region.key() == key, region.fault(range, access)))
            .unwrap_or((true, KeyFault(WcReason::KeyRevoked)));
        if !named {
            KeyFault(WcReason::NoSuchKey)
        } else if mr.pd.number() != pdn {
            KeyFault(WcReason::OtherPd)
        } else if mr.is_revoked.load(Ordering::Relaxed) {
            KeyFault(WcReason::KeyRevoked)
        } else {
            fault
        }
    }

    /// The memory of the MR that `key` names, if the key gives work of PD `pdn` all access flags of
    /// `access` to the `len` bytes at `addr`. To be called within a turn.
    #[inline]
    pub(super) fn open(
        &self,
        key: u32,
        pdn: Pdn,
        addr: u64,
        len: u64,
        access: AccessFlags,
    ) -> Option<Opened> {
        let held = self.table.hold(number_of(key))?;
        let mr = held.get().filter(|mr| mr.serves(pdn))?;
        match &mr.kind {
            MrKind::Fixed(region) => region
                .allows(key, addr, len, access)
                .then_some(Opened::Mr(held)),
            MrKind::Fast(fast) => fast
                .with_region(|region| region.open(key, addr, len, access))
                .flatten()
                .map(Opened::Region),
        }
    }
}

impl Mr {
    pub(super) fn number(&self) -> MrNumber {
        self.number
    }

    fn details(&self) -> MrDetails {
        MrDetails {
            mrn: self.number.get(),
            pdn: self.pd.number().get(),
            is_fast: self.fast().is_some(),
            is_revoked: self.is_revoked.load(Ordering::Acquire),
            windows: self.windows.bound(),
            memory: self.with_region(Region::details),
        }
    }

    /// Calls `visit` with the memory of the MR. `None` if the MR has none: it is for fast
    /// registration, and free.
    #[inline]
    fn with_region<R>(&self, visit: impl FnOnce(&Region) -> R) -> Option<R> {
        match &self.kind {
            MrKind::Fixed(region) => Some(visit(region)),
            MrKind::Fast(fast) => fast.with_region(|region| visit(region)),
        }
    }

    /// The state of an MR for fast registration in PD `pdn`.
    fn fast_in(&self, pdn: Pdn) -> KeyResult<&FastMr> {
        if self.pd.number() != pdn {
            return Err(KeyFault(WcReason::OtherPd));
        }
        self.fast().ok_or(KeyFault(WcReason::UnsuitableKey))
    }

    /// The MR's memory, if the MR was created with memory.
    pub(super) fn fixed(&self) -> Option<&Arc<Region>> {
        match &self.kind {
            MrKind::Fixed(region) => Some(region),
            MrKind::Fast(_) => None,
        }
    }

    /// Whether the MR's key may be used by work of PD `pdn`.
    #[inline]
    fn serves(&self, pdn: Pdn) -> bool {
        self.pd.number() == pdn && !self.is_revoked.load(Ordering::Acquire)
    }

    /// Number of windows bound to the MR.
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
