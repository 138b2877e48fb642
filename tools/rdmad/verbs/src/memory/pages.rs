// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Objects in guest memory that consist of pages.

use dma::{DmaSpace, DmaView};

use crate::error::{fault, require, Errno, Result};

/// Entries of a page list that are copied at a time.
const BATCH: usize = 512;

/// Which DMA addresses the bytes of an object have.
///
/// Pages that follow each other in DMA space are one extent, so what a guest allocates contiguously is found at once,
/// and the rest by binary search.
#[derive(Debug)]
pub(crate) struct PageMap {
    /// Sorted by start; the first starts at 0.
    extents: Box<[Extent]>,
    len: u64,
}

#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Offset in the object.
    start: u64,
    /// DMA address of that byte.
    iova: u64,
}

/// A page list in guest memory, as a command names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageList {
    /// DMA address of `npages` le64.
    pub iova: u64,
    /// Number of pages.
    pub npages: u32,
    /// Pages have `1 << page_shift` bytes.
    pub page_shift: u8,
}

impl PageMap {
    /// All of DMA space: offsets are DMA addresses.
    pub(crate) fn identity() -> Self {
        Self {
            extents: Box::new([Extent { start: 0, iova: 0 }]),
            len: u64::MAX,
        }
    }

    /// Copies a page list from guest memory. The object starts `first_offset` bytes into the first page, has `len` bytes
    /// and must fit into the pages; pages behind it are not looked at.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a list that is too short or an address that is not a page's, `EFAULT` for a list that can't be read.
    pub(crate) fn read(
        space: &DmaSpace,
        list: PageList,
        first_offset: u64,
        len: u64,
    ) -> Result<Self> {
        let page = 1u64 << list.page_shift;
        let end = first_offset.checked_add(len).ok_or(Errno::INVAL)?;
        require(len > 0 && first_offset < page && end.div_ceil(page) <= u64::from(list.npages))?;
        let mut extents: Vec<Extent> = Vec::new();
        // Offset of the current page, counted from the start of the first one.
        let mut at = 0;
        let mut next_iova = None;
        let mut batch = [0; 8 * BATCH];
        let mut list_iova = list.iova;
        while at < end {
            let entries = (end - at).div_ceil(page).min(BATCH as u64) as usize;
            let bytes = &mut batch[..8 * entries];
            // The map is pinned for one batch only: whoever changes it waits for us.
            read_across(&space.enter(), list_iova, bytes)?;
            list_iova = list_iova
                .checked_add(bytes.len() as u64)
                .ok_or(Errno::INVAL)?;
            for entry in bytes.chunks_exact(8) {
                let mut raw = [0; 8];
                raw.copy_from_slice(entry);
                let iova = u64::from_le_bytes(raw);
                require(iova & (page - 1) == 0)?;
                if next_iova != Some(iova) {
                    let skipped = if at == 0 { first_offset } else { 0 };
                    extents.push(Extent {
                        start: (at + skipped) - first_offset,
                        iova: iova + skipped,
                    });
                }
                next_iova = Some(iova.checked_add(page).ok_or(Errno::INVAL)?);
                at += page;
            }
        }
        Ok(Self {
            extents: extents.into_boxed_slice(),
            len,
        })
    }

    /// Length of the object in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The DMA address of the byte at `offset`, which is inside the object, and how many bytes of the object follow it
    /// without a gap.
    #[inline]
    pub(crate) fn find(&self, offset: u64) -> (u64, u64) {
        debug_assert!(offset < self.len);
        let after = match self.extents.len() {
            1 => 1,
            _ => self
                .extents
                .partition_point(|extent| extent.start <= offset),
        };
        let extent = self.extents[after - 1];
        let end = self.extents.get(after).map_or(self.len, |next| next.start);
        (extent.iova + (offset - extent.start), end - offset)
    }

    /// The pieces of the whole object: DMA address and length.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.extents.iter().enumerate().map(|(index, extent)| {
            let end = self
                .extents
                .get(index + 1)
                .map_or(self.len, |next| next.start);
            (extent.iova, end - extent.start)
        })
    }
}

/// Fills `out` from DMA addresses that may cross regions.
fn read_across(view: &DmaView, mut iova: u64, mut out: &mut [u8]) -> Result<()> {
    while !out.is_empty() {
        let len = view.contiguous(iova, out.len()).map_err(fault)?;
        let (now, later) = out.split_at_mut(len);
        view.slice(iova, len)
            .and_then(|slice| slice.read(0, now))
            .map_err(fault)?;
        iova = iova.checked_add(len as u64).ok_or(Errno::FAULT)?;
        out = later;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use dma::DmaSpace;

    use super::*;

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
        }
    }

    #[test]
    fn contiguous_pages_are_one_extent() {
        let space = DmaSpace::anonymous(0, 1 << 20);
        let list = list(&space, &[0x8000, 0x9000, 0xa000, 0x4000, 0x5000], 12);
        let map = PageMap::read(&space, list, 0x123, 0x4800).unwrap();
        assert_eq!(
            map.pieces().collect::<Vec<_>>(),
            [(0x8123, 0x2edd), (0x4000, 0x1923)]
        );
        assert_eq!(map.find(0), (0x8123, 0x2edd));
        assert_eq!(map.find(0x2edc), (0xafff, 1));
        assert_eq!(map.find(0x2edd), (0x4000, 0x1923));
        assert_eq!(map.find(0x47ff), (0x5922, 1));
    }

    #[test]
    fn lists_longer_than_a_batch() {
        let space = DmaSpace::anonymous(0, 1 << 20);
        let pages: Vec<u64> = (0..1500).map(|n| (3000 - 2 * n) << 12).collect();
        let list = list(&space, &pages, 12);
        let map = PageMap::read(&space, list, 0, 1500 << 12).unwrap();
        for (index, page) in pages.iter().enumerate() {
            assert_eq!(map.find(((index as u64) << 12) + 7), (page + 7, 4089));
        }
    }

    #[test]
    fn bad_lists() {
        let space = DmaSpace::anonymous(0, 1 << 20);
        let good = list(&space, &[0x8000, 0x9001], 12);
        let read = |list, offset, len| PageMap::read(&space, list, offset, len).err();
        assert_eq!(read(good, 0, 0x1000), None, "the second page is not needed");
        assert_eq!(read(good, 0, 0x1001), Some(Errno::INVAL), "misaligned page");
        assert_eq!(read(good, 0, 0x2001), Some(Errno::INVAL), "too short");
        assert_eq!(
            read(good, 0x1000, 1),
            Some(Errno::INVAL),
            "offset beyond the page"
        );
        assert_eq!(read(good, 0, 0), Some(Errno::INVAL), "empty");
        assert_eq!(read(good, 1, u64::MAX), Some(Errno::INVAL), "wraps");
        let unmapped = PageList {
            iova: 1 << 40,
            ..good
        };
        assert_eq!(read(unmapped, 0, 1), Some(Errno::FAULT));
        let last = list(&space, &[!0xfff], 12);
        assert_eq!(
            read(last, 0, 1),
            Some(Errno::INVAL),
            "ends beyond the address space"
        );
    }
}
