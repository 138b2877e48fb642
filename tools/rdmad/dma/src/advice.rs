// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Advice to the kernel about mappings of guest memory. A refusal has no effect.
//!
//! The kernel maps a file on tmpfs, which a memfd is too, by huge pages if the host permits it
//! (`shmem_enabled`). With the setting `advise`, it does so in mappings for which a process has
//! asked. It also chooses an address for them that suits huge pages.
//!
//! A core dump would contain the memory of all VMs, so guest memory is left out.
#![allow(unsafe_code)]

use std::ffi::c_void;

use rustix::mm::{madvise, Advice};
use vm_memory::MmapRegion;

/// Length of the shortest mapping that can contain a huge page, in bytes.
const HUGE_PAGE: usize = 2 << 20;

/// Asks the kernel to use huge pages for `memory`, if it is long enough. A kernel without
/// transparent huge pages refuses.
pub(crate) fn use_huge_pages(memory: &MmapRegion) {
    if memory.size() >= HUGE_PAGE {
        // SAFETY: The address and the length are those of an existing mapping, which `memory` owns.
        // The advice changes the size of the pages behind the mapping, but not the bytes in it.
        let _ = unsafe { madvise(memory.as_ptr().cast(), memory.size(), Advice::LinuxHugepage) };
    }
}

/// Removes the page tables for `len` bytes of `memory` from the byte `at` on. The bytes stay in the
/// file. `at` and `len` are multiples of the page size.
pub(crate) fn remove_page_tables(memory: &MmapRegion, at: usize, len: usize) {
    assert!(at.checked_add(len).is_some_and(|end| end <= memory.size()));
    // SAFETY: The range lies inside of an existing mapping, which `memory` owns. Guest memory is
    // accessed only as volatile memory, for which any content is valid.
    let _ = unsafe { madvise(memory.as_ptr().add(at).cast(), len, Advice::LinuxDontNeed) };
}

/// Leaves `memory` out of core dumps.
pub(crate) fn keep_out_of_dumps(memory: &MmapRegion) {
    // SAFETY: The address and the length are those of an existing mapping, which `memory` owns.
    unsafe { keep_range_out_of_dumps(memory.as_ptr().cast(), memory.size()) };
}

/// Leaves `len` bytes at `start` out of core dumps. May be called by a signal handler.
///
/// # Safety
///
/// The range is a mapping that the caller owns.
pub(crate) unsafe fn keep_range_out_of_dumps(start: *mut c_void, len: usize) {
    // SAFETY: The caller owns the mapping. The advice does not change its content.
    let _ = unsafe { madvise(start, len, Advice::LinuxDontDump) };
}
