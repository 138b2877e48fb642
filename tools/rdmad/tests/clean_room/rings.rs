// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Own rings from their owner's side: work queues, shared receive queues and completion queues.

use std::rc::Rc;
use std::sync::atomic::fence;
use std::sync::atomic::Ordering;

use crate::driver::until;
use crate::driver::Driver;
use crate::memory::Extent;
use crate::memory::Memory;
use crate::memory::PageList;
use crate::wire::doorbell;
use crate::wire::Cqe;
use crate::wire::Fields;

/// Kinds of arm requests: for any completion, or for solicited completions.
pub const NEXT: u64 = 1;
pub const SOLICITED: u64 = 2;
/// Base-2 logarithm of the size of a CQ's slots: the field `slot_shift`.
const CQ_SHIFT: u8 = 6;

/// The memory of a ring.
pub struct Ring {
    extent: Extent,
    pub slots: u32,
    shift: u8,
    depth: u8,
}

impl Ring {
    /// A ring of `slots` slots of 2^`shift` bytes, followed by `more` bytes. Its page list
    /// has the depth `depth`.
    fn new(memory: &Rc<Memory>, slots: u32, shift: u8, more: u64, depth: u8) -> Ring {
        // abi: R-500
        let extent = Extent::new(memory, (u64::from(slots) << shift) + more);
        Ring {
            extent,
            slots,
            shift,
            depth,
        }
    }

    /// A page list of the ring, for the command that creates the queue.
    pub fn list(&self) -> PageList {
        self.extent.list(self.depth)
    }

    /// Encodes the ring's page list and slots for a command.
    pub fn place(&self, list: &PageList) -> Vec<u8> {
        // abi: R-506
        Fields::default()
            .le64(list.address())
            .le32(self.extent.pages.len() as u32)
            .le32(self.slots)
            .u8(12)
            .u8(self.shift)
            .u8(self.depth)
            .zeroes(24)
            .0
    }

    fn slot(&self, position: u32) -> u64 {
        // abi: R-502
        u64::from(position % self.slots) << self.shift
    }

    /// DMA address of a word after the slots. Number 0 is the owner's position, 1 the device's
    /// position, 2 the arm word.
    fn word(&self, number: u64) -> u64 {
        // abi: R-503
        let end = u64::from(self.slots) << self.shift;
        self.extent.at(end + 64 * number)
    }

    fn load_device(&self) -> u32 {
        u32::from_le(self.extent.memory.load(self.word(1)))
    }

    fn store_owner(&self, position: u32) {
        self.extent.memory.store(self.word(0), position.to_le());
    }
}

/// A send or receive queue.
pub struct WorkQueue {
    pub ring: Ring,
    kind: u32,
    /// Number of the QP.
    pub number: u32,
    producer: u32,
    /// Number of work requests whose completion was polled.
    pub done: u32,
}

impl WorkQueue {
    /// A work queue. `kind` is the kind of its doorbell. The QPN is set later.
    pub fn new(memory: &Rc<Memory>, kind: u32, slots: u32, shift: u8, depth: u8) -> WorkQueue {
        WorkQueue {
            ring: Ring::new(memory, slots, shift, 128, depth),
            kind,
            number: 0,
            producer: 0,
            done: 0,
        }
    }

    /// Writes a work request, which the device does not see before [`publish`](Self::publish). The
    /// rest of its slot is filled with bytes other than 0.
    pub fn put(&mut self, wqe: &[u8]) {
        assert!(self.producer.wrapping_sub(self.done) < self.ring.slots);
        // abi: R-649
        let mut slot = vec![0xa5; 1 << self.ring.shift];
        slot[..wqe.len()].copy_from_slice(wqe);
        let at = self.ring.slot(self.producer);
        self.ring.extent.write(at, &slot);
        self.producer = self.producer.wrapping_add(1);
    }

    /// Posts the work requests that were put, and rings the doorbell.
    pub fn publish(&mut self, driver: &mut Driver) {
        self.ring.store_owner(self.producer);
        driver.ring(self.kind, self.number);
    }

    /// Posts a work request.
    pub fn post(&mut self, driver: &mut Driver, wqe: &[u8]) {
        let before = self.producer;
        self.put(wqe);
        self.ring.store_owner(self.producer);
        fence(Ordering::SeqCst);
        let doorbell = self.ring.load_device();
        let passed = self.producer.wrapping_sub(doorbell).wrapping_sub(1)
            < self.producer.wrapping_sub(before);
        if passed {
            driver.ring(self.kind, self.number);
        }
    }
}

/// A shared receive queue. The slots of each two consecutive work requests are swapped, and the
/// array `order` in the ring says so.
pub struct SharedQueue {
    pub ring: Ring,
    /// Handle of the SRQ.
    pub number: u32,
    producer: u32,
}

impl SharedQueue {
    pub fn new(memory: &Rc<Memory>, slots: u32, shift: u8, depth: u8) -> SharedQueue {
        let order = u64::from(2 * slots).next_multiple_of(64);
        SharedQueue {
            ring: Ring::new(memory, slots, shift, 128 + order, depth),
            number: 0,
            producer: 0,
        }
    }

    /// Posts a work request. An SRQ needs no doorbell.
    pub fn post(&mut self, wqe: &[u8]) {
        self.put(self.producer, wqe);
        self.producer = self.producer.wrapping_add(1);
        // abi: R-572
        self.ring.store_owner(self.producer);
    }

    fn put(&mut self, position: u32, wqe: &[u8]) {
        let slots = self.ring.slots;
        let slot = (position % slots) ^ 1;
        self.ring.extent.write(self.ring.slot(slot), wqe);
        // abi: R-503
        let order = (u64::from(slots) << self.ring.shift) + 128;
        let entry = order + 2 * u64::from(position % slots);
        // abi: R-502
        self.ring.extent.write(entry, &(slot as u16).to_le_bytes());
    }

    /// Copies the SRQ to a longer ring, with all work requests in the same slots.
    pub fn grown(&self, slots: u32, shift: u8) -> SharedQueue {
        let old = &self.ring;
        let mut grown = SharedQueue::new(&old.extent.memory, slots, shift, old.depth);
        grown.number = self.number;
        grown.producer = self.producer;
        assert!(self.producer <= old.slots, "slots were used again");
        for position in 0..self.producer {
            let at = old.slot(position ^ 1);
            grown.put(position, &old.extent.read(at, 1 << old.shift));
        }
        grown.ring.store_owner(self.producer);
        grown
    }
}

pub struct CompletionQueue {
    pub ring: Ring,
    /// Handle of the CQ.
    pub number: u32,
    consumer: u32,
    /// The device's producer position as it was read last.
    known: u32,
    /// Sequence number of the next arm request. `asked` has the kind and the position of the
    /// pending arm request.
    sequence: u64,
    asked: Option<(u64, u32)>,
}

impl CompletionQueue {
    pub fn new(memory: &Rc<Memory>, slots: u32, depth: u8) -> CompletionQueue {
        CompletionQueue {
            ring: Ring::new(memory, slots, CQ_SHIFT, 192, depth),
            number: 0,
            consumer: 0,
            known: 0,
            sequence: 1,
            asked: None,
        }
    }

    /// Takes the oldest completion, if there is one.
    pub fn poll(&mut self) -> Option<Cqe> {
        self.known = self.ring.load_device();
        let ready = self.known.wrapping_sub(self.consumer);
        assert!(ready <= self.ring.slots, "producer {}", self.known);
        if ready == 0 {
            return None;
        }
        let at = self.ring.slot(self.consumer);
        let cqe = Cqe::new(&self.ring.extent.read(at, Cqe::SIZE as u64));
        self.consumer = self.consumer.wrapping_add(1);
        self.ring.store_owner(self.consumer);
        Some(cqe)
    }

    /// Number of unpolled completions.
    pub fn pending(&mut self) -> u32 {
        self.known = self.ring.load_device();
        self.known.wrapping_sub(self.consumer)
    }

    /// Polls until there is a completion.
    pub fn wait(&mut self) -> Cqe {
        until("the completion", || self.poll())
    }

    /// Arms the CQ for an event.
    pub fn arm(&mut self, driver: &mut Driver, kind: u64) {
        let (kind, position) = match self.asked {
            None => (kind, self.known),
            Some((asked, position)) => (kind.min(asked), position),
        };
        self.ask(kind, position);
        if self.ring.load_device() != self.known {
            driver.ring(doorbell::CQ, self.number);
        }
    }

    /// Arms the CQ at an old position, so that the event is overdue.
    pub fn demand(&mut self, driver: &mut Driver) {
        let overdue = self.known.wrapping_sub(self.ring.slots + 1);
        self.ask(NEXT, overdue);
        driver.ring(doorbell::CQ, self.number);
    }

    fn ask(&mut self, kind: u64, position: u32) {
        self.asked = Some((kind, position));
        // abi: R-553
        let word = (self.sequence << 34) | (kind << 32) | u64::from(position);
        let memory = &self.ring.extent.memory;
        memory.store(self.ring.word(2), word.to_le());
        fence(Ordering::SeqCst);
    }

    /// Sets the sequence number, as if many events had been received.
    pub fn skip(&mut self, sequence: u64) {
        self.sequence = sequence;
    }

    /// Updates this state after an event of the CQ was received.
    pub fn told(&mut self) {
        self.sequence = (self.sequence + 1) % (1 << 30);
        self.asked = None;
        self.known = self.ring.load_device();
    }
    /// Moves the CQ to another ring. Returns the remaining completions of the old ring, which ends
    /// at position `end`.
    pub fn moves(&mut self, driver: &mut Driver, ring: Ring, end: u32) -> Vec<Cqe> {
        let mut held = Vec::new();
        while self.consumer != end {
            held.push(self.poll().unwrap());
        }
        self.ring = ring;
        (self.consumer, self.known) = (0, 0);
        if let Some((kind, _)) = self.asked.take() {
            self.arm(driver, kind);
        }
        held
    }

    /// Allocates another ring for this CQ.
    pub fn another(&self, slots: u32) -> Ring {
        let memory = &self.ring.extent.memory;
        CompletionQueue::new(memory, slots, self.ring.depth).ring
    }
}
