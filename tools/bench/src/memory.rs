// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory of this process as the target of copies.

use dma::PAGE_SIZE;

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

    /// All bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        let before = self.bytes.as_ptr().align_offset(PAGE_SIZE as usize);
        &mut self.bytes[before..][..self.len]
    }
}
