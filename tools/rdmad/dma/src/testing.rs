// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Stand-ins for VM memory, for tests.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags};

use crate::{DmaSpace, DmaView, PAGE_SIZE};

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

/// Maximum length of [`UNMAPPED`].
const MAX_UNMAPPED: usize = 1 << 12;
/// The regions that were unmapped last, each with the thread that did it.
static UNMAPPED: Mutex<VecDeque<(u64, ThreadId)>> = Mutex::new(VecDeque::new());

/// Records that this thread unmaps the region at DMA address `iova`.
pub(crate) fn note_unmapping(iova: u64) {
    let mut unmapped = UNMAPPED.lock();
    if unmapped.len() == MAX_UNMAPPED {
        unmapped.pop_front();
    }
    unmapped.push_back((iova, thread::current().id()));
}

/// The threads that have unmapped a region at DMA address `iova`, of any VM of this process.
pub fn unmapped_by(iova: u64) -> Vec<ThreadId> {
    let unmapped = UNMAPPED.lock();
    let here = unmapped.iter().filter(|(at, _)| *at == iova);
    here.map(|(_, thread)| *thread).collect()
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

    /// Number of lost pages that spare pages have replaced one by one.
    pub fn spare_pages(&self) -> usize {
        let snapshot = self.current.load();
        snapshot
            .regions
            .iter()
            .map(|region| region.spare_pages())
            .sum()
    }

    /// Number of bytes that this process has allocated in the regions, and in unmapped files and
    /// parts of files.
    pub fn filled(&self) -> (u64, u64) {
        let left_behind = &mut self.change.lock().left_behind;
        let regions = &self.current.load().regions;
        let filled = regions.iter().map(|region| region.filled()).sum();
        let left = left_behind.bytes(Instant::now(), self.mapped().1, regions);
        (filled, left)
    }

    /// Charges the VM as if a change of its mappings had taken this time. Returns the time from
    /// which on it may map memory.
    pub fn charge_change(&self, took: Duration) -> Option<Instant> {
        let pace = &mut self.change.lock().pace;
        let now = Instant::now();
        pace.charge(now, took);
        pace.pause(now).map(|pause| now + pause)
    }

    /// Number of changes of the mappings of this process that the VM has caused.
    pub fn changes(&self) -> usize {
        self.change.lock().pace.changes
    }
}

impl DmaView {
    /// A number that differs between the maps that exist at the same time.
    pub fn generation(&self) -> usize {
        Arc::as_ptr(&self.snapshot).addr()
    }
}
