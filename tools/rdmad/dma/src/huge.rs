// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The request for huge pages in files whose pages are small.
//!
//! The kernel maps a file on tmpfs, which a memfd is too, by huge pages if the host permits it
//! (`shmem_enabled`). With the setting `advise`, it does so in mappings for which a process has
//! asked. It also chooses an address for them that suits huge pages.
#![allow(unsafe_code)]

use rustix::mm::Advice;
use vm_memory::MmapRegion;

/// Length of the shortest mapping that can contain a huge page, in bytes.
const HUGE_PAGE: usize = 2 << 20;

/// Asks the kernel to use huge pages for `memory`, if it is long enough. A refusal has no effect: a
/// kernel without transparent huge pages knows no such request.
pub(crate) fn ask(memory: &MmapRegion) {
    if memory.size() < HUGE_PAGE {
        return;
    }
    // SAFETY: The address and the length are those of an existing mapping, which `memory` owns. The
    // advice changes the size of the pages behind the mapping, but not the bytes in it.
    let _ = unsafe {
        rustix::mm::madvise(memory.as_ptr().cast(), memory.size(), Advice::LinuxHugepage)
    };
}
