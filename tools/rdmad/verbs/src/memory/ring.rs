// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Own rings in guest memory.

mod saved;

use std::cell::Cell;
use std::sync::atomic::{fence, Ordering};

use budget::{ChargedList, MemoryBudget};
use dma::{DmaError, DmaSlice, DmaSliceMut, DmaSpace, DmaView};
use virtio_rdma_abi::ring::{RingAddr, RingKind, RingLayout, PAGE_SHIFT_RANGE};
use virtio_rdma_ring::RingMemory;

pub(crate) use self::saved::{LatchDef, PositionsDef, RingState};
use super::pages::{reach, PageList};
use crate::error::{defined, power_of_two, refusal, reserved, within, Reason, Result, What};

#[derive(Debug)]
pub(crate) struct RingMem {
    pages: Pages,
    layout: RingLayout,
}

/// The pages of a ring, which the driver named.
#[derive(Debug)]
enum Pages {
    /// Contiguous pages: the DMA address of the first page.
    Together(u64),
    /// Scattered pages: the DMA address of each page of `1 << shift` bytes.
    Apart { starts: ChargedList<u64>, shift: u8 },
}

impl Pages {
    /// Reads the addresses of the pages of `list` that hold the first `size` bytes. Checks that all
    /// of these bytes can be accessed.
    fn read(budget: &MemoryBudget, space: &DmaSpace, list: &PageList, size: u32) -> Result<Self> {
        let (page, size) = (1u64 << list.page_shift, u64::from(size));
        let mut starts = ChargedList::new(budget, list.npages as usize);
        let mut rest = size;
        list.each_page(space, size, |iova| {
            reach(space, iova, rest.min(page), true)?;
            rest = rest.saturating_sub(page);
            Ok(starts.push(iova)?)
        })?;
        let follow = |pair: &[u64]| pair[0] + page == pair[1];
        match starts.first() {
            Some(&first) if starts.windows(2).all(follow) => Ok(Self::Together(first)),
            _ => {
                let count = starts.len();
                starts.fit(count);
                Ok(Self::Apart {
                    starts,
                    shift: list.page_shift,
                })
            }
        }
    }

    /// DMA address of the byte at `offset`, which must be inside the ring.
    fn find(&self, offset: u32) -> Option<u64> {
        match self {
            Self::Together(first) => Some(first + u64::from(offset)),
            Self::Apart { starts, shift } => {
                let offset = u64::from(offset);
                let start = starts.get((offset >> shift) as usize)?;
                Some(start + (offset & ((1 << shift) - 1)))
            }
        }
    }
}

impl RingMem {
    /// The memory of the ring that a command describes. Checks that all of the ring can be
    /// accessed. The device's copy of the page addresses is charged to `budget`.
    pub(crate) fn new(
        budget: &MemoryBudget,
        space: &DmaSpace,
        kind: RingKind,
        addr: &RingAddr,
    ) -> Result<Self> {
        reserved(&addr.reserved)?;
        within(What::PageShift, addr.page_shift, &PAGE_SHIFT_RANGE)?;
        let layout = Self::layout_of(kind, addr)?;
        let list = PageList {
            iova: addr.pages,
            npages: addr.npages,
            page_shift: addr.page_shift,
            depth: defined(What::Depth, addr.depth)?,
        };
        let pages = Pages::read(budget, space, &list, layout.size())?;
        Ok(Self { pages, layout })
    }

    fn layout_of(kind: RingKind, addr: &RingAddr) -> Result<RingLayout> {
        within(What::Slots, addr.slots, &kind.slots())?;
        power_of_two(What::Slots, addr.slots)?;
        within(What::SlotShift, addr.slot_shift, &kind.slot_shifts())?;
        let invalid = refusal(Reason::Undefined, What::Slots, addr.slots);
        RingLayout::new(kind, addr.slots, addr.slot_shift).ok_or(invalid)
    }

    /// Offsets of the parts of the ring.
    pub(crate) fn layout(&self) -> &RingLayout {
        &self.layout
    }
}

/// Access to the memory of a ring. Exists only while a view of guest memory is held.
///
/// The ring's memory was checked at creation. If the VM's monitor unmaps it later, loads return 0,
/// stores are dropped, and [`lost`](Self::lost) returns true.
pub(crate) struct RingView<'a> {
    ring: &'a RingMem,
    view: &'a DmaView,
    /// The whole ring, if it is contiguous.
    whole: Option<DmaSliceMut<'a>>,
    /// If the ring is scattered: the page of the slot that was accessed last.
    slot: Recent<'a>,
    /// If the ring is scattered: the page of the control words.
    words: Recent<'a>,
    /// If the ring is scattered: the page of `order` that was accessed last.
    order: Recent<'a>,
    lost: Cell<bool>,
}

/// A page of a ring, with its number.
type Recent<'a> = Cell<Option<(u32, DmaSliceMut<'a>)>>;

/// Smallest page size in bytes. No access crosses such a page.
const PAGE: u32 = 1 << *PAGE_SHIFT_RANGE.start();

/// Converts an offset in the ring to the offset in its page.
#[inline(always)]
fn within_page(offset: u32) -> usize {
    (offset % PAGE) as usize
}

impl<'a> RingView<'a> {
    /// Access to `ring` through `view`.
    #[inline]
    pub(crate) fn new(ring: &'a RingMem, view: &'a DmaView) -> Self {
        let whole = match &ring.pages {
            Pages::Together(first) => view.slice_mut(*first, ring.layout.size() as usize).ok(),
            Pages::Apart { .. } => None,
        };
        Self {
            ring,
            view,
            whole,
            slot: Cell::new(None),
            words: Cell::new(None),
            order: Cell::new(None),
            lost: Cell::new(false),
        }
    }

    /// Whether an access failed because the memory is gone.
    pub(crate) fn lost(&self) -> bool {
        self.lost.get()
    }

    /// Accesses `len` bytes at `offset`. Each message needs several such accesses, so they must be
    /// fast: most find their page in `recent`, with one inlined comparison.
    #[inline(always)]
    fn access<R: Default>(
        &self,
        offset: u32,
        recent: &Recent<'a>,
        access: impl FnOnce(&DmaSliceMut<'_>, usize) -> std::result::Result<R, DmaError>,
    ) -> R {
        let (slice, at) = match (self.whole, recent.get()) {
            (Some(whole), _) => (whole, offset as usize),
            (None, Some((found, page))) if found == offset / PAGE => (page, within_page(offset)),
            _ => match self.page(offset / PAGE, recent) {
                Some(page) => (page, within_page(offset)),
                None => return R::default(),
            },
        };
        access(&slice, at).unwrap_or_else(|_| {
            self.lost.set(true);
            R::default()
        })
    }

    /// Page `number` of the ring. Stores it in `recent`.
    #[inline(never)]
    fn page(&self, number: u32, recent: &Recent<'a>) -> Option<DmaSliceMut<'a>> {
        let page = self
            .ring
            .pages
            .find(number * PAGE)
            .and_then(|iova| self.view.slice_mut(iova, PAGE as usize).ok());
        match page {
            Some(page) => recent.set(Some((number, page))),
            None => self.lost.set(true),
        }
        page
    }

    /// Copies the WQE at `position` into `wqe`, which is at most as long as a slot, and returns the
    /// WQE's length in bytes. Copies `first` bytes first, from which `size` computes the length.
    /// The rest of `wqe` stays unchanged.
    #[inline]
    pub(crate) fn read_wqe(
        &self,
        position: u32,
        wqe: &mut [u8],
        first: usize,
        size: impl FnOnce(&[u8]) -> usize,
    ) -> usize {
        let slot = self.ring.layout.slot(position);
        let first = first.min(wqe.len());
        self.read(slot, &mut wqe[..first]);
        let size = size(&wqe[..first]).clamp(first, wqe.len());
        if size > first {
            // LOSSLESS: a slot has at most 4,096 bytes.
            self.read(slot + first as u32, &mut wqe[first..size]);
        }
        size
    }

    #[inline(always)]
    fn load<R: Default>(
        &self,
        offset: u32,
        recent: &Recent<'a>,
        load: impl FnOnce(&DmaSlice<'_>, usize) -> std::result::Result<R, DmaError>,
    ) -> R {
        self.access(offset, recent, |slice, at| load(slice, at))
    }
}

impl RingMemory for RingView<'_> {
    #[inline]
    fn load_u32(&self, offset: u32) -> u32 {
        self.load(offset, &self.words, |slice, at| {
            slice.load_u32(at, Ordering::Relaxed)
        })
    }

    #[inline]
    fn load_u32_acquire(&self, offset: u32) -> u32 {
        self.load(offset, &self.words, |slice, at| {
            slice.load_u32(at, Ordering::Acquire)
        })
    }

    #[inline]
    fn store_u32(&self, offset: u32, value: u32) {
        self.access(offset, &self.words, |slice, at| {
            slice.store_u32(at, value, Ordering::Relaxed)
        });
    }

    #[inline]
    fn store_u32_release(&self, offset: u32, value: u32) {
        self.access(offset, &self.words, |slice, at| {
            slice.store_u32(at, value, Ordering::Release)
        });
    }

    #[inline]
    fn load_u64(&self, offset: u32) -> u64 {
        self.load(offset, &self.words, |slice, at| {
            slice.load_u64(at, Ordering::Relaxed)
        })
    }

    #[inline]
    fn store_u64(&self, offset: u32, value: u64) {
        self.access(offset, &self.words, |slice, at| {
            slice.store_u64(at, value, Ordering::Relaxed)
        });
    }

    #[inline]
    fn load_u16(&self, offset: u32) -> u16 {
        self.load(offset, &self.order, |slice, at| {
            slice.load_u16(at, Ordering::Relaxed)
        })
    }

    #[inline]
    fn store_u16(&self, offset: u32, value: u16) {
        self.access(offset, &self.order, |slice, at| {
            slice.store_u16(at, value, Ordering::Relaxed)
        });
    }

    #[inline]
    fn read(&self, offset: u32, bytes: &mut [u8]) {
        self.access(offset, &self.slot, |slice, at| slice.read(at, bytes));
    }

    #[inline]
    fn write(&self, offset: u32, bytes: &[u8]) {
        self.access(offset, &self.slot, |slice, at| slice.write(at, bytes));
    }

    #[inline]
    fn full_barrier(&self) {
        fence(Ordering::SeqCst);
    }
}
