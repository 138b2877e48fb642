// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Objects in guest memory, such as MRs, whose pages the driver names in a page list.

mod saved;

use budget::{ChargedList, MemoryBudget};
use dma::DmaSpace;
use virtio_rdma_abi::ctrl::{PageListDepth, PAGE_LIST_BLOCK};

pub(crate) use self::saved::PageMapState;
use crate::error::{aligned, at_least, at_most, end, exactly, fault, Result, What};

/// Bytes of an entry of a page list.
const ENTRY: usize = 8;
/// Number of entries of a page list that are copied at a time: one block of the list.
const BATCH: usize = PAGE_LIST_BLOCK / ENTRY;

/// The DMA addresses of an object's bytes.
///
/// Pages that are adjacent in DMA space form one extent, so an object that the guest allocated
/// contiguously needs no search. In a scattered object, sequential lookups try the next extent
/// first. Other lookups try the extent that has the byte if no two pages are adjacent, then use
/// binary search.
#[derive(Debug)]
pub(crate) struct PageMap {
    /// Sorted by start. The first extent starts at 0. The last one is empty and marks the end of
    /// the object.
    extents: ChargedList<Extent>,
    /// Pages have `1 << page_shift` bytes.
    page_shift: u8,
}

/// The contiguous pieces of an object from an offset on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces<'a> {
    /// The extent that contains `offset`, and those after it.
    extents: &'a [Extent],
    offset: u64,
}

/// A position in a [`PageMap`]: the extent after the last hit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor(usize);

#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Offset of the extent in the object.
    start: u64,
    /// DMA address of the extent's first byte.
    iova: u64,
}

/// A page list in guest memory, as a command describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageList {
    /// DMA address of the list or of its directory.
    pub iova: u64,
    pub npages: u32,
    /// Pages have `1 << page_shift` bytes.
    pub page_shift: u8,
    /// Format of the list: one or two levels.
    pub depth: PageListDepth,
}

impl PageList {
    /// Checks that the list has exactly the pages of an object of `len` bytes whose first byte is
    /// at `start`. Returns the offset of the first byte in the first page.
    pub(crate) fn fits(&self, start: u64, len: u64) -> Result<u64> {
        let page = 1u64 << self.page_shift;
        let offset = start & (page - 1);
        at_least(What::Length, len, 1u8)?;
        let end = end(What::VirtAddr, offset, len)?;
        exactly(What::Npages, self.npages, end.div_ceil(page))?;
        Ok(offset)
    }

    /// Calls `each` with the DMA address of each page that holds some of the first `end` bytes, in
    /// order.
    ///
    /// # Errors
    ///
    /// Errors of `each`; a list that is too short or can't be read; a misaligned address; a page
    /// beyond the address space.
    pub(super) fn each_page(
        &self,
        space: &DmaSpace,
        end: u64,
        mut each: impl FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let page = 1u64 << self.page_shift;
        let count = end.div_ceil(page);
        at_least(What::Npages, self.npages, count)?;
        let mut batch = [0; PAGE_LIST_BLOCK];
        for index in 0..count.div_ceil(BATCH as u64) {
            let entries = (count - index * BATCH as u64).min(BATCH as u64) as usize;
            let bytes = &mut batch[..ENTRY * entries];
            // The view of the DMA map is held for one batch only, since a thread that changes the
            // map waits for the end of all views.
            let from = self.batch(space, index)?;
            virtqueue::read(&space.enter(), from, bytes).map_err(fault(What::Pages, from))?;
            for entry in bytes.chunks_exact(ENTRY) {
                let mut raw = [0; ENTRY];
                raw.copy_from_slice(entry);
                let iova = u64::from_le_bytes(raw);
                aligned(What::Page, iova, page)?;
                self::end(What::Page, iova, page)?;
                each(iova)?;
            }
        }
        Ok(())
    }

    /// The DMA address of batch `index`.
    fn batch(&self, space: &DmaSpace, index: u64) -> Result<u64> {
        match self.depth {
            // An object has at most 2³² pages, so the products do not overflow.
            PageListDepth::Flat => end(What::Pages, self.iova, index * PAGE_LIST_BLOCK as u64),
            PageListDepth::TwoLevels => {
                let entry = end(What::Pages, self.iova, index * ENTRY as u64)?;
                let mut raw = [0; ENTRY];
                virtqueue::read(&space.enter(), entry, &mut raw)
                    .map_err(fault(What::Pages, entry))?;
                let block = u64::from_le_bytes(raw);
                aligned(What::Block, block, PAGE_LIST_BLOCK as u64)?;
                Ok(block)
            }
        }
    }
}

impl PageMap {
    /// The map of an object that is all of DMA space: offsets in it are DMA addresses.
    pub(crate) fn identity(budget: &MemoryBudget) -> Result<Self> {
        let mut extents = ChargedList::new(budget, 2);
        for at in [0, u64::MAX] {
            extents.push(Extent {
                start: at,
                iova: at,
            })?;
        }
        Ok(Self {
            extents,
            page_shift: 0,
        })
    }

    /// Whether this is all of DMA space.
    pub(crate) fn is_identity(&self) -> bool {
        self.page_shift == 0
    }

    /// Bytes of the longest map of `npages` pages.
    pub(crate) fn longest(npages: u32) -> u64 {
        (u64::from(npages) + 1) * size_of::<Extent>() as u64
    }

    /// Creates the map of an object whose page list is in guest memory. The object starts
    /// `first_offset` bytes into the first page and has `len` bytes. Pages after the object's end
    /// are ignored. The map is charged to `budget`.
    ///
    /// # Errors
    ///
    /// A list that is too short or can't be read, a misaligned address, or too little memory in the
    /// budget.
    pub(crate) fn read(
        budget: &MemoryBudget,
        space: &DmaSpace,
        list: PageList,
        first_offset: u64,
        len: u64,
    ) -> Result<Self> {
        let page = 1u64 << list.page_shift;
        let end = end(What::VirtAddr, first_offset, len)?;
        at_least(What::Length, len, 1u8)?;
        at_most(What::VirtAddr, first_offset, page - 1)?;
        // At most one extent for each page, and one that marks the end.
        let most = end.div_ceil(page) as usize + 1;
        let mut extents = ChargedList::new(budget, most);
        // Offset of the current page from the start of the first page.
        let mut at = 0;
        let mut next_iova = None;
        list.each_page(space, end, |iova| {
            if next_iova != Some(iova) {
                let skipped = if at == 0 { first_offset } else { 0 };
                extents.push(Extent {
                    start: (at + skipped) - first_offset,
                    iova: iova + skipped,
                })?;
            }
            next_iova = Some(iova + page);
            at += page;
            Ok(())
        })?;
        extents.push(Extent {
            start: len,
            iova: 0,
        })?;
        let len = extents.len();
        extents.fit(len);
        Ok(Self {
            extents,
            page_shift: list.page_shift,
        })
    }

    /// Checks that all of the object's memory can be read, and also written if `write` is true.
    pub(crate) fn reach(&self, space: &DmaSpace, write: bool) -> Result<()> {
        self.pieces()
            .try_for_each(|(iova, len)| reach(space, iova, len, write))
    }

    /// Bytes of a page.
    pub(crate) fn page(&self) -> u64 {
        1 << self.page_shift
    }

    /// Length of the object in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.extents[self.extents.len() - 1].start
    }

    /// The DMA address of the byte at `offset`, which must be inside the object, and the number of
    /// contiguous bytes of the object from there on. Sequential lookups are O(1): the extent after
    /// the last hit is tried first.
    #[inline]
    pub(crate) fn find(&self, offset: u64, cursor: &mut Cursor) -> (u64, u64) {
        debug_assert!(offset < self.len());
        let index = match self.extents.get(cursor.0) {
            Some(extent) if extent.start == offset => cursor.0,
            _ => self.search(offset),
        };
        cursor.0 = index + 1;
        match self.extents.get(index..index + 2) {
            Some([extent, next]) => (
                extent.iova + (offset - extent.start),
                next.start.saturating_sub(offset),
            ),
            // Outside of the object: an address at which no access succeeds.
            _ => (u64::MAX, 0),
        }
    }

    /// Index of the extent that contains `offset`, which must be inside the object.
    fn search(&self, offset: u64) -> usize {
        // Each page has one extent at most, so the extent's index is at most the page's.
        let lead = self.extents[0].iova & ((1 << self.page_shift) - 1);
        let page = usize::try_from((offset + lead) >> self.page_shift);
        let last = self.extents.len() - 2;
        let most = page.map_or(last, |page| page.min(last));
        if self.extents[most].start <= offset {
            return most;
        }
        let after = self.extents[..most].partition_point(|extent| extent.start <= offset);
        // No underflow: the first extent starts at 0.
        after - 1
    }

    /// The contiguous pieces of the object: DMA address and length of each.
    pub(crate) fn pieces(&self) -> Pieces<'_> {
        self.pieces_from(0)
    }

    /// The contiguous pieces of the object from `offset` on, which must be inside the object.
    #[inline]
    pub(crate) fn pieces_from(&self, offset: u64) -> Pieces<'_> {
        debug_assert!(offset < self.len());
        Pieces {
            extents: self.extents.get(self.search(offset)..).unwrap_or_default(),
            offset,
        }
    }
}

impl Iterator for Pieces<'_> {
    /// DMA address and length of a piece.
    type Item = (u64, u64);

    #[inline]
    fn next(&mut self) -> Option<(u64, u64)> {
        let [extent, next, ..] = self.extents else {
            return None;
        };
        let piece = (
            extent.iova + (self.offset - extent.start),
            next.start - self.offset,
        );
        self.offset = next.start;
        self.extents = &self.extents[1..];
        Some(piece)
    }
}

/// Checks that the `len` bytes at DMA address `iova` can be read, and also written if `write` is
/// true.
pub(super) fn reach(space: &DmaSpace, mut iova: u64, len: u64, write: bool) -> Result<()> {
    let view = space.enter();
    let mut rest = len as usize;
    while rest > 0 {
        let fault = fault(What::Address, iova);
        let now = view.contiguous(iova, rest).map_err(&fault)?;
        if write {
            view.slice_mut(iova, now).map_err(&fault)?;
        } else {
            view.slice(iova, now).map_err(&fault)?;
        }
        iova += now as u64;
        rest -= now;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use dma::DmaSpace;
    use virtio_rdma_abi::ctrl::Errno;

    use super::*;
    use crate::error::errno;
    use crate::memory::unlimited;

    impl PageMap {
        /// The map of all of DMA space, charged to a budget without limit.
        pub(crate) fn everything() -> Self {
            Self::identity(&unlimited()).unwrap()
        }
    }

    fn list(space: &DmaSpace, pages: &[u64], shift: u8) -> PageList {
        let view = space.enter();
        let slice = view.slice_mut(0, 8 * pages.len()).unwrap();
        for (index, page) in pages.iter().enumerate() {
            slice.write(8 * index, &page.to_le_bytes()).unwrap();
        }
        PageList {
            iova: 0,
            npages: pages.len() as u32,
            page_shift: shift,
            depth: PageListDepth::Flat,
        }
    }

    // abi: R-304
    #[test]
    fn contiguous_pages_are_one_extent() {
        let space = DmaSpace::anonymous(0, 1 << 20);
        let list = list(&space, &[0x8000, 0x9000, 0xa000, 0x4000, 0x5000], 12);
        let map = PageMap::read(&unlimited(), &space, list, 0x123, 0x4800).unwrap();
        assert_eq!(
            map.pieces().collect::<Vec<_>>(),
            [(0x8123, 0x2edd), (0x4000, 0x1923)]
        );
        // The result must not depend on the cursor.
        for from in 0..3 {
            let find = |offset| map.find(offset, &mut Cursor(from));
            assert_eq!(find(0), (0x8123, 0x2edd));
            assert_eq!(find(0x2edc), (0xafff, 1));
            assert_eq!(find(0x2edd), (0x4000, 0x1923));
            assert_eq!(find(0x47ff), (0x5922, 1));
        }
    }

    #[test]
    fn lists_longer_than_a_batch() {
        let space = DmaSpace::anonymous(0, 1 << 20);
        let pages: Vec<u64> = (0..1500).map(|n| (3000 - 2 * n) << 12).collect();
        let list = list(&space, &pages, 12);
        let map = PageMap::read(&unlimited(), &space, list, 0, 1500 << 12).unwrap();
        let mut cursor = Cursor::default();
        for (index, page) in pages.iter().enumerate() {
            let offset = ((index as u64) << 12) + 7;
            assert_eq!(map.find(offset, &mut cursor), (page + 7, 4089));
        }
    }

    #[test]
    fn a_map_costs_what_it_has_pieces() {
        let space = DmaSpace::anonymous(0, 1 << 20);
        let budget = MemoryBudget::new(PageMap::longest(1000));
        let apart: Vec<u64> = (0..1001).map(|n| (2 * n) << 12).collect();
        let read = |pages: &[u64]| {
            let list = list(&space, pages, 12);
            PageMap::read(&budget, &space, list, 0, (pages.len() as u64) << 12)
        };
        let map = read(&apart[..1000]).unwrap();
        assert_eq!(budget.used(), budget.limit());
        drop(map);
        assert_eq!(errno(read(&apart)).err(), Some(Errno::Enomem));
        assert_eq!(budget.used(), 0);
        let together: Vec<u64> = (0..5000).map(|n| n << 12).collect();
        let map = read(&together).unwrap();
        assert_eq!(budget.used(), PageMap::longest(1));
        drop(map);
    }

    #[test]
    fn bad_lists() {
        let space = DmaSpace::anonymous(0, 1 << 20);
        let good = list(&space, &[0x8000, 0x9001], 12);
        let read =
            |list, offset, len| errno(PageMap::read(&unlimited(), &space, list, offset, len)).err();
        assert_eq!(read(good, 0, 0x1000), None, "the second page is not needed");
        // abi
        assert_eq!(
            read(good, 0, 0x1001),
            Some(Errno::Einval),
            "misaligned page"
        );
        // abi: R-312
        assert_eq!(read(good, 0, 0x2001), Some(Errno::Einval), "too short");
        assert_eq!(
            read(good, 0x1000, 1),
            Some(Errno::Einval),
            "offset beyond the page"
        );
        assert_eq!(read(good, 0, 0), Some(Errno::Einval), "empty");
        assert_eq!(read(good, 1, u64::MAX), Some(Errno::Einval), "wraps");
        let unmapped = PageList {
            iova: 1 << 40,
            ..good
        };
        // abi
        assert_eq!(read(unmapped, 0, 1), Some(Errno::Efault));
        let last = list(&space, &[!0xfff], 12);
        assert_eq!(
            read(last, 0, 1),
            Some(Errno::Einval),
            "ends beyond the address space"
        );
    }

    // abi
    #[test]
    fn lists_of_two_levels() {
        let space = DmaSpace::anonymous(0, 1 << 20);
        let pages: Vec<u64> = (0..1100).map(|n| (3000 - 2 * n) << 12).collect();
        // The blocks are out of order, and the directory follows them.
        let blocks = [0x8000u64, 0x2000, 0x5000];
        let view = space.enter();
        let write = |at, value: u64| {
            let slice = view.slice_mut(at, 8).unwrap();
            slice.write(0, &value.to_le_bytes()).unwrap();
        };
        for (index, page) in pages.iter().enumerate() {
            write(blocks[index / BATCH] + 8 * (index % BATCH) as u64, *page);
        }
        for (index, block) in blocks.iter().enumerate() {
            write(0x9ff8 + 8 * index as u64, *block);
        }
        let list = PageList {
            iova: 0x9ff8,
            npages: 1100,
            page_shift: 12,
            depth: PageListDepth::TwoLevels,
        };
        let map = PageMap::read(&unlimited(), &space, list, 5, (1100 << 12) - 5).unwrap();
        let mut cursor = Cursor::default();
        for (index, page) in pages.iter().enumerate().skip(1) {
            let offset = ((index as u64) << 12) + 2;
            assert_eq!(map.find(offset, &mut cursor), (page + 7, 4089));
        }
        write(0xa000, 0x2008);
        assert_eq!(
            errno(PageMap::read(&unlimited(), &space, list, 0, 513 << 12)).err(),
            Some(Errno::Einval),
            "misaligned block"
        );
        write(0xa000, 1 << 40);
        assert_eq!(
            errno(PageMap::read(&unlimited(), &space, list, 0, 513 << 12)).err(),
            Some(Errno::Efault)
        );
        assert!(PageMap::read(&unlimited(), &space, list, 0, 512 << 12).is_ok());
    }

    // abi
    #[test]
    fn a_list_has_exactly_the_pages() {
        let fits = |npages, page_shift, start, len| {
            let list = PageList {
                iova: 0,
                npages,
                page_shift,
                depth: PageListDepth::Flat,
            };
            errno(list.fits(start, len))
        };
        assert_eq!(fits(2, 12, 0x7fff, 2), Ok(0xfff));
        assert_eq!(fits(1, 12, 0x7fff, 2), Err(Errno::Einval));
        assert_eq!(fits(3, 12, 0x7fff, 2), Err(Errno::Einval));
        assert_eq!(fits(1, 13, 0x6fff, 2), Ok(0xfff));
        assert_eq!(fits(1, 12, 0, 0), Err(Errno::Einval));
        assert_eq!(fits(1, 12, 1, u64::MAX), Err(Errno::Einval));
        assert_eq!(fits(1, 30, 1 << 29, 1 << 29), Ok(1 << 29));
    }

    // abi: R-317
    #[test]
    fn reach() {
        let space = DmaSpace::anonymous(0x10000, 0x4000);
        let map = |pages: &[u64]| {
            let mut extents = ChargedList::new(&unlimited(), pages.len() + 1);
            for (n, page) in pages.iter().chain(&[0]).enumerate() {
                let start = (n as u64) << 12;
                extents.push(Extent { start, iova: *page }).unwrap();
            }
            PageMap {
                extents,
                page_shift: 12,
            }
        };
        assert_eq!(map(&[0x10000, 0x13000]).reach(&space, true), Ok(()));
        assert_eq!(
            errno(map(&[0x13000, 0x14000]).reach(&space, false)),
            Err(Errno::Efault)
        );
        assert_eq!(
            errno(map(&[0xf000]).reach(&space, false)),
            Err(Errno::Efault)
        );
    }
}
