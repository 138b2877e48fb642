// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory of this process as the target of copies.

use dma::{DmaSpace, PAGE_SIZE};

use crate::device::rate;

/// Memory whose first byte is the first one of a page, like that of a VM.
pub struct OwnMemory {
    bytes: Vec<u8>,
    len: usize,
}

impl OwnMemory {
    /// `len` bytes.
    pub fn new(len: u64) -> Self {
        Self {
            bytes: vec![0; (len + PAGE_SIZE) as usize],
            len: len as usize,
        }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        let before = self.bytes.as_ptr().align_offset(PAGE_SIZE as usize);
        &mut self.bytes[before..][..self.len]
    }
}

/// The rate in MB per second of processor time at which one thread copies `len` bytes of a VM by
/// libc, page by page in reverse order.
pub fn copy_pages(len: u64) -> f64 {
    let source = DmaSpace::anonymous(0, len);
    let source = source.enter();
    let mut target = OwnMemory::new(len);
    let pages = target.bytes().chunks_mut(PAGE_SIZE as usize).enumerate();
    let pages = pages.rev().map(|(page, to)| {
        let from = source.slice(page as u64 * PAGE_SIZE, to.len());
        (from.expect("memory"), to)
    });
    let mut pages: Vec<_> = pages.collect();
    rate(len, || {
        for (from, to) in &mut pages {
            from.read(0, to).expect("inside");
        }
    })
}
