// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counting of the pages that this process allocates in the memory files of VMs.
//!
//! The kernel charges a page of a file in memory to the process that accesses the page first. A
//! monitor can pass a file without pages and make its guest use the file for RDMA only. Then this
//! process pays for the VM, and the limits of the VM's own control group don't count.
//!
//! If mappings are registered with a userfaultfd, an access to a page that the file does not have
//! raises SIGBUS instead of allocating the page. The handler allocates the page and counts it.
//! Accesses to pages that exist cost nothing.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::ioctl::{ioctl, opcode, Opcode, Updater};
use rustix::mm::{userfaultfd, UserfaultfdFlags};
use vm_memory::MmapRegion;

use crate::PAGE_SIZE;

// C header: linux/userfaultfd.h
const UFFD_USER_MODE_ONLY: u32 = 1;
const UFFD_API: u64 = 0xaa;
const UFFD_FEATURE_MISSING_HUGETLBFS: u64 = 1 << 4;
const UFFD_FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const UFFD_FEATURE_SIGBUS: u64 = 1 << 7;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_zeropage`.
#[repr(C)]
struct ZeroPage {
    start: u64,
    len: u64,
    mode: u64,
    done: i64,
}

/// `struct uffdio_copy`.
#[repr(C)]
struct Copy {
    target: u64,
    source: u64,
    len: u64,
    mode: u64,
    done: i64,
}

const UFFDIO_API: Opcode = opcode::read_write::<Api>(0xaa, 0x3f);
const UFFDIO_REGISTER: Opcode = opcode::read_write::<Register>(0xaa, 0);
const UFFDIO_COPY: Opcode = opcode::read_write::<Copy>(0xaa, 3);
const UFFDIO_ZEROPAGE: Opcode = opcode::read_write::<ZeroPage>(0xaa, 4);

/// The userfaultfd of this process, if pages are counted.
static COUNTER: OnceLock<OwnedFd> = OnceLock::new();

/// Counts the pages that this process allocates in memory files that it maps from now on.
///
/// # Errors
///
/// The kernel has no userfaultfd with `UFFD_FEATURE_SIGBUS`, or this process may not use it. Then
/// no pages are counted.
pub fn count_filled_pages() -> io::Result<()> {
    if COUNTER.get().is_some() {
        return Ok(());
    }
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(UFFD_USER_MODE_ONLY);
    // SAFETY: The descriptor is used only for mappings of guest memory, whose content may change at
    // any time.
    let fd = unsafe { userfaultfd(flags)? };
    let features =
        UFFD_FEATURE_SIGBUS | UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MISSING_HUGETLBFS;
    let mut api = Api {
        api: UFFD_API,
        features,
        ioctls: 0,
    };
    // SAFETY: The opcode and the structure belong together.
    unsafe { ioctl(&fd, Updater::<UFFDIO_API, _>::new(&mut api))? };
    // Fails if another thread has set a descriptor in the meantime, which is then used.
    let _ = COUNTER.set(fd);
    Ok(())
}

/// Whether the pages that this process allocates in a mapping are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// No pages are counted in this process.
    Off,
    /// [`fill`] counts them.
    Pages,
    /// The kernel refuses to report missing pages, for example since the file is read-only.
    Refused,
}

/// Begins to count the pages of a new mapping.
pub(crate) fn begin(memory: &MmapRegion) -> Counting {
    let Some(fd) = COUNTER.get() else {
        return Counting::Off;
    };
    let mut register = Register {
        start: memory.as_ptr() as u64,
        len: memory.size() as u64,
        mode: UFFDIO_REGISTER_MODE_MISSING,
        ioctls: 0,
    };
    // SAFETY: The opcode and the structure belong together. The range is an existing mapping, which
    // `memory` owns. An access to a missing page now raises SIGBUS, which the handler handles.
    match unsafe { ioctl(fd, Updater::<UFFDIO_REGISTER, _>::new(&mut register)) } {
        Ok(()) => Counting::Pages,
        Err(_) => Counting::Refused,
    }
}

/// Result of [`fill`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// The page was allocated.
    New,
    /// The page exists, or the access has to be repeated.
    Present,
    /// The kernel can't provide the page.
    Missing,
}

/// Allocates the missing page of `len` bytes at `page`, in a mapping whose pages are counted.
/// `zeroes` are as many zero bytes. Called by the signal handler, so `errno` must not change:
/// `rustix` does not use it.
pub(crate) fn fill(page: usize, len: usize, zeroes: *const c_void) -> Filled {
    let Some(fd) = COUNTER.get() else {
        return Filled::Missing;
    };
    let (start, len) = (page as u64, len as u64);
    let filled = if len == PAGE_SIZE {
        let mut zero = ZeroPage {
            start,
            len,
            mode: 0,
            done: 0,
        };
        // SAFETY: The opcode and the structure belong together. The kernel allocates a page only
        // where none exists, so no data is overwritten.
        unsafe { ioctl(fd, Updater::<UFFDIO_ZEROPAGE, _>::new(&mut zero)) }
    } else {
        // The kernel has no UFFDIO_ZEROPAGE for hugetlbfs.
        let mut copy = Copy {
            target: start,
            source: zeroes as u64,
            len,
            mode: 0,
            done: 0,
        };
        // SAFETY: As above. `zeroes` is only read.
        unsafe { ioctl(fd, Updater::<UFFDIO_COPY, _>::new(&mut copy)) }
    };
    match filled {
        Ok(()) => Filled::New,
        // Another process or thread was faster, or the mappings are being changed.
        Err(Errno::EXIST | Errno::AGAIN | Errno::INTR) => Filled::Present,
        Err(_) => Filled::Missing,
    }
}
