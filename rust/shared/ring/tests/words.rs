// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The accesses of the two sides: only words and slots of the layout, and no side loads a word that
//! it writes itself.
#![cfg(not(loom))]

mod common;

use common::*;
use virtio_rdma_abi::ring::ArmKind;
use virtio_rdma_abi::ring::RingKind;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_ring::CompletionQueue;
use virtio_rdma_ring::DeviceCq;
use virtio_rdma_ring::DeviceQueue;
use virtio_rdma_ring::DeviceSharedQueue;
use virtio_rdma_ring::RingMemory;
use virtio_rdma_ring::SharedQueue;
use virtio_rdma_ring::WorkQueue;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Owner,
    Device,
}

/// A ring with the accesses that one side may make. Any other access panics.
struct Words<'m> {
    memory: &'m Memory,
    layout: RingLayout,
    side: Side,
}

/// A new ring, as seen by its two sides.
fn sides<'m>(memory: &'m Memory, layout: &RingLayout) -> [Words<'m>; 2] {
    [Side::Owner, Side::Device].map(|side| Words {
        memory,
        layout: *layout,
        side,
    })
}

impl Words<'_> {
    /// Checks that `offset` is the offset of the word that `writer` writes.
    fn expect_word(&self, offset: u32, writer: Side) {
        let word = match writer {
            Side::Owner => self.layout.owner(),
            Side::Device => self.layout.device(),
        };
        assert_eq!(offset, word, "{:?}", self.side);
    }

    fn other(&self) -> Side {
        match self.side {
            Side::Owner => Side::Device,
            Side::Device => Side::Owner,
        }
    }

    fn expect_order(&self, offset: u32) {
        assert_eq!(self.layout.kind(), RingKind::Shared);
        let order = self.layout.order(0)..=self.layout.order(self.layout.slots() - 1);
        assert!(order.contains(&offset) && offset % 2 == 0, "{offset}");
    }

    fn expect_arm(&self, offset: u32, side: Side) {
        assert_eq!(self.layout.kind(), RingKind::Completion);
        assert_eq!((offset, self.side), (self.layout.arm(), side));
    }

    fn expect_slot(&self, offset: u32, len: usize) {
        let size = self.layout.slot_size();
        assert!(offset < self.layout.slots() * size, "{offset}");
        assert!(offset % size + len as u32 <= size, "{offset}, {len}");
    }
}

impl RingMemory for Words<'_> {
    fn load_u16(&self, offset: u32) -> u16 {
        self.expect_order(offset);
        self.memory.load_u16(offset)
    }
    fn store_u16(&self, offset: u32, value: u16) {
        self.expect_order(offset);
        assert_eq!(self.side, Side::Owner);
        self.memory.store_u16(offset, value);
    }
    fn load_u32(&self, offset: u32) -> u32 {
        self.expect_word(offset, self.other());
        self.memory.load_u32(offset)
    }
    fn load_u32_acquire(&self, offset: u32) -> u32 {
        self.load_u32(offset)
    }
    fn store_u32(&self, offset: u32, value: u32) {
        self.expect_word(offset, self.side);
        self.memory.store_u32(offset, value);
    }
    fn store_u32_release(&self, offset: u32, value: u32) {
        self.store_u32(offset, value);
    }
    fn load_u64(&self, offset: u32) -> u64 {
        self.expect_arm(offset, Side::Device);
        self.memory.load_u64(offset)
    }
    fn store_u64(&self, offset: u32, value: u64) {
        self.expect_arm(offset, Side::Owner);
        self.memory.store_u64(offset, value);
    }
    fn read(&self, offset: u32, bytes: &mut [u8]) {
        self.expect_slot(offset, bytes.len());
        assert_eq!(
            self.side,
            Side::Owner,
            "the code of devices reads slots itself"
        );
        self.memory.read(offset, bytes);
    }
    fn write(&self, offset: u32, bytes: &[u8]) {
        self.expect_slot(offset, bytes.len());
        self.memory.write(offset, bytes);
    }
    fn full_barrier(&self) {}
}

// abi
#[test]
fn of_a_work_queue() {
    for slots in [2, 64] {
        let layout = work_layout(slots);
        let memory = Memory::new(&layout);
        let [owner, device] = sides(&memory, &layout);
        let mut driver = WorkQueue::new(layout);
        let mut queue = DeviceQueue::new(layout);
        for round in 0..10 {
            let position = driver.reserve().unwrap();
            let _ = driver.publish(&owner);
            assert_eq!(queue.available(&device), 1);
            assert_eq!(queue.fetch(&device), Ok(Some(position)));
            queue.suppress_doorbell(&device);
            assert!(!queue.enable_doorbell(&device));
            if round % 4 == 3 {
                queue.reset(&device);
                driver.reset();
            } else {
                queue.complete();
                driver.complete(position).unwrap();
            }
        }
    }
}

// abi
#[test]
fn of_a_completion_queue() {
    for slots in [2, 64] {
        let layout = completion_layout(slots);
        let memory = Memory::new(&layout);
        let [owner, device] = sides(&memory, &layout);
        let mut driver = CompletionQueue::new(layout);
        let mut cq = DeviceCq::new(layout);
        for _ in 0..10 {
            let _ = driver.arm(&owner, ArmKind::Next, true);
            cq.push(&device, &[7; 38], false).unwrap();
            assert!(cq.publish(&device));
            assert_eq!(cq.unpolled(&device), Ok(1));
            driver.event_received(&owner);
            driver.for_each_unpolled(&owner, |_| ()).unwrap();
            assert!(driver.take(&owner).unwrap().is_some());
            driver.publish(&owner);
        }
        let _ = driver.arm(&owner, ArmKind::Solicited, false);
        let longer = completion_layout(2 * slots);
        let target = Memory::new(&longer);
        let [owner, device] = sides(&target, &longer);
        cq.moved(longer);
        let _ = driver.moved(CompletionQueue::new(longer), &owner, true);
        assert!(cq.publish(&device));
    }
}

// abi
#[test]
fn of_a_shared_queue() {
    for slots in [2, 64] {
        let list = |slots: u32| vec![0; slots as usize].into_boxed_slice();
        let layout = shared_layout(slots);
        let memory = Memory::new(&layout);
        let [owner, device] = sides(&memory, &layout);
        let mut driver = SharedQueue::new(layout, list(slots));
        let mut queue = DeviceSharedQueue::new(layout);
        for _ in 0..10 {
            let slot = driver.reserve().unwrap();
            driver.offer(&owner, slot);
            let _ = driver.publish(&owner);
            assert_eq!(queue.available(&device), 1);
            assert_eq!(queue.fetch(&device), Ok(Some(slot)));
            queue.suppress_doorbell(&device);
            queue.complete();
            driver.complete(slot).unwrap();
        }
        let longer = shared_layout(2 * slots);
        let target = Memory::new(&longer);
        let [new, device] = sides(&target, &longer);
        driver.copy_to(&owner, &longer, &new, &mut [0; 100]);
        let slot = driver.reserve().unwrap();
        driver.mirror(&longer, &new, slot);
        driver.offer(&owner, slot);
        let _ = driver.publish(&owner);
        queue.moved(longer);
        driver.moved(longer, list(2 * slots));
        assert_eq!(queue.fetch(&device), Ok(Some(slot)));
    }
}
