// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Both sides of a ring over plain memory: order, limits, wrapping of 16-bit indices, and what the other side may not do.
#![cfg(not(loom))]

use std::cell::RefCell;
use std::collections::VecDeque;

use proptest::prelude::*;
use virtio_rdma_abi::ring::ArmKind;
use virtio_rdma_abi::ring::ArmWord;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_ring::ArmLatch;
use virtio_rdma_ring::Armed;
use virtio_rdma_ring::CompletionQueue;
use virtio_rdma_ring::DeviceCq;
use virtio_rdma_ring::DeviceQueue;
use virtio_rdma_ring::RingError;
use virtio_rdma_ring::RingMemory;
use virtio_rdma_ring::WorkQueue;

/// The bytes of a ring, for one thread.
struct Memory(RefCell<Vec<u8>>);

impl Memory {
    fn new(layout: &RingLayout) -> Self {
        Self(RefCell::new(vec![0; layout.size() as usize]))
    }

    fn load<const N: usize>(&self, offset: u32) -> [u8; N] {
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

fn layout(slots: u32) -> RingLayout {
    RingLayout::new(slots, 6).unwrap()
}

fn work_queue(slots: u32) -> (Memory, WorkQueue, DeviceQueue) {
    let memory = Memory::new(&layout(slots));
    let driver = WorkQueue::new(layout(slots), &memory);
    (memory, driver, DeviceQueue::new(layout(slots)))
}

fn completion_queue(slots: u32) -> (Memory, CompletionQueue, DeviceCq) {
    let memory = Memory::new(&layout(slots));
    let driver = CompletionQueue::new(layout(slots), &memory);
    (memory, driver, DeviceCq::new(layout(slots)))
}

fn post(queue: &mut WorkQueue, memory: &Memory, value: u32) {
    let slot = queue.reserve().unwrap();
    memory.write(queue.layout().slot(slot), &value.to_le_bytes());
}

/// Polls one completion and returns the value in its CQE.
fn poll(queue: &mut CompletionQueue, memory: &Memory) -> Option<u32> {
    let completion = queue.peek(memory).unwrap()?;
    let value = u32::from_le_bytes(memory.load(queue.layout().slot(completion.slot)));
    queue.give_back(memory, completion);
    queue.publish(memory);
    Some(value)
}

#[test]
fn indices_wrap_at_every_ring_size() {
    for shift in 1..=15 {
        let slots = 1u32 << shift;
        let (memory, mut driver, mut device) = work_queue(slots);
        let batch = (slots - 1).clamp(1, 1000);
        let mut value = 0;
        while value < 150_000 {
            for _ in 0..batch {
                post(&mut driver, &memory, value);
                value += 1;
            }
            let _ = driver.publish(&memory);
            for expected in value - batch..value {
                let slot = device.fetch(&memory).unwrap().unwrap();
                let offset = driver.layout().slot(slot);
                assert_eq!(u32::from_le_bytes(memory.load(offset)), expected);
                device.give_back(&memory, slot, 0);
                driver.complete(slot).unwrap();
            }
            assert!(device.publish(&memory));
            assert_eq!(device.fetch(&memory), Ok(None));
            assert_eq!(device.used_index(), value as u16);
        }
    }
}

#[test]
fn a_full_queue_has_no_slot_until_a_completion_is_polled() {
    let (memory, mut driver, mut device) = work_queue(4);
    for value in 0..4 {
        post(&mut driver, &memory, value);
    }
    assert_eq!(driver.reserve(), None);
    assert!(driver.publish(&memory));
    for _ in 0..3 {
        let slot = device.fetch(&memory).unwrap().unwrap();
        device.give_back(&memory, slot, 0);
    }
    device.publish(&memory);
    assert_eq!(driver.reserve(), None, "the used ring frees nothing");
    driver.complete(2).unwrap();
    assert_eq!(
        driver.free_slots(),
        3,
        "a completion frees the slots before its own"
    );
    assert_eq!(driver.complete(1), Err(RingError::NotOutstanding));
    assert_eq!(driver.complete(4), Err(RingError::BadSlot));
    assert_eq!(driver.reclaim(5), Err(RingError::NotOutstanding));
    assert_eq!(
        driver.reclaim(2),
        Err(RingError::NotOutstanding),
        "backwards"
    );
    assert_eq!(driver.reclaim(3), Ok(()));
    driver.complete(3).unwrap();
    assert_eq!(driver.complete(3), Err(RingError::NotOutstanding));
    assert_eq!(driver.free_slots(), 4);
}

#[test]
fn a_reserved_slot_is_not_outstanding_before_it_is_published() {
    let (memory, mut driver, mut device) = work_queue(4);
    post(&mut driver, &memory, 7);
    assert_eq!(driver.complete(0), Err(RingError::NotOutstanding));
    assert_eq!(device.fetch(&memory), Ok(None));
}

#[test]
fn doorbells_are_asked_for_once() {
    let (memory, mut driver, mut device) = work_queue(8);
    let publish = |driver: &mut WorkQueue| {
        post(driver, &memory, 0);
        driver.publish(&memory)
    };
    assert!(publish(&mut driver), "a new ring wants a doorbell");
    assert!(!publish(&mut driver));
    assert!(device.fetch(&memory).unwrap().is_some());
    assert!(device.enable_doorbell(&memory), "one slot is left");
    assert!(device.fetch(&memory).unwrap().is_some());
    assert!(!device.enable_doorbell(&memory));
    assert!(publish(&mut driver));
    assert!(device.fetch(&memory).unwrap().is_some());
    assert!(!device.enable_doorbell(&memory));
    device.suppress_doorbell(&memory);
    assert!(!publish(&mut driver));
    assert!(!driver.publish(&memory), "nothing new, no doorbell");
}

#[test]
fn a_suppressed_doorbell_stays_quiet_for_a_full_turn_of_the_index() {
    let (memory, mut driver, mut device) = work_queue(2);
    device.suppress_doorbell(&memory);
    for turn in 0..65_535 {
        post(&mut driver, &memory, turn);
        assert!(!driver.publish(&memory));
        let slot = device.fetch(&memory).unwrap().unwrap();
        device.give_back(&memory, slot, 0);
        driver.complete(slot).unwrap();
    }
}

#[test]
fn the_device_bounds_what_the_driver_writes() {
    let (memory, mut driver, mut device) = work_queue(4);
    let idx = driver.layout().avail_idx();
    for bad in [5, 6, 0x8000, 0xffff] {
        memory.store_u16(idx, u16::to_le(bad));
        assert_eq!(device.fetch(&memory), Err(RingError::IndexJump));
    }
    memory.store_u16(idx, 0);
    for value in 0..3 {
        post(&mut driver, &memory, value);
    }
    let _ = driver.publish(&memory);
    for _ in 0..3 {
        device.fetch(&memory).unwrap();
    }
    assert_eq!(device.outstanding(), 3);
    memory.store_u16(idx, u16::to_le(5));
    assert_eq!(
        device.fetch(&memory),
        Err(RingError::IndexJump),
        "more outstanding than slots"
    );
    memory.store_u16(idx, u16::to_le(2));
    assert_eq!(
        device.fetch(&memory),
        Err(RingError::IndexJump),
        "backwards"
    );
    memory.store_u16(idx, u16::to_le(4));
    memory.store_u16(driver.layout().avail_ring(3), u16::to_le(4));
    assert_eq!(device.fetch(&memory), Err(RingError::BadSlot));
    assert_eq!(device.outstanding(), 3);
}

#[test]
fn reset_gives_back_whatever_is_in_the_ring() {
    let (memory, mut driver, mut device) = work_queue(4);
    for value in 0..3 {
        post(&mut driver, &memory, value);
    }
    let _ = driver.publish(&memory);
    device.fetch(&memory).unwrap();
    device.reset(&memory);
    assert_eq!(driver.reset(), 3);
    assert_eq!(driver.free_slots(), 4);
    assert_eq!(u16::from_le(memory.load_u16(driver.layout().used_idx())), 3);
    assert_eq!(device.fetch(&memory), Ok(None));
    post(&mut driver, &memory, 9);
    let _ = driver.publish(&memory);
    assert_eq!(device.fetch(&memory), Ok(Some(3)));
}

#[test]
fn a_completion_queue_overflows_when_nobody_polls() {
    let (memory, mut driver, mut device) = completion_queue(4);
    for value in 0..4u32 {
        device.push(&memory, &value.to_le_bytes(), false).unwrap();
    }
    assert_eq!(
        device.push(&memory, &[0; 4], false),
        Err(RingError::Overflow)
    );
    assert!(!device.publish(&memory));
    assert_eq!(poll(&mut driver, &memory), Some(0));
    device.push(&memory, &4u32.to_le_bytes(), false).unwrap();
    assert!(!device.publish(&memory));
    for value in 1..5 {
        assert_eq!(poll(&mut driver, &memory), Some(value));
    }
    assert_eq!(poll(&mut driver, &memory), None);
}

#[test]
fn the_driver_bounds_what_the_device_writes() {
    let (memory, mut driver, mut device) = completion_queue(4);
    let used = driver.layout().used_idx();
    memory.store_u16(used, u16::to_le(5));
    assert_eq!(driver.peek(&memory), Err(RingError::IndexJump));
    memory.store_u16(used, 0);
    for _ in 0..2 {
        device.push(&memory, &[0; 4], false).unwrap();
    }
    assert!(!device.publish(&memory));
    assert!(driver.peek(&memory).unwrap().is_some());
    memory.store_u16(used, u16::to_le(1));
    assert_eq!(
        driver.for_each_unpolled(&memory, |_| ()),
        Err(RingError::IndexJump)
    );
    memory.store_u32(driver.layout().used_ring(0), u32::to_le(4));
    assert_eq!(driver.peek(&memory), Err(RingError::BadSlot));
    memory.store_u32(driver.layout().used_ring(0), u32::to_le(0x1_0001));
    assert_eq!(driver.peek(&memory), Err(RingError::BadSlot));
}

#[test]
fn unpolled_completions_can_be_killed_where_they_lie() {
    let (memory, mut driver, mut device) = completion_queue(8);
    for value in 0..5u32 {
        device.push(&memory, &value.to_le_bytes(), false).unwrap();
    }
    assert!(!device.publish(&memory));
    assert_eq!(poll(&mut driver, &memory), Some(0));
    let layout = *driver.layout();
    let mut seen = Vec::new();
    driver
        .for_each_unpolled(&memory, |completion| {
            let offset = layout.slot(completion.slot);
            seen.push(u32::from_le_bytes(memory.load(offset)));
            memory.write(offset, &[0xff; 4]);
        })
        .unwrap();
    assert_eq!(seen, [1, 2, 3, 4]);
    assert_eq!(poll(&mut driver, &memory), Some(u32::MAX));
}

fn complete(device: &mut DeviceCq, memory: &Memory, solicited: bool) -> bool {
    device.push(memory, &[0; 4], solicited).unwrap();
    device.publish(memory)
}

#[test]
fn one_event_for_each_time_it_was_received() {
    let (memory, mut driver, mut device) = completion_queue(8);
    // More rounds than the sequence has values.
    for _ in 0..40_000 {
        assert_eq!(driver.arm(&memory, ArmKind::Next, false), Armed::Waiting);
        assert!(complete(&mut device, &memory, false));
        assert!(!complete(&mut device, &memory, false), "fired already");
        let _ = driver.arm(&memory, ArmKind::Next, false);
        assert!(
            !complete(&mut device, &memory, true),
            "the event was not received"
        );
        driver.event_received();
        while poll(&mut driver, &memory).is_some() {}
        assert!(!device.publish(&memory), "not armed again");
    }
}

#[test]
fn arming_often_without_an_event_does_not_wear_out() {
    let (memory, mut driver, mut device) = completion_queue(8);
    for _ in 0..70_000 {
        assert_eq!(driver.arm(&memory, ArmKind::Next, false), Armed::Waiting);
    }
    assert!(complete(&mut device, &memory, false));
}

#[test]
fn a_solicited_request_outlasts_the_index() {
    let (memory, mut driver, mut device) = completion_queue(2);
    assert!(!complete(&mut device, &memory, true));
    assert_eq!(
        driver.arm(&memory, ArmKind::Solicited, false),
        Armed::Waiting
    );
    for _ in 0..70_000 {
        poll(&mut driver, &memory).unwrap();
        assert!(!complete(&mut device, &memory, false));
    }
    poll(&mut driver, &memory).unwrap();
    assert!(complete(&mut device, &memory, true));
}

#[test]
fn a_request_for_any_completion_is_not_narrowed() {
    let (memory, mut driver, mut device) = completion_queue(8);
    let _ = driver.arm(&memory, ArmKind::Next, false);
    let _ = driver.arm(&memory, ArmKind::Solicited, false);
    assert!(complete(&mut device, &memory, false));
    driver.event_received();
    let _ = driver.arm(&memory, ArmKind::Solicited, false);
    assert!(!complete(&mut device, &memory, false));
    let _ = driver.arm(&memory, ArmKind::Next, false);
    assert!(complete(&mut device, &memory, false));
}

#[test]
fn unpolled_completions_are_reported_on_request() {
    let (memory, mut driver, mut device) = completion_queue(8);
    assert!(!complete(&mut device, &memory, false));
    assert_eq!(driver.arm(&memory, ArmKind::Next, true), Armed::Missed);
    assert_eq!(driver.arm(&memory, ArmKind::Next, false), Armed::Waiting);
    poll(&mut driver, &memory).unwrap();
    assert_eq!(driver.arm(&memory, ArmKind::Next, true), Armed::Waiting);
}

#[test]
fn a_completion_between_index_and_arm_word_is_found_at_the_doorbell() {
    let (memory, _, mut device) = completion_queue(8);
    assert!(!complete(&mut device, &memory, false));
    let word = ArmWord {
        sequence: 1,
        kind: ArmKind::Next,
        index: 0,
    };
    memory.store_u32(layout(8).arm(), word.to_u32().to_le());
    assert!(device.publish(&memory));
    assert!(
        !device.publish(&memory),
        "a second doorbell changes nothing"
    );
}

#[test]
fn an_index_that_no_ring_can_have_fires_at_once() {
    let mut latch = ArmLatch::new(8);
    let word = |sequence, kind, index| {
        ArmWord {
            sequence,
            kind,
            index,
        }
        .to_u32()
    };
    assert!(latch.event_due(word(1, ArmKind::Solicited, 1000)));
    assert!(!latch.event_due(word(2, ArmKind::None, 1000)));
    assert!(!latch.event_due(word(2, ArmKind::Next, 0)));
    latch.record(false);
    assert!(latch.event_due(word(2, ArmKind::Next, 0)));
    assert!(
        !latch.event_due((3 << 18) | (3 << 16)),
        "an unknown kind asks for nothing"
    );
}

proptest! {
    /// Random batches through a send queue and its completion queue, against a list of what is outstanding.
    #[test]
    fn work_completes_in_order(shift in 1u32..5, steps in prop::collection::vec((0u8..4, 1u32..20), 1..400)) {
        let (sq_memory, mut sq, mut device_sq) = work_queue(1 << shift);
        let (cq_memory, mut cq, mut device_cq) = completion_queue(1 << shift);
        let (mut next, mut posted, mut fetched, mut completed) =
            (0u32, VecDeque::new(), VecDeque::new(), VecDeque::new());
        for (step, count) in steps {
            for _ in 0..count {
                match step {
                    0 => {
                        let full = posted.len() + fetched.len() + completed.len() == 1 << shift;
                        prop_assert_eq!(sq.free_slots() == 0, full);
                        if !full {
                            post(&mut sq, &sq_memory, next);
                            posted.push_back(next);
                            next += 1;
                        }
                    }
                    1 => {
                        let _ = sq.publish(&sq_memory);
                        let slot = device_sq.fetch(&sq_memory).unwrap();
                        prop_assert_eq!(slot.is_some(), !posted.is_empty());
                        if let Some(slot) = slot {
                            let value = u32::from_le_bytes(sq_memory.load(sq.layout().slot(slot)));
                            prop_assert_eq!(Some(value), posted.pop_front());
                            fetched.push_back(slot);
                        }
                    }
                    2 => {
                        if let Some(slot) = fetched.pop_front() {
                            device_sq.give_back(&sq_memory, slot, 0);
                            device_sq.publish(&sq_memory);
                            device_cq.push(&cq_memory, &u32::from(slot).to_le_bytes(), false).unwrap();
                            let _ = device_cq.publish(&cq_memory);
                            completed.push_back(u32::from(slot));
                        }
                    }
                    _ => {
                        let slot = poll(&mut cq, &cq_memory);
                        prop_assert_eq!(slot, completed.pop_front());
                        if let Some(slot) = slot {
                            prop_assert_eq!(sq.complete(slot as u16), Ok(()));
                        }
                    }
                }
            }
        }
    }

    /// Whatever a process writes over its ring, the device's calls return and stay within the ring.
    #[test]
    fn garbage_never_leaves_the_ring(seed in prop::collection::vec((0u32..360, any::<u8>()), 1..400)) {
        let (memory, _, mut device) = work_queue(4);
        let mut cq = DeviceCq::new(layout(4));
        let size = layout(4).size();
        for (offset, byte) in seed {
            memory.write(offset % size, &[byte]);
            match device.fetch(&memory) {
                Ok(Some(slot)) => {
                    prop_assert!(slot < 4);
                    device.give_back(&memory, slot, 0);
                }
                Ok(None) => (),
                Err(_) => device.reset(&memory),
            }
            prop_assert!(device.outstanding() <= 4);
            let _ = device.enable_doorbell(&memory);
            let _ = cq.push(&memory, &[0; 38], false);
            let _ = cq.publish(&memory);
        }
    }
}
