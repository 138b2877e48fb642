// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Rings in the memory of a VM, as their owner sees them.

use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

use dma::{DmaSpace, DmaView};
use virtio_rdma_abi::ring::{RingAddr, RingLayout};
use virtio_rdma_ring::RingMemory;

use super::Vm;

const PAGE: u64 = 4096;

/// A ring whose pages follow each other backwards, so that no two are contiguous for the device.
pub struct Ring {
    space: Arc<DmaSpace>,
    pub layout: RingLayout,
    pub addr: RingAddr,
    /// Address of the last page: the first in DMA space.
    base: u64,
    pages: u64,
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
        }
    }

    fn with<R>(&self, offset: u32, use_it: impl FnOnce(&DmaView, u64) -> R) -> R {
        let offset = u64::from(offset);
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
