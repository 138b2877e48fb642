// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Rings in guest memory: own rings, and virtqueues of the transport.

use std::cell::Cell;
use std::sync::atomic::{fence, Ordering};

use budget::{Budget, List};
use dma::{DmaError, DmaSlice, DmaSliceMut, DmaSpace, DmaView};
use virtio_rdma_abi::ctrl::PageListDepth;
use virtio_rdma_abi::ring::{
    RingAddr, RingLayout, PAGE_SHIFT_RANGE, SLOTS_RANGE, SLOT_SHIFT_RANGE,
};
use virtio_rdma_ring::RingMemory;
use virtqueue::{ChainError, Split};

use super::pages::{reach, PageList};
use super::VirtqueueMem;
use crate::error::{require, Errno, Result};

/// Where a ring lies.
#[derive(Debug)]
pub(crate) struct RingMem {
    place: Place,
    layout: RingLayout,
}

#[derive(Debug)]
enum Place {
    /// An own ring.
    Own(Pages),
    /// A virtqueue of the transport.
    Virtqueue(VirtqueueMem),
    /// No memory: a queue that its QP was created without.
    Absent,
}

/// Pages that the driver named.
#[derive(Debug)]
enum Pages {
    /// They follow each other from this DMA address on.
    Together(u64),
    /// DMA address of each page of `1 << shift` bytes.
    Apart { starts: List<u64>, shift: u8 },
}

impl Pages {
    /// The pages of `list` that `size` bytes lie in, after a check that all of the bytes can be reached.
    fn read(budget: &Budget, space: &DmaSpace, list: &PageList, size: u32) -> Result<Self> {
        let (page, size) = (1u64 << list.page_shift, u64::from(size));
        let mut starts = List::new(budget, list.npages as usize);
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

    /// DMA address of the byte at `offset`, which is inside.
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

/// The layout of an absent queue. It is never accessed.
const NO_LAYOUT: RingLayout = match RingLayout::new(*SLOTS_RANGE.start(), *SLOT_SHIFT_RANGE.start())
{
    Some(layout) => layout,
    None => panic!("the least ring is valid"),
};

impl RingMem {
    /// The ring that a command describes, after a check that all of it can be reached. What the device keeps of it is
    /// charged to `budget`.
    pub(crate) fn new(budget: &Budget, space: &DmaSpace, addr: &RingAddr) -> Result<Self> {
        require(addr.reserved == [0; 6] && PAGE_SHIFT_RANGE.contains(&addr.page_shift))?;
        let layout = RingLayout::new(addr.slots, addr.slot_shift).ok_or(Errno::INVAL)?;
        let list = PageList {
            iova: addr.pages,
            npages: addr.npages,
            page_shift: addr.page_shift,
            depth: PageListDepth::Flat,
        };
        let pages = Pages::read(budget, space, &list, layout.size())?;
        Ok(Self {
            place: Place::Own(pages),
            layout,
        })
    }

    /// Virtqueue `number` of the transport, which lies at `split`.
    pub(crate) fn virtqueue(number: u16, split: Split) -> Result<Self> {
        let (queue, layout) = VirtqueueMem::new(number, split)?;
        Ok(Self {
            place: Place::Virtqueue(queue),
            layout,
        })
    }

    /// A queue that its QP was created without: it is always empty.
    pub(crate) fn absent() -> Self {
        Self {
            place: Place::Absent,
            layout: NO_LAYOUT,
        }
    }

    /// The virtqueue that it is, if it is one.
    pub(crate) fn as_virtqueue(&self) -> Option<&VirtqueueMem> {
        match &self.place {
            Place::Own(_) | Place::Absent => None,
            Place::Virtqueue(queue) => Some(queue),
        }
    }

    /// Where the parts of the ring are.
    pub(crate) fn layout(&self) -> RingLayout {
        self.layout
    }
}

/// Access to a ring as long as a view of guest memory is held.
///
/// An own ring was checked when it was created. When the VM's monitor unmaps its memory nevertheless, loads give 0 and
/// stores vanish, and [`lost`](Self::lost) tells. The same goes for a virtqueue whose addresses, or descriptors, are bad
/// or which the driver has reset; nothing of it is accessed any more then. In an absent queue, loads give 0 as well: it is empty.
pub(crate) struct RingView<'a> {
    ring: &'a RingMem,
    view: &'a DmaView,
    /// The whole ring, if it is one piece.
    whole: Option<DmaSliceMut<'a>>,
    /// Of one that is not, the page of the slot that was accessed last.
    slot: Recent<'a>,
    /// The same of words, those that were accessed last, by their numbers.
    words: [Recent<'a>; WORDS],
    lost: Cell<bool>,
}

/// A page of a ring, with its number.
type Recent<'a> = Cell<Option<(u32, DmaSliceMut<'a>)>>;

/// Pages of words that are found at once: those of what is available, of what is used, and of the two indices.
const WORDS: usize = 8;
/// The least size of pages, which no access crosses.
const PAGE: u32 = 1 << *PAGE_SHIFT_RANGE.start();

/// Where the byte at `offset` of a ring is in its page.
#[inline(always)]
fn within_page(offset: u32) -> usize {
    (offset % PAGE) as usize
}

impl<'a> RingView<'a> {
    /// Access through `view`.
    #[inline]
    pub(crate) fn new(ring: &'a RingMem, view: &'a DmaView) -> Self {
        let (whole, lost) = match &ring.place {
            Place::Own(Pages::Together(first)) => {
                let size = ring.layout.size() as usize;
                (view.slice_mut(*first, size).ok(), false)
            }
            Place::Own(Pages::Apart { .. }) => (None, false),
            Place::Virtqueue(queue) => (None, queue.is_gone()),
            Place::Absent => (None, false),
        };
        Self {
            ring,
            view,
            whole,
            slot: Cell::new(None),
            words: [const { Cell::new(None) }; WORDS],
            lost: Cell::new(lost),
        }
    }

    /// Whether an access failed because the memory is gone or was never there.
    pub(crate) fn lost(&self) -> bool {
        self.lost.get()
    }

    /// Accesses `len` bytes at `offset`. A message takes nine such accesses: all but the first few of a turn find
    /// their page in `recent`, by a comparison in place.
    #[inline(always)]
    fn access<R: Default>(
        &self,
        offset: u32,
        len: usize,
        recent: &Recent<'a>,
        access: impl FnOnce(&DmaSliceMut<'_>, usize) -> std::result::Result<R, DmaError>,
    ) -> R {
        let (slice, at) = match (self.whole, recent.get()) {
            (Some(whole), _) => (whole, offset as usize),
            (None, Some((found, page))) if found == offset / PAGE => (page, within_page(offset)),
            _ => match self.locate(offset, len, recent) {
                Some(place) => place,
                None => return R::default(),
            },
        };
        access(&slice, at).unwrap_or_else(|_| {
            self.lost.set(true);
            R::default()
        })
    }

    /// The memory of `len` bytes at `offset` of a ring that is not one piece, and where they begin in it.
    #[inline(never)]
    fn locate(
        &self,
        offset: u32,
        len: usize,
        recent: &Recent<'a>,
    ) -> Option<(DmaSliceMut<'a>, usize)> {
        let found = match &self.ring.place {
            Place::Own(pages) => self
                .page(pages, offset / PAGE, recent)
                .map(|page| (page, within_page(offset))),
            Place::Virtqueue(queue) if !self.lost.get() => {
                let iova = queue.find(&self.ring.layout, offset)?;
                self.view.slice_mut(iova, len).map(|slice| (slice, 0))
            }
            Place::Virtqueue(_) | Place::Absent => return None,
        };
        found.inspect_err(|_| self.lost.set(true)).ok()
    }

    /// Page `number` of a ring, which `recent` gets.
    fn page(
        &self,
        pages: &Pages,
        number: u32,
        recent: &Recent<'a>,
    ) -> std::result::Result<DmaSliceMut<'a>, DmaError> {
        let iova = pages.find(number * PAGE).ok_or(DmaError::OutOfBounds)?;
        let page = self.view.slice_mut(iova, PAGE as usize)?;
        recent.set(Some((number, page)));
        Ok(page)
    }

    /// Copies the WQE in slot `slot` and returns how many of its bytes are there: all, but for a virtqueue, whose
    /// descriptors may end early. The others become 0.
    #[inline]
    pub(crate) fn read_wqe(&self, slot: u16, wqe: &mut [u8]) -> usize {
        match &self.ring.place {
            Place::Own(_) | Place::Absent => {
                self.read(self.ring.layout.slot(slot), wqe);
                wqe.len()
            }
            Place::Virtqueue(queue) => {
                let present = self.with_chain(|| queue.gather(self.view, slot, wqe));
                wqe[present..].fill(0);
                present
            }
        }
    }

    /// Accesses the chain that stands for a slot.
    fn with_chain<R: Default>(
        &self,
        access: impl FnOnce() -> std::result::Result<R, ChainError>,
    ) -> R {
        if self.lost.get() {
            return R::default();
        }
        access().unwrap_or_else(|error| {
            tracing::debug!("virtqueue: {error}");
            self.lost.set(true);
            R::default()
        })
    }

    #[inline(always)]
    fn load<R: Default>(
        &self,
        offset: u32,
        load: impl FnOnce(&DmaSlice<'_>, usize) -> std::result::Result<R, DmaError>,
    ) -> R {
        let recent = self.recent_word(offset);
        self.access(offset, size_of::<R>(), recent, |slice, at| load(slice, at))
    }

    /// Where the page of the word at `offset` is remembered.
    #[inline(always)]
    fn recent_word(&self, offset: u32) -> &Recent<'a> {
        &self.words[(offset / PAGE) as usize % WORDS]
    }
}

impl RingMemory for RingView<'_> {
    #[inline]
    fn load_u16(&self, offset: u32) -> u16 {
        self.load(offset, |slice, at| slice.load_u16(at, Ordering::Relaxed))
    }

    #[inline]
    fn load_u16_acquire(&self, offset: u32) -> u16 {
        self.load(offset, |slice, at| slice.load_u16(at, Ordering::Acquire))
    }

    #[inline]
    fn store_u16(&self, offset: u32, value: u16) {
        self.access(offset, 2, self.recent_word(offset), |slice, at| {
            slice.store_u16(at, value, Ordering::Relaxed)
        });
    }

    #[inline]
    fn store_u16_release(&self, offset: u32, value: u16) {
        self.access(offset, 2, self.recent_word(offset), |slice, at| {
            slice.store_u16(at, value, Ordering::Release)
        });
    }

    #[inline]
    fn load_u32(&self, offset: u32) -> u32 {
        if let (None, Place::Virtqueue(queue)) = (self.whole, &self.ring.place) {
            if offset == self.ring.layout.arm() {
                return queue.arm_word().to_le();
            }
        }
        self.load(offset, |slice, at| slice.load_u32(at, Ordering::Relaxed))
    }

    #[inline]
    fn store_u32(&self, offset: u32, value: u32) {
        self.access(offset, 4, self.recent_word(offset), |slice, at| {
            slice.store_u32(at, value, Ordering::Relaxed)
        });
    }

    #[inline]
    fn read(&self, offset: u32, bytes: &mut [u8]) {
        self.access(offset, bytes.len(), &self.slot, |slice, at| {
            slice.read(at, bytes)
        });
    }

    #[inline]
    fn write(&self, offset: u32, bytes: &[u8]) {
        if let (None, Place::Virtqueue(queue)) = (self.whole, &self.ring.place) {
            // There are no more slots than a u16 counts.
            let slot = (offset >> self.ring.layout.slot_shift()) as u16;
            return self.with_chain(|| queue.scatter(self.view, slot, bytes));
        }
        self.access(offset, bytes.len(), &self.slot, |slice, at| {
            slice.write(at, bytes)
        });
    }

    #[inline]
    fn full_barrier(&self) {
        fence(Ordering::SeqCst);
    }
}
