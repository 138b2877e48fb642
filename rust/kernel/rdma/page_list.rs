// SPDX-License-Identifier: GPL-2.0

//! Lists of DMA addresses that a device reads.
//!
//! Lists that are dropped after the driver was unbound from its device are leaked.
//!
//! C header: [`include/linux/dma-mapping.h`](srctree/include/linux/dma-mapping.h)

use super::{
    while_bound::WhileBound,
    Device,
    Driver, //
};
use crate::bindings;
use kernel::{
    dma::{
        Coherent,
        CoherentBox,
        DmaAddress, //
    },
    page::PAGE_SIZE,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// DMA addresses of pages, each a little-endian 64-bit word, in contiguous memory.
///
/// # Examples
///
/// ```
/// use crate::rdma::{page_list::PageList, Device, Driver};
/// use kernel::dma::DmaAddress;
///
/// /// The list of two pages, for a command that refers to it.
/// fn describe<T: Driver>(device: &Device<T>, pages: [DmaAddress; 2]) -> Result<PageList> {
///     PageList::new(device, pages.len(), pages.into_iter())
/// }
/// ```
pub struct PageList(WhileBound<Coherent<[u64]>>);

impl PageList {
    /// Maximum number of addresses: as many as fit into 4 MiB, the largest contiguous piece of
    /// memory that the page allocator provides.
    pub const MAX_PAGES: usize = (4 << 20) / size_of::<u64>();

    /// Number of addresses in one page. A longer list needs several contiguous pages. If memory is
    /// fragmented, the page allocator may kill processes to make pieces of up to 8 pages.
    pub const EASY_PAGES: usize = PAGE_SIZE / size_of::<u64>();

    /// Copies `count` addresses out of `pages`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `count` is 0 or `pages` has fewer addresses, `E2BIG` beyond
    /// [`MAX_PAGES`](Self::MAX_PAGES), `ENOMEM` without enough contiguous memory.
    pub fn new<T: Driver>(
        device: &Device<T>,
        count: usize,
        mut pages: impl Iterator<Item = DmaAddress>,
    ) -> Result<Self> {
        if count == 0 {
            return Err(EINVAL);
        }
        if count > Self::MAX_PAGES {
            return Err(E2BIG);
        }
        let dma_device = device.dma_device();
        let mut list =
            CoherentBox::<[u64]>::zeroed_slice(dma_device, count, GFP_KERNEL | __GFP_NOWARN)?;
        for entry in list.iter_mut() {
            *entry = pages.next().ok_or(EINVAL)?.to_le();
        }
        Ok(Self(WhileBound::new(device, list.into())))
    }

    /// DMA address of the list.
    pub fn dma_address(&self) -> DmaAddress {
        self.0.dma_address()
    }

    /// DMA addresses of the list's blocks of [`PageDirectory::BLOCK`] bytes.
    fn blocks(&self) -> impl Iterator<Item = DmaAddress> + Clone + '_ {
        let start = self.dma_address();
        (0..self.0.size() as u64)
            .step_by(PageDirectory::BLOCK)
            .map(move |offset| start + offset)
    }
}

/// DMA addresses of pages in two levels. A directory, which is a [`PageList`], contains the
/// addresses of blocks of [`BLOCK`](Self::BLOCK) bytes. The blocks contain the addresses of the
/// pages; all blocks but the last are full. So no large piece of contiguous memory is needed.
///
/// # Examples
///
/// ```
/// use crate::rdma::{page_list::PageDirectory, umem::Umem, Device, Driver};
///
/// /// Lists pinned memory, however long it is.
/// fn list<T: Driver>(device: &Device<T>, umem: &Umem, page_shift: u8) -> Result<PageDirectory> {
///     PageDirectory::new(device, umem.page_count(page_shift)?, umem.pages(page_shift)?)
/// }
/// ```
pub struct PageDirectory {
    directory: PageList,
    _blocks: KVVec<PageList>,
}

impl PageDirectory {
    /// Size and alignment of a block in bytes.
    pub const BLOCK: usize = 4096;

    /// Copies `count` addresses out of `pages`. May sleep.
    ///
    /// # Errors
    ///
    /// Errors of [`PageList::new`]; `E2BIG` if the directory would be too large.
    pub fn new<T: Driver>(
        device: &Device<T>,
        count: usize,
        mut pages: impl Iterator<Item = DmaAddress>,
    ) -> Result<Self> {
        // Coherent memory is aligned to the kernel's pages, so each piece consists of whole blocks.
        const { assert!(PAGE_SIZE % Self::BLOCK == 0) };

        let lists = count.div_ceil(PageList::EASY_PAGES);
        let mut blocks = KVVec::with_capacity(lists, GFP_KERNEL)?;
        let mut left = count;
        while left > 0 {
            // A list for terabytes has thousands of blocks. A kernel without preemption must
            // schedule other tasks in between.
            //
            // SAFETY: This context may sleep.
            unsafe { bindings::cond_resched() };
            let now = left.min(PageList::EASY_PAGES);
            blocks.push(
                PageList::new(device, now, pages.by_ref().take(now))?,
                GFP_KERNEL,
            )?;
            left -= now;
        }
        let addresses = blocks.iter().flat_map(PageList::blocks);
        let directory = PageList::new(device, addresses.clone().count(), addresses)?;
        Ok(Self {
            directory,
            _blocks: blocks,
        })
    }

    /// DMA address of the directory.
    pub fn dma_address(&self) -> DmaAddress {
        self.directory.dma_address()
    }
}

/// The page list of an MR for fast registration. It is filled in contexts that can't sleep.
///
/// The client must not fill it from two threads at a time, nor while the device reads it. Otherwise
/// the list contains a mix of pages.
///
/// # Invariants
///
/// The memory is accessed by atomic operations only.
pub struct MappedPages {
    list: WhileBound<Coherent<[u64]>>,
    count: Atomic<u32>,
}

impl MappedPages {
    /// Maximum number of addresses: as many as fit into 8 contiguous pages, which the page
    /// allocator provides even if memory is fragmented (`PAGE_ALLOC_COSTLY_ORDER`).
    pub const MAX_PAGES: usize = 8 * PAGE_SIZE / size_of::<u64>();

    /// An empty list for up to `max_pages` addresses.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `max_pages` is 0, `E2BIG` beyond [`MAX_PAGES`](Self::MAX_PAGES), `ENOMEM`.
    pub fn new<T: Driver>(device: &Device<T>, max_pages: u32) -> Result<Self> {
        let max_pages = usize::try_from(max_pages)?;
        if max_pages == 0 {
            return Err(EINVAL);
        }
        if max_pages > Self::MAX_PAGES {
            return Err(E2BIG);
        }
        let list = Coherent::zeroed_slice(device.dma_device(), max_pages, GFP_KERNEL)?;
        // INVARIANT: The memory has not been accessed yet.
        Ok(Self {
            list: WhileBound::new(device, list),
            count: Atomic::new(0),
        })
    }

    /// DMA address of the list.
    pub fn dma_address(&self) -> DmaAddress {
        self.list.dma_address()
    }

    /// Number of addresses.
    pub fn count(&self) -> u32 {
        self.count.load(Relaxed)
    }

    /// Removes all addresses.
    pub(super) fn clear(&self) {
        self.count.store(0, Relaxed);
    }

    /// Appends an address; `ENOMEM` if the list is full.
    pub(super) fn push(&self, address: DmaAddress) -> Result {
        let count = self.count();
        let index = usize::try_from(count)?;
        if index >= self.list.len() {
            return Err(ENOMEM);
        }
        // SAFETY: The index is within the allocation, which is aligned; by the type invariants
        // accesses are atomic.
        let entry = unsafe { Atomic::from_ptr(self.list.as_mut_ptr().cast::<u64>().add(index)) };
        entry.store(address.to_le(), Relaxed);
        self.count.store(count + 1, Relaxed);
        Ok(())
    }
}
