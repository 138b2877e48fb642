// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Stand-ins for VM memory, for tests.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags};

use crate::{DmaSpace, PAGE_SIZE};

/// A memfd of `len` bytes with these seals.
pub fn memfd(len: u64, seals: SealFlags) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, len)?;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    Ok(fd)
}

/// A memfd of `len` bytes that can't shrink.
pub fn guest_memory(len: u64) -> io::Result<OwnedFd> {
    memfd(len, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

/// A memfd of `len` bytes that can shrink while it is mapped.
pub fn shrinkable_memory(len: u64) -> io::Result<OwnedFd> {
    memfd(len, SealFlags::empty())
}

impl DmaSpace {
    /// A map with one region at `iova`: `len` zero bytes, rounded up to whole pages.
    pub fn anonymous(iova: u64, len: u64) -> Self {
        let space = Self::new();
        let len = len.next_multiple_of(PAGE_SIZE);
        let fd = guest_memory(len).expect("memfd");
        space.map(iova, fd, 0, len, true).expect("map");
        space
    }
}
