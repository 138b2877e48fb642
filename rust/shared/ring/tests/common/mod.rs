// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Both sides of a ring in plain memory, for single-threaded tests.
#![allow(dead_code)]

use std::cell::RefCell;

use virtio_rdma_abi::ring::RingKind;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_ring::CompletionQueue;
use virtio_rdma_ring::DeviceCq;
use virtio_rdma_ring::DeviceQueue;
use virtio_rdma_ring::RingMemory;
use virtio_rdma_ring::WorkQueue;

/// Positions at which tests start: 0 as in a new ring, and some that soon wrap.
pub const STARTS: [u32; 4] = [0, u32::MAX - 1, u32::MAX - 5, 0x7fff_fffe];

/// The bytes of a ring, for single-threaded tests.
pub struct Memory(RefCell<Vec<u8>>);

impl Memory {
    pub fn new(layout: &RingLayout) -> Self {
        Self(RefCell::new(vec![0; layout.size() as usize]))
    }

    /// A ring in which both positions are `position`.
    pub fn starting_at(layout: &RingLayout, position: u32) -> Self {
        let memory = Self::new(layout);
        memory.store_u32(layout.owner(), position.to_le());
        memory.store_u32(layout.device(), position.to_le());
        memory
    }

    pub fn load<const N: usize>(&self, offset: u32) -> [u8; N] {
        let mut bytes = [0; N];
        self.read(offset, &mut bytes);
        bytes
    }

    /// The position at `offset`.
    pub fn position(&self, offset: u32) -> u32 {
        u32::from_le(self.load_u32(offset))
    }
}

impl RingMemory for Memory {
    fn load_u16(&self, offset: u32) -> u16 {
        assert_eq!(offset % 2, 0);
        u16::from_ne_bytes(self.load(offset))
    }
    fn store_u16(&self, offset: u32, value: u16) {
        assert_eq!(offset % 2, 0);
        self.write(offset, &value.to_ne_bytes());
    }
    fn load_u32(&self, offset: u32) -> u32 {
        assert_eq!(offset % 4, 0);
        u32::from_ne_bytes(self.load(offset))
    }
    fn load_u32_acquire(&self, offset: u32) -> u32 {
        self.load_u32(offset)
    }
    fn store_u32(&self, offset: u32, value: u32) {
        assert_eq!(offset % 4, 0);
        self.write(offset, &value.to_ne_bytes());
    }
    fn store_u32_release(&self, offset: u32, value: u32) {
        self.store_u32(offset, value);
    }
    fn load_u64(&self, offset: u32) -> u64 {
        assert_eq!(offset % 8, 0);
        u64::from_ne_bytes(self.load(offset))
    }
    fn store_u64(&self, offset: u32, value: u64) {
        assert_eq!(offset % 8, 0);
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

pub fn work_layout(slots: u32) -> RingLayout {
    RingLayout::new(RingKind::Work, slots, 6).unwrap()
}

pub fn shared_layout(slots: u32) -> RingLayout {
    RingLayout::new(RingKind::Shared, slots, 6).unwrap()
}

pub fn completion_layout(slots: u32) -> RingLayout {
    RingLayout::completions(slots).unwrap()
}

/// Both sides of a work queue that starts at `position`.
pub fn work_queue(slots: u32, position: u32) -> (Memory, WorkQueue, DeviceQueue) {
    let layout = work_layout(slots);
    (
        Memory::starting_at(&layout, position),
        WorkQueue::starting_at(layout, position),
        DeviceQueue::starting_at(layout, position),
    )
}

/// Both sides of a completion queue that starts at `position`.
pub fn completion_queue(slots: u32, position: u32) -> (Memory, CompletionQueue, DeviceCq) {
    let layout = completion_layout(slots);
    (
        Memory::starting_at(&layout, position),
        CompletionQueue::starting_at(layout, position),
        DeviceCq::starting_at(layout, position),
    )
}

pub fn post(queue: &mut WorkQueue, memory: &Memory, value: u32) {
    let position = queue.reserve().unwrap();
    memory.write(queue.layout().slot(position), &value.to_le_bytes());
}

/// Fetches one work request and returns its value.
pub fn fetch(queue: &mut DeviceQueue, memory: &Memory) -> Option<u32> {
    let position = queue.fetch(memory).unwrap()?;
    Some(u32::from_le_bytes(
        memory.load(queue.layout().slot(position)),
    ))
}

/// Pushes and publishes one completion, and returns whether the event is due.
pub fn complete(device: &mut DeviceCq, memory: &Memory, value: u32, solicited: bool) -> bool {
    device
        .push(memory, &value.to_le_bytes(), solicited)
        .unwrap();
    device.publish(memory)
}

/// Polls one completion and returns the value in its CQE.
pub fn poll(queue: &mut CompletionQueue, memory: &Memory) -> Option<u32> {
    let position = queue.take(memory).unwrap()?;
    let value = u32::from_le_bytes(memory.load(queue.layout().slot(position)));
    queue.publish(memory);
    Some(value)
}
