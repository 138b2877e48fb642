// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Rings in the memory of a VM, as their owner sees them.

use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

use dma::{DmaSpace, DmaView};
use virtio_rdma_abi::ring::{RingAddr, RingLayout};
use virtio_rdma_ring::RingMemory;
use virtqueue::Split;

use super::{is_rfc, Vm};

const PAGE: u64 = 4096;
/// Size and flags of a descriptor.
const DESCRIPTOR: u64 = 16;
pub const F_NEXT: u16 = 1;
pub const F_WRITE: u16 = 2;
pub const F_INDIRECT: u16 = 4;

/// A ring whose pages follow each other backwards, so that no two are contiguous for the device.
pub struct Ring {
    space: Arc<DmaSpace>,
    pub layout: RingLayout,
    pub addr: RingAddr,
    /// Address of the last page: the first in DMA space. Of a virtqueue, whose parts are in one piece, of the first.
    base: u64,
    pages: u64,
    /// Descriptor table of a virtqueue, and a table of two descriptors for each of its own.
    descriptors: u64,
}

impl Ring {
    pub fn new(vm: &Vm, slots: u32, slot_shift: u8) -> Self {
        let layout = RingLayout::new(slots, slot_shift).unwrap();
        Self::at(vm, vm.alloc(layout.size().into()), slots, slot_shift)
    }

    /// A ring in the zeroed memory at `base`.
    pub fn at(vm: &Vm, base: u64, slots: u32, slot_shift: u8) -> Self {
        let layout = RingLayout::new(slots, slot_shift).unwrap();
        let pages = u64::from(layout.size()).div_ceil(PAGE);
        let list: Vec<u64> = (0..pages).rev().map(|n| base + n * PAGE).collect();
        let addr = RingAddr {
            pages: vm.page_list(&list),
            npages: pages as u32,
            slots,
            page_shift: 12,
            slot_shift,
            reserved: [0; 6],
        };
        Self {
            space: vm.space.clone(),
            layout,
            addr,
            base,
            pages,
            descriptors: match is_rfc() {
                true => vm.alloc(u64::from(slots) * (DESCRIPTOR + 2 * DESCRIPTOR)),
                false => 0,
            },
        }
    }

    /// Where the parts of a virtqueue are.
    pub fn split(&self) -> Split {
        Split {
            size: u16::try_from(self.layout.slots()).unwrap(),
            descriptors: self.descriptors,
            available: self.base + u64::from(self.layout.avail()),
            used: self.base + u64::from(self.layout.used()),
            indirect: true,
        }
    }

    /// Has each descriptor of a virtqueue stand for its slot: every other one by a table of two parts.
    pub fn describe(&self, writable: bool) {
        let write = if writable { F_WRITE } else { 0 };
        let tables = self.descriptors + DESCRIPTOR * u64::from(self.layout.slots());
        for slot in 0..self.layout.slots() as u16 {
            let (at, len) = (
                self.base + u64::from(self.layout.slot(slot)),
                self.layout.slot_size(),
            );
            if slot % 2 == 0 {
                self.descriptor(slot.into(), (at, len), write, 0);
            } else {
                let table = tables + 2 * DESCRIPTOR * u64::from(slot);
                let first = (table - self.descriptors) / DESCRIPTOR;
                // Not where a field of any element ends.
                let cut = 29;
                self.descriptor(first, (at, cut), write | F_NEXT, 1);
                self.descriptor(first + 1, (at + u64::from(cut), len - cut), write, 0);
                let len = 2 * DESCRIPTOR as u32;
                self.descriptor(slot.into(), (table, len), F_INDIRECT, 0);
            }
        }
    }

    /// Writes descriptor `index` of the table, or behind it.
    pub fn descriptor(&self, index: u64, (address, len): (u64, u32), flags: u16, next: u16) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        let at = self.descriptors + DESCRIPTOR * index;
        virtqueue::write(&self.space.enter(), at, &bytes).unwrap();
    }

    fn with<R>(&self, offset: u32, use_it: impl FnOnce(&DmaView, u64) -> R) -> R {
        let offset = u64::from(offset);
        if is_rfc() {
            return use_it(&self.space.enter(), self.base + offset);
        }
        let iova = self.base + (self.pages - 1 - offset / PAGE) * PAGE + offset % PAGE;
        use_it(&self.space.enter(), iova)
    }

    /// Overwrites bytes anywhere in the ring.
    pub fn scribble(&self, offset: u32, byte: u8) {
        self.write(offset % self.layout.size(), &[byte]);
    }
}

impl RingMemory for Ring {
    fn load_u16(&self, offset: u32) -> u16 {
        self.with(offset, |view, at| {
            view.slice(at, 2)
                .unwrap()
                .load_u16(0, Ordering::Relaxed)
                .unwrap()
        })
    }
    fn load_u16_acquire(&self, offset: u32) -> u16 {
        self.with(offset, |view, at| {
            view.slice(at, 2)
                .unwrap()
                .load_u16(0, Ordering::Acquire)
                .unwrap()
        })
    }
    fn store_u16(&self, offset: u32, value: u16) {
        self.with(offset, |view, at| {
            view.slice_mut(at, 2)
                .unwrap()
                .store_u16(0, value, Ordering::Relaxed)
                .unwrap();
        });
    }
    fn store_u16_release(&self, offset: u32, value: u16) {
        self.with(offset, |view, at| {
            view.slice_mut(at, 2)
                .unwrap()
                .store_u16(0, value, Ordering::Release)
                .unwrap();
        });
    }
    fn load_u32(&self, offset: u32) -> u32 {
        self.with(offset, |view, at| {
            view.slice(at, 4)
                .unwrap()
                .load_u32(0, Ordering::Relaxed)
                .unwrap()
        })
    }
    fn store_u32(&self, offset: u32, value: u32) {
        self.with(offset, |view, at| {
            view.slice_mut(at, 4)
                .unwrap()
                .store_u32(0, value, Ordering::Relaxed)
                .unwrap();
        });
    }
    fn read(&self, offset: u32, bytes: &mut [u8]) {
        self.with(offset, |view, at| {
            view.slice(at, bytes.len()).unwrap().read(0, bytes).unwrap()
        });
    }
    fn write(&self, offset: u32, bytes: &[u8]) {
        self.with(offset, |view, at| {
            view.slice_mut(at, bytes.len())
                .unwrap()
                .write(0, bytes)
                .unwrap()
        });
    }
    fn full_barrier(&self) {
        fence(Ordering::SeqCst);
    }
}
