// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Both sides of a ring over plain memory, for one thread.
#![allow(dead_code)]

use std::cell::RefCell;

use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_ring::CompletionQueue;
use virtio_rdma_ring::DeviceCq;
use virtio_rdma_ring::DeviceQueue;
use virtio_rdma_ring::RingMemory;
use virtio_rdma_ring::WorkQueue;

/// The bytes of a ring, for one thread.
pub struct Memory(RefCell<Vec<u8>>);

impl Memory {
    pub fn new(layout: &RingLayout) -> Self {
        Self(RefCell::new(vec![0; layout.size() as usize]))
    }

    pub fn load<const N: usize>(&self, offset: u32) -> [u8; N] {
        let mut bytes = [0; N];
        self.read(offset, &mut bytes);
        bytes
    }
}

impl RingMemory for Memory {
    fn load_u16(&self, offset: u32) -> u16 {
        assert_eq!(offset % 2, 0);
        u16::from_ne_bytes(self.load(offset))
    }
    fn load_u16_acquire(&self, offset: u32) -> u16 {
        self.load_u16(offset)
    }
    fn store_u16(&self, offset: u32, value: u16) {
        assert_eq!(offset % 2, 0);
        self.write(offset, &value.to_ne_bytes());
    }
    fn store_u16_release(&self, offset: u32, value: u16) {
        self.store_u16(offset, value);
    }
    fn load_u32(&self, offset: u32) -> u32 {
        assert_eq!(offset % 4, 0);
        u32::from_ne_bytes(self.load(offset))
    }
    fn store_u32(&self, offset: u32, value: u32) {
        assert_eq!(offset % 4, 0);
        self.write(offset, &value.to_ne_bytes());
    }
    fn read(&self, offset: u32, bytes: &mut [u8]) {
        let offset = offset as usize;
        bytes.copy_from_slice(&self.0.borrow()[offset..offset + bytes.len()]);
    }
    fn write(&self, offset: u32, bytes: &[u8]) {
        let offset = offset as usize;
        self.0.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    fn full_barrier(&self) {}
}

pub fn layout(slots: u32) -> RingLayout {
    RingLayout::new(slots, 6).unwrap()
}

pub fn work_queue(slots: u32) -> (Memory, WorkQueue, DeviceQueue) {
    let memory = Memory::new(&layout(slots));
    let driver = WorkQueue::new(layout(slots), &memory);
    (memory, driver, DeviceQueue::new(layout(slots)))
}

pub fn completion_queue(slots: u32) -> (Memory, CompletionQueue, DeviceCq) {
    let memory = Memory::new(&layout(slots));
    let driver = CompletionQueue::new(layout(slots), &memory);
    (memory, driver, DeviceCq::new(layout(slots)))
}

pub fn post(queue: &mut WorkQueue, memory: &Memory, value: u32) {
    let slot = queue.reserve().unwrap();
    memory.write(queue.layout().slot(slot), &value.to_le_bytes());
}

/// Polls one completion and returns the value in its CQE.
pub fn poll(queue: &mut CompletionQueue, memory: &Memory) -> Option<u32> {
    let position = queue.take(memory).unwrap()?;
    let value = u32::from_le_bytes(memory.load(queue.layout().slot(position)));
    queue.publish(memory);
    Some(value)
}
