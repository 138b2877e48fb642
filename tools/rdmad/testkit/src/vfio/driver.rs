// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A virtio driver that reaches its device by a vfio-user client.

use std::os::fd::{AsFd, OwnedFd};

use dma::DmaSpace;
use rustix::event::{eventfd, EventfdFlags};

use super::Client;

/// Offsets of the registers of virtio-pci.
pub mod reg {
    pub const DRIVER_SELECT: u64 = 8;
    pub const DRIVER_FEATURE: u64 = 0xc;
    pub const CONFIG_VECTOR: u64 = 0x10;
    pub const STATUS: u64 = 0x14;
    pub const QUEUE_SELECT: u64 = 0x16;
    pub const QUEUE_SIZE: u64 = 0x18;
    pub const QUEUE_VECTOR: u64 = 0x1a;
    pub const QUEUE_ENABLE: u64 = 0x1c;
    pub const QUEUE_DESC: u64 = 0x20;
    pub const QUEUE_DRIVER: u64 = 0x28;
    pub const QUEUE_DEVICE: u64 = 0x30;
    pub const QUEUE_RESET: u64 = 0x3a;
    pub const ISR: u64 = 0x1000;
    pub const CONFIG: u64 = 0x2000;
    pub const NOTIFY: u64 = 0x8000;
}

/// Feature bits of the transport: VERSION_1, ACCESS_PLATFORM, RING_RESET.
pub const TRANSPORT: u64 = (1 << 32) | (1 << 33) | (1 << 40);

/// Length and DMA address of the driver's memory.
pub const MEMORY: u64 = 1 << 20;
pub const MEMORY_AT: u64 = 0x4000_0000;
/// Address of the parts of `queue` in guest memory.
pub const fn ring_at(queue: u16) -> u64 {
    MEMORY_AT + 0x1_0000 * queue as u64
}
/// Offsets of the rings of a queue from its address.
pub const AVAIL: u64 = 0x4000;
pub const USED: u64 = 0x8000;
/// DMA address of the data of requests.
pub const DATA: u64 = MEMORY_AT + 0x8_0000;

/// A virtio driver whose memory is a single region.
pub struct Driver {
    pub client: Client,
    pub memory: DmaSpace,
    pub interrupts: Vec<OwnedFd>,
}

impl Driver {
    pub fn new(client: Client) -> Self {
        Self::with_memory(client, dma::testing::guest_memory(MEMORY).unwrap())
    }

    /// A driver with this file as its memory, of [`MEMORY`] bytes.
    pub fn with_memory(mut client: Client, fd: OwnedFd) -> Self {
        client.map(Some(fd.as_fd()), 0, MEMORY_AT, MEMORY).unwrap();
        let memory = DmaSpace::new();
        memory.map(MEMORY_AT, fd, 0, MEMORY, true).unwrap();
        let interrupts: Vec<_> = (0..3)
            .map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap())
            .collect();
        let fds: Vec<_> = interrupts.iter().map(AsFd::as_fd).collect();
        client.set_irqs(0x24, 0, 3, &fds).unwrap();
        Self {
            client,
            memory,
            interrupts,
        }
    }

    pub fn read8(&mut self, offset: u64) -> u8 {
        self.client.read(2, offset, 1).unwrap()[0]
    }

    pub fn read16(&mut self, offset: u64) -> u16 {
        u16::from_le_bytes(self.client.read(2, offset, 2).unwrap().try_into().unwrap())
    }

    pub fn write8(&mut self, offset: u64, value: u8) {
        self.client.write(2, offset, &[value]).unwrap();
    }

    pub fn write16(&mut self, offset: u64, value: u16) {
        self.client.write(2, offset, &value.to_le_bytes()).unwrap();
    }

    pub fn write32(&mut self, offset: u64, value: u32) {
        self.client.write(2, offset, &value.to_le_bytes()).unwrap();
    }

    pub fn write64(&mut self, offset: u64, value: u64) {
        self.write32(offset, value as u32);
        self.write32(offset + 4, (value >> 32) as u32);
    }

    /// Resets the device and negotiates features. Returns the device status afterwards.
    pub fn negotiate(&mut self, features: u64) -> u8 {
        self.reset();
        self.write8(reg::STATUS, 3);
        for (select, bits) in [(0, features as u32), (1, (features >> 32) as u32)] {
            self.write32(reg::DRIVER_SELECT, select);
            self.write32(reg::DRIVER_FEATURE, bits);
        }
        self.write8(reg::STATUS, 11);
        self.read8(reg::STATUS)
    }

    pub fn reset(&mut self) {
        self.write8(reg::STATUS, 0);
        while self.read8(reg::STATUS) != 0 {}
    }

    /// Enables a queue at its default address, with empty rings and vector `1 + queue`.
    pub fn enable_queue(&mut self, queue: u16, size: u16) {
        self.enable_queue_at(queue, size, ring_at(queue), 1 + queue);
    }

    /// Enables a queue at address `at`, with empty rings.
    pub fn enable_queue_at(&mut self, queue: u16, size: u16, at: u64, vector: u16) {
        self.put(at, &[0; 0x1_0000]);
        self.write16(reg::QUEUE_SELECT, queue);
        self.write16(reg::QUEUE_SIZE, size);
        self.write16(reg::QUEUE_VECTOR, vector);
        self.write64(reg::QUEUE_DESC, at);
        self.write64(reg::QUEUE_DRIVER, at + AVAIL);
        self.write64(reg::QUEUE_DEVICE, at + USED);
        self.write16(reg::QUEUE_ENABLE, 1);
    }

    /// Initializes the device up to DRIVER_OK with these features and two queues of 16 descriptors.
    pub fn start(&mut self, features: u64) {
        assert_eq!(self.negotiate(features), 11);
        self.write16(reg::CONFIG_VECTOR, 0);
        self.enable_queue(0, 16);
        self.enable_queue(1, 16);
        self.write8(reg::STATUS, 15);
    }

    pub fn put(&self, at: u64, data: &[u8]) {
        let view = self.memory.enter();
        view.slice_mut(at, data.len())
            .unwrap()
            .write(0, data)
            .unwrap();
    }

    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        let view = self.memory.enter();
        view.slice(at, len).unwrap().read(0, &mut data).unwrap();
        data
    }

    pub fn get16(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.get(at, 2).try_into().unwrap())
    }

    pub fn descriptor(
        &self,
        queue: u16,
        index: u16,
        address: u64,
        len: u32,
        flags: u16,
        next: u16,
    ) {
        let bytes = descriptor(address, len, flags, next);
        self.put(ring_at(queue) + 16 * u64::from(index), &bytes);
    }

    /// Makes the chain at `head` available in a queue of `size` descriptors, and notifies the
    /// device.
    pub fn submit(&mut self, queue: u16, size: u16, head: u16) {
        let avail = ring_at(queue) + AVAIL;
        let index = self.get16(avail + 2);
        self.put(avail + 4 + 2 * u64::from(index % size), &head.to_le_bytes());
        self.put(avail + 2, &index.wrapping_add(1).to_le_bytes());
        self.write16(reg::NOTIFY + 4 * u64::from(queue), queue);
    }

    pub fn used_index(&self, queue: u16) -> u16 {
        self.get16(ring_at(queue) + USED + 2)
    }

    /// Waits for an interrupt vector.
    pub fn wait_interrupt(&self, vector: usize) {
        let fd = &self.interrupts[vector];
        let mut fds = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, None).unwrap();
        rustix::io::read(fd, &mut [0; 8]).unwrap();
    }

    /// Whether a vector is raised.
    pub fn interrupted(&self, vector: usize) -> bool {
        rustix::io::read(&self.interrupts[vector], &mut [0; 8]).is_ok()
    }

    /// Sends a request with `data` and with room for an answer of `room` bytes. Returns the answer.
    pub fn echo(&mut self, queue: u16, size: u16, data: &[u8], room: u32) -> Vec<u8> {
        self.put(DATA, data);
        self.descriptor(queue, 0, DATA, data.len() as u32, 1, 1);
        self.descriptor(queue, 1, DATA + 0x1000, room, 2, 0);
        let used = self.used_index(queue);
        self.submit(queue, size, 0);
        self.wait_interrupt(1 + usize::from(queue));
        assert_eq!(self.used_index(queue), used.wrapping_add(1));
        let element = self.get(ring_at(queue) + USED + 4 + 8 * u64::from(used % size), 8);
        assert_eq!(element[..4], [0; 4]);
        let len = u32::from_le_bytes(element[4..].try_into().unwrap());
        self.get(DATA + 0x1000, len as usize)
    }
}

/// Encodes a descriptor.
pub fn descriptor(address: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}
