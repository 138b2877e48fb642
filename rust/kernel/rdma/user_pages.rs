// SPDX-License-Identifier: GPL-2.0

//! Pages of the kernel that a process maps.
//!
//! C header: [`include/linux/mm.h`](srctree/include/linux/mm.h)

use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    bits::bit_u32,
    mm::virt::VmaNew,
    page::{
        BorrowedPage,
        PAGE_SIZE, //
    },
    prelude::*, //
};

/// Order of the longest run of pages that is requested: the order of a huge page.
const MAX_ORDER: u32 = 9;

/// Flags for pages that are zeroed and charged to the memory cgroup of the current task. The
/// allocator logs no failures: the caller reports them.
///
/// Lists of pages are not charged: at the limit of the cgroup, a small charged allocation could get
/// a process killed.
const FLAGS: u32 =
    bindings::GFP_KERNEL_ACCOUNT | bindings::__GFP_ZERO | bit_u32(bindings::___GFP_NOWARN_BIT);

/// A long run is an optimization, so the allocator does not try hard.
const RUN_FLAGS: u32 = FLAGS | bit_u32(bindings::___GFP_NORETRY_BIT);

/// For a single page the allocator tries everything except killing a process: the memory is for one
/// process only, and this process can handle an error.
const PAGE_FLAGS: u32 = FLAGS | bit_u32(bindings::___GFP_RETRY_MAYFAIL_BIT);

/// A run of contiguous pages.
pub(super) struct Run {
    /// Index of the run's first page.
    pub(super) first: usize,
    /// Order of the allocation: the run has 2^`order` pages.
    pub(super) order: u32,
}

/// Pages that processes may map. The kernel does not access them.
///
/// Each mapping has its own references to the pages, so this list may be dropped while processes
/// map them.
///
/// # Invariants
///
/// Each element is a separate page of order 0, and `self` owns a reference to it.
pub(super) struct UserPages(KVVec<NonNull<bindings::page>>);

impl UserPages {
    /// Allocates `count` pages, in runs as long as the allocator provides. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM` beyond the limit of the memory cgroup, and when memory is short. No process is
    /// killed to make room. `EINTR` if the current task is about to be killed.
    pub(super) fn new(count: usize) -> Result<(Self, KVVec<Run>)> {
        let mut pages = Self(KVVec::with_capacity(count, GFP_KERNEL)?);
        let mut runs = KVVec::new();
        let mut order = MAX_ORDER;
        while let Some(left @ 1..) = count.checked_sub(pages.0.len()) {
            // SAFETY: This may sleep.
            unsafe { bindings::cond_resched() };
            // SAFETY: The function only reads the state of the current task.
            if unsafe { bindings::current_is_dying() } {
                return Err(EINTR);
            }
            order = order.min(left.ilog2());
            let run = Run {
                first: pages.0.len(),
                order,
            };
            if pages.add(order)? {
                runs.push(run, GFP_KERNEL)?;
            } else {
                order = order.checked_sub(1).ok_or(ENOMEM)?;
            }
        }
        Ok((pages, runs))
    }

    /// Adds 2^`order` contiguous pages. Returns whether the allocator provided them.
    fn add(&mut self, order: u32) -> Result<bool> {
        let count = 1 << order;
        self.0.reserve(count, GFP_KERNEL)?;
        let flags = if order == 0 { PAGE_FLAGS } else { RUN_FLAGS };
        // SAFETY: This may sleep.
        let first = NonNull::new(unsafe { bindings::alloc_pages(flags, order) });
        let Some(first) = first else {
            return Ok(false);
        };
        if order != 0 {
            // SAFETY: Nothing else uses the allocation, and it is not a compound page.
            unsafe { bindings::split_page(first.as_ptr(), order) };
        }
        for index in 0..count {
            // SAFETY: The structures of pages that were allocated together are in one array.
            let page = unsafe { first.add(index) };
            // INVARIANT: Each page has one reference, from the allocation or from the split. The
            // vector has room.
            self.0.push(page, GFP_KERNEL)?;
        }
        Ok(true)
    }

    /// Number of pages.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The structure of page `index`.
    pub(super) fn get(&self, index: usize) -> Option<NonNull<bindings::page>> {
        self.0.get(index).copied()
    }

    /// Maps all pages into `vma`, readable and writable, never executable. Child processes don't
    /// inherit the mapping: the device could not tell their writes from writes of the parent.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an area of another length, or of other protection; the errors of
    /// `vm_insert_page()`.
    pub(super) fn map(&self, vma: &VmaNew) -> Result {
        let length = self.count().checked_mul(PAGE_SIZE).ok_or(EINVAL)?;
        if !vma.readable() || !vma.writable() || vma.end() - vma.start() != length {
            return Err(EINVAL);
        }
        vma.try_clear_mayexec()?;
        vma.set_dontcopy();
        vma.set_dontexpand();
        let area = vma.set_mixedmap();
        for (address, page) in (area.start()..area.end()).step_by(PAGE_SIZE).zip(&self.0) {
            // SAFETY: By the type invariants the page is valid as long as `self`.
            let page = unsafe { BorrowedPage::from_raw(*page) };
            area.vm_insert_page(address, &page)?;
        }
        Ok(())
    }
}

impl Drop for UserPages {
    fn drop(&mut self) {
        for page in &self.0 {
            // SAFETY: By the type invariants the reference is ours, and the page's order is 0. The
            // page is freed with its last reference.
            unsafe { bindings::__free_pages(page.as_ptr(), 0) };
        }
    }
}

// SAFETY: References to pages may be dropped by any thread.
unsafe impl Send for UserPages {}

// SAFETY: Shared references don't change the list, and pages may be mapped by any thread.
unsafe impl Sync for UserPages {}
