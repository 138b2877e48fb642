// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Driver side of a split virtqueue (virtio 1.3, 2.7). Each part is in a page of its own.

use std::rc::Rc;
use std::sync::atomic::fence;
use std::sync::atomic::Ordering;

use crate::memory::Memory;
use crate::memory::PAGE;

/// Flags of a descriptor.
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// The buffer of a descriptor.
#[derive(Clone, Copy)]
pub struct Piece {
    pub address: u64,
    pub len: u32,
    pub is_writable: bool,
}

/// The parts of a virtqueue, and the driver's positions in its rings.
pub struct Virtqueue {
    memory: Rc<Memory>,
    size: u16,
    /// DMA addresses of descriptor table, available ring and used ring.
    table: u64,
    available: u64,
    used: u64,
    offered: u16,
    taken: u16,
}

impl Virtqueue {
    pub fn new(memory: &Rc<Memory>, size: u16) -> Virtqueue {
        assert!(size <= 64, "the parts exceed a page");
        let page = memory.page();
        Virtqueue {
            memory: Rc::clone(memory),
            size,
            table: page,
            available: page + 0x800,
            used: page + 0xc00,
            offered: 0,
            taken: 0,
        }
    }

    /// Empties the virtqueue, which the device does not use any more.
    pub fn clear(&mut self) {
        self.memory.write(self.table, &[0; PAGE as usize]);
        (self.offered, self.taken) = (0, 0);
    }

    /// DMA addresses of descriptor table, available ring and used ring.
    pub fn parts(&self) -> [u64; 3] {
        [self.table, self.available, self.used]
    }

    /// Makes a chain of descriptors available. `first` is the index of its first descriptor. The
    /// caller must notify the device.
    pub fn offer(&mut self, first: u16, pieces: &[Piece]) {
        for (index, piece) in (first..).zip(pieces) {
            let is_last = usize::from(index - first) + 1 == pieces.len();
            let mut flags = 0;
            if !is_last {
                flags |= NEXT;
            }
            if piece.is_writable {
                flags |= WRITE;
            }
            let mut descriptor = piece.address.to_le_bytes().to_vec();
            descriptor.extend(piece.len.to_le_bytes());
            descriptor.extend(flags.to_le_bytes());
            descriptor.extend((index + 1).to_le_bytes());
            let at = self.table + 16 * u64::from(index);
            self.memory.write(at, &descriptor);
        }
        let slot = u64::from(self.offered % self.size);
        let entry = self.available + 4 + 2 * slot;
        self.memory.write(entry, &first.to_le_bytes());
        self.offered = self.offered.wrapping_add(1);
        let index = self.available + 2;
        self.memory.store(index, self.offered.to_le());
        fence(Ordering::SeqCst);
    }

    /// Takes the next used chain. Returns its first descriptor and the number of bytes written.
    pub fn take(&mut self) -> Option<(u16, u32)> {
        let index = u16::from_le(self.memory.load(self.used + 2));
        if index == self.taken {
            return None;
        }
        let slot = u64::from(self.taken % self.size);
        let element = self.memory.read(self.used + 4 + 8 * slot, 8);
        self.taken = self.taken.wrapping_add(1);
        let le32 = |at: usize| u32::from_le_bytes(element[at..at + 4].try_into().unwrap());
        Some((le32(0) as u16, le32(4)))
    }
}
