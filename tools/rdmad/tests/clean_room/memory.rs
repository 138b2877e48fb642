// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory of the guest: a file that the daemon maps too. Allocated pages are scattered: if the
//! device misreads a page list, it accesses wrong bytes.

use std::cell::Cell;
use std::fs::File;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use rustix::fs::ftruncate;
use rustix::fs::memfd_create;
use rustix::fs::MemfdFlags;
use vm_memory::AtomicAccess;
use vm_memory::Bytes;
use vm_memory::FileOffset;
use vm_memory::GuestAddress;
use vm_memory::GuestMemoryMmap;

/// Page size in bytes.
pub const PAGE: u64 = 4096;
/// DMA address of the first page. It differs from the page's offset in the file.
pub const BASE: u64 = 0x1_2340_0000;
/// Number of pages of the guest.
const PAGES: u64 = 1024;
/// Distance in pages between consecutively allocated pages, coprime to [`PAGES`].
const STRIDE: u64 = 389;

/// Offset of a flat page list in its page, in bytes.
const UNALIGNED: u64 = 0x35;

/// All memory of a guest.
pub struct Memory {
    pub file: File,
    mapped: GuestMemoryMmap,
    taken: Cell<u64>,
}

impl Memory {
    /// Length of all pages in bytes.
    pub const SIZE: u64 = PAGES * PAGE;

    pub fn new() -> Rc<Memory> {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, Self::SIZE).unwrap();
        let backing = FileOffset::new(file.try_clone().unwrap(), 0);
        let range = (GuestAddress(BASE), Self::SIZE as usize, Some(backing));
        let mapped = GuestMemoryMmap::from_ranges_with_files([range]).unwrap();
        let taken = Cell::new(0);
        Rc::new(Memory {
            file,
            mapped,
            taken,
        })
    }

    /// Allocates a page of zeroes, and returns its DMA address.
    pub fn page(&self) -> u64 {
        let number = self.taken.replace(self.taken.get() + 1);
        assert!(number < PAGES, "the guest has no more memory");
        BASE + number * STRIDE % PAGES * PAGE
    }

    pub fn write(&self, address: u64, bytes: &[u8]) {
        self.mapped
            .write_slice(bytes, GuestAddress(address))
            .unwrap();
    }

    pub fn read(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mapped
            .read_slice(&mut bytes, GuestAddress(address))
            .unwrap();
        bytes
    }

    /// Loads a word atomically, with acquire order.
    pub fn load<T: AtomicAccess>(&self, address: u64) -> T {
        let at = GuestAddress(address);
        self.mapped.load(at, Ordering::Acquire).unwrap()
    }

    /// Stores a word atomically, with release order.
    pub fn store<T: AtomicAccess>(&self, address: u64, word: T) {
        let at = GuestAddress(address);
        self.mapped.store(word, at, Ordering::Release).unwrap();
    }
}

/// A range of bytes in scattered pages.
pub struct Extent {
    pub memory: Rc<Memory>,
    pub pages: Vec<u64>,
}

impl Extent {
    /// Allocates an extent of at least `len` bytes.
    pub fn new(memory: &Rc<Memory>, len: u64) -> Extent {
        let pages = (0..len.div_ceil(PAGE)).map(|_| memory.page()).collect();
        let memory = Rc::clone(memory);
        Extent { memory, pages }
    }

    /// DMA address of the byte at `offset`.
    pub fn at(&self, offset: u64) -> u64 {
        self.pages[(offset / PAGE) as usize] + offset % PAGE
    }

    pub fn write(&self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let len = bytes.len().min((PAGE - offset % PAGE) as usize);
            self.memory.write(self.at(offset), &bytes[..len]);
            (offset, bytes) = (offset + len as u64, &bytes[len..]);
        }
    }

    pub fn read(&self, mut offset: u64, len: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let end = offset + len;
        while offset < end {
            let len = (end - offset).min(PAGE - offset % PAGE);
            bytes.extend(self.memory.read(self.at(offset), len as usize));
            offset += len;
        }
        bytes
    }

    /// Writes a page list of the extent. With `depth` 0 the list is flat; with `depth` 1 it is a
    /// directory with one block.
    pub fn list(&self, depth: u8) -> PageList {
        // abi: R-1149
        let list = self.memory.page() + if depth == 0 { UNALIGNED } else { 0 };
        // abi: R-309
        for (at, page) in (list..).step_by(8).zip(&self.pages) {
            self.memory.write(at, &page.to_le_bytes());
        }
        let memory = Rc::clone(&self.memory);
        let mut pages = vec![list];
        if depth == 1 {
            // abi: R-310
            let directory = memory.page() + UNALIGNED;
            memory.write(directory, &list.to_le_bytes());
            pages.insert(0, directory);
        }
        PageList { memory, pages }
    }
}

/// A page list. It must live until the command that refers to it is answered.
pub struct PageList {
    memory: Rc<Memory>,
    pages: Vec<u64>,
}

impl PageList {
    /// DMA address of the list, or of its directory.
    pub fn address(&self) -> u64 {
        self.pages[0]
    }
}

impl Drop for PageList {
    /// Overwrites the list, so that a device which reads it later finds invalid addresses.
    fn drop(&mut self) {
        // abi
        for page in &self.pages {
            let len = PAGE - page % PAGE;
            self.memory.write(*page, &vec![0xff; len as usize]);
        }
    }
}
