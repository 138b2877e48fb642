// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Rings in the memory of a VM, from the view of their owner.

use std::sync::atomic::{fence, AtomicU32, Ordering};
use std::sync::Arc;

use dma::{DmaSpace, DmaView};
use virtio_rdma_abi::ring::{RingAddr, RingKind, RingLayout};
use virtio_rdma_ring::RingMemory;
use virtqueue::Split;

use super::Vm;

const PAGE: u64 = 4096;
/// Size of a descriptor in bytes.
const DESCRIPTOR: u64 = 16;
/// Flags of a descriptor.
pub const F_NEXT: u16 = 1;
pub const F_WRITE: u16 = 2;
pub const F_INDIRECT: u16 = 4;

/// A ring with its pages in reverse order, so that no two consecutive pages are contiguous for the
/// device.
///
/// In virtqueue mode, the ring is a virtqueue: descriptor i describes slot i, and the indices of
/// the virtqueue replace the ring's words for the positions of owner and device.
pub struct Ring {
    space: Arc<DmaSpace>,
    pub layout: RingLayout,
    pub addr: RingAddr,
    /// Lowest DMA address of the memory of the slots: the address of an own ring's last page,
    /// because the pages are in reverse order, or the address of a virtqueue's first buffer.
    base: u64,
    pages: u64,
    /// Addresses of the parts of a virtqueue. After its descriptors are the indirect tables, of
    /// two descriptors for each slot.
    split: Option<Split>,
    /// The owner's previous and current position in a virtqueue.
    stored: [AtomicU32; 2],
    /// The last known position of the device in a virtqueue, whose used index has only 16 bits.
    produced: AtomicU32,
}

impl Ring {
    pub fn new(vm: &Vm, kind: RingKind, slots: u32, slot_shift: u8) -> Self {
        let layout = RingLayout::new(kind, slots, slot_shift).unwrap();
        Self::at(vm, vm.alloc(layout.size().into()), layout)
    }

    /// A ring at DMA address `base`, in zeroed memory.
    pub fn at(vm: &Vm, base: u64, layout: RingLayout) -> Self {
        let pages = u64::from(layout.size()).div_ceil(PAGE);
        let list: Vec<u64> = (0..pages).rev().map(|n| base + n * PAGE).collect();
        let slots = layout.slots();
        let addr = RingAddr {
            pages: vm.page_list(&list),
            npages: pages as u32,
            slots,
            page_shift: 12,
            slot_shift: layout.slot_shift(),
            depth: 0,
            reserved: [0; 5],
        };
        let ring = Self {
            space: vm.space.clone(),
            layout,
            addr,
            base,
            pages,
            split: vm.is_virtqueue_mode().then(|| Split {
                size: u16::try_from(slots).unwrap(),
                descriptors: vm.alloc(u64::from(slots) * (DESCRIPTOR + 2 * DESCRIPTOR)),
                available: vm.alloc(6 + 2 * u64::from(slots)),
                used: vm.alloc(6 + 8 * u64::from(slots)),
                indirect: true,
            }),
            stored: Default::default(),
            produced: AtomicU32::new(0),
        };
        if let Some(split) = ring.split {
            for slot in 0..split.size {
                ring.set_available_entry(slot, slot);
            }
            if layout.kind() == RingKind::Completion {
                ring.store_u32_release(layout.owner(), 0);
            }
        }
        ring
    }

    /// Addresses of the parts of a virtqueue.
    pub fn split(&self) -> Split {
        self.split.expect("a virtqueue")
    }

    fn half(&self, at: u64) -> u16 {
        let view = self.space.enter();
        let half = view.slice(at, 2).unwrap().load_u16(0, Ordering::Acquire);
        u16::from_le(half.unwrap())
    }

    fn set_half(&self, at: u64, value: u16) {
        let view = self.space.enter();
        let slice = view.slice_mut(at, 2).unwrap();
        slice
            .store_u16(0, value.to_le(), Ordering::Release)
            .unwrap();
    }

    /// The index of a virtqueue's used ring.
    pub fn used_index(&self) -> u16 {
        self.half(self.split().used_index())
    }

    /// The head in an entry of a virtqueue's used ring.
    pub fn used_head(&self, position: u16) -> u32 {
        let view = self.space.enter();
        let entry = view.slice(self.split().used_entry(position), 4).unwrap();
        u32::from_le(entry.load_u32(0, Ordering::Relaxed).unwrap())
    }

    /// The length in an entry of a virtqueue's used ring.
    pub fn used_length(&self, position: u16) -> u32 {
        let view = self.space.enter();
        let entry = self.split().used_entry(position) + 4;
        let entry = view.slice(entry, 4).unwrap();
        u32::from_le(entry.load_u32(0, Ordering::Relaxed).unwrap())
    }

    /// The flags of a virtqueue's used ring.
    pub fn used_flags(&self) -> u16 {
        self.half(self.split().used)
    }

    /// Sets the index of a virtqueue's available ring.
    pub fn set_available_index(&self, index: u16) {
        self.set_half(self.split().available_index(), index);
    }

    /// Sets an entry of a virtqueue's available ring.
    pub fn set_available_entry(&self, position: u16, head: u16) {
        self.set_half(self.split().available_entry(position), head);
    }

    /// Stores the owner's position.
    pub fn set_owner(&self, position: u32) {
        self.store_u32_release(self.layout.owner(), position.to_le());
    }

    /// The owner's position.
    pub fn owner(&self) -> u32 {
        u32::from_le(self.load_u32_acquire(self.layout.owner()))
    }

    /// The device's position: the producer position of a CQ, or the position in an SQ or RQ at
    /// which the device requests a doorbell.
    pub fn device(&self) -> u32 {
        u32::from_le(self.load_u32_acquire(self.layout.device()))
    }

    /// The value of the ring word at `offset`, derived from the indices of a virtqueue.
    fn load_index(&self, offset: u32) -> u32 {
        let is_completion = self.layout.kind() == RingKind::Completion;
        let position = if offset == self.layout.owner() {
            self.stored[1].load(Ordering::Relaxed)
        } else if is_completion {
            let before = self.produced.load(Ordering::Relaxed);
            let more = self.used_index().wrapping_sub(before as u16);
            let now = before.wrapping_add(more.into());
            self.produced.store(now, Ordering::Relaxed);
            now
        } else {
            // Virtqueues do not suppress doorbells: the device requests one after each post.
            self.stored[0].load(Ordering::Relaxed)
        };
        position.to_le()
    }

    fn store_index(&self, offset: u32, value: u32) {
        assert_eq!(offset, self.layout.owner());
        let position = u32::from_le(value);
        let before = self.stored[1].swap(position, Ordering::Relaxed);
        self.stored[0].store(before, Ordering::Relaxed);
        // The device may use each buffer of a CQ that holds no unpolled completion.
        let slots = match self.layout.kind() {
            RingKind::Completion => self.layout.slots(),
            RingKind::Work | RingKind::Shared => 0,
        };
        self.set_available_index(position.wrapping_add(slots) as u16);
    }

    /// Fills in the descriptors of a virtqueue, one for each slot. Every other descriptor refers to
    /// an indirect table, which divides the slot into two buffers.
    pub fn describe(&self, writable: bool) {
        let write = if writable { F_WRITE } else { 0 };
        let tables = self.split().descriptors + DESCRIPTOR * u64::from(self.layout.slots());
        for slot in 0..self.layout.slots() {
            let (at, len) = (
                self.base + u64::from(self.layout.slot(slot)),
                self.layout.slot_size(),
            );
            if slot % 2 == 0 {
                self.descriptor(slot.into(), (at, len), write, 0);
            } else {
                let table = tables + 2 * DESCRIPTOR * u64::from(slot);
                let first = (table - self.split().descriptors) / DESCRIPTOR;
                // In WQEs and CQEs, this offset is within a field.
                let cut = 29;
                self.descriptor(first, (at, cut), write | F_NEXT, 1);
                self.descriptor(first + 1, (at + u64::from(cut), len - cut), write, 0);
                let len = 2 * DESCRIPTOR as u32;
                self.descriptor(slot.into(), (table, len), F_INDIRECT, 0);
            }
        }
    }

    /// Writes descriptor `index`. Indices past the descriptor table are in the indirect tables.
    pub fn descriptor(&self, index: u64, (address, len): (u64, u32), flags: u16, next: u16) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        let at = self.split().descriptors + DESCRIPTOR * index;
        virtqueue::write(&self.space.enter(), at, &bytes).unwrap();
    }

    fn with<R>(&self, offset: u32, use_it: impl FnOnce(&DmaView, u64) -> R) -> R {
        let offset = u64::from(offset);
        if self.split.is_some() {
            return use_it(&self.space.enter(), self.base + offset);
        }
        let iova = self.base + (self.pages - 1 - offset / PAGE) * PAGE + offset % PAGE;
        use_it(&self.space.enter(), iova)
    }

    /// Overwrites one byte of the ring. `offset` may exceed the ring: it wraps around.
    pub fn scribble(&self, offset: u32, byte: u8) {
        self.write(offset % self.layout.size(), &[byte]);
    }
}

impl RingMemory for Ring {
    fn load_u32(&self, offset: u32) -> u32 {
        if self.split.is_some() {
            return self.load_index(offset);
        }
        self.with(offset, |view, at| {
            let slice = view.slice(at, 4).unwrap();
            slice.load_u32(0, Ordering::Relaxed).unwrap()
        })
    }
    fn load_u32_acquire(&self, offset: u32) -> u32 {
        if self.split.is_some() {
            return self.load_index(offset);
        }
        self.with(offset, |view, at| {
            let slice = view.slice(at, 4).unwrap();
            slice.load_u32(0, Ordering::Acquire).unwrap()
        })
    }
    fn store_u32(&self, offset: u32, value: u32) {
        if self.split.is_some() {
            return self.store_index(offset, value);
        }
        self.with(offset, |view, at| {
            let slice = view.slice_mut(at, 4).unwrap();
            slice.store_u32(0, value, Ordering::Relaxed).unwrap();
        });
    }
    fn store_u32_release(&self, offset: u32, value: u32) {
        if self.split.is_some() {
            return self.store_index(offset, value);
        }
        self.with(offset, |view, at| {
            let slice = view.slice_mut(at, 4).unwrap();
            slice.store_u32(0, value, Ordering::Release).unwrap();
        });
    }
    fn load_u64(&self, offset: u32) -> u64 {
        self.with(offset, |view, at| {
            let slice = view.slice(at, 8).unwrap();
            slice.load_u64(0, Ordering::Relaxed).unwrap()
        })
    }
    fn store_u64(&self, offset: u32, value: u64) {
        self.with(offset, |view, at| {
            let slice = view.slice_mut(at, 8).unwrap();
            slice.store_u64(0, value, Ordering::Relaxed).unwrap();
        });
    }
    fn load_u16(&self, offset: u32) -> u16 {
        self.with(offset, |view, at| {
            let slice = view.slice(at, 2).unwrap();
            slice.load_u16(0, Ordering::Relaxed).unwrap()
        })
    }
    fn store_u16(&self, offset: u32, value: u16) {
        self.with(offset, |view, at| {
            let slice = view.slice_mut(at, 2).unwrap();
            slice.store_u16(0, value, Ordering::Relaxed).unwrap();
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
