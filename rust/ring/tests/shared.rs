// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Shared receive queues: slots that come back in any order, and queues that move to another ring.
#![cfg(not(loom))]

mod common;

use std::collections::VecDeque;

use common::*;
use proptest::prelude::*;
use virtio_rdma_abi::ring::ArmKind;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_ring::Armed;
use virtio_rdma_ring::CompletionQueue;
use virtio_rdma_ring::DeviceQueue;
use virtio_rdma_ring::RingError;
use virtio_rdma_ring::RingMemory;
use virtio_rdma_ring::SharedQueue;

type Shared = SharedQueue<Box<[u16]>>;

fn list(slots: u32) -> Box<[u16]> {
    vec![0; slots as usize].into()
}

fn shared_queue(slots: u32) -> (Memory, Shared, DeviceQueue) {
    let memory = Memory::new(&layout(slots));
    let driver = SharedQueue::new(layout(slots), list(slots));
    (memory, driver, DeviceQueue::new(layout(slots)))
}

fn fill(queue: &mut Shared, memory: &Memory, value: u32) -> Option<u16> {
    let slot = queue.reserve()?;
    memory.write(queue.layout().slot(slot), &value.to_le_bytes());
    queue.offer(memory, slot);
    Some(slot)
}

fn fetch(queue: &mut DeviceQueue, memory: &Memory) -> Option<(u16, u32)> {
    let slot = queue.fetch(memory).unwrap()?;
    let value = u32::from_le_bytes(memory.load(queue.layout().slot(slot)));
    Some((slot, value))
}

#[test]
fn a_slot_is_free_once_its_own_completion_was_polled() {
    let (memory, mut driver, mut device) = shared_queue(4);
    for value in 0..4 {
        fill(&mut driver, &memory, value).unwrap();
    }
    assert_eq!(driver.reserve(), None);
    assert!(driver.publish(&memory));
    assert!(!driver.publish(&memory), "nothing new");
    let slots: Vec<u16> = (0..4)
        .map(|value| {
            let (slot, found) = fetch(&mut device, &memory).unwrap();
            assert_eq!(found, value);
            slot
        })
        .collect();
    device.give_back(&memory, slots[2], 0);
    device.publish(&memory);
    assert_eq!(driver.reserve(), None, "the used ring frees nothing");
    driver.complete(slots[2]).unwrap();
    assert_eq!(driver.free_slots(), 1, "those before it stay in use");
    assert_eq!(driver.complete(slots[2]), Err(RingError::NotOutstanding));
    assert_eq!(driver.complete(4), Err(RingError::BadSlot));
    assert_eq!(driver.complete(u16::MAX), Err(RingError::BadSlot));
    assert_eq!(fill(&mut driver, &memory, 9), Some(slots[2]));
    assert!(driver.publish(&memory) || device.fetch(&memory) == Ok(Some(slots[2])));
}

#[test]
fn the_longest_ring_is_used_up_and_wraps() {
    let (memory, mut driver, mut device) = shared_queue(32_768);
    for round in 0..5 {
        for value in 0..32_768 {
            fill(&mut driver, &memory, value + round).unwrap();
        }
        assert_eq!(driver.reserve(), None);
        let _ = driver.publish(&memory);
        assert_eq!(device.available(&memory), 32_768);
        let mut slots = Vec::new();
        for value in 0..32_768 {
            let (slot, found) = fetch(&mut device, &memory).unwrap();
            assert_eq!(found, value + round);
            slots.push(slot);
        }
        // Not in the order in which they were fetched.
        slots.reverse();
        for slot in slots {
            device.give_back(&memory, slot, 0);
            device.publish(&memory);
            driver.complete(slot).unwrap();
        }
        assert_eq!(driver.free_slots(), 32_768);
    }
}

proptest! {
    /// Random work, completed in random order, while the queue moves to longer rings now and then: fetched in the order of
    /// posting, nothing lost, nothing twice.
    #[test]
    fn order_survives_moves(steps in prop::collection::vec((0u8..8, 0usize..64), 1..500)) {
        let (mut memory, mut driver, mut device) = shared_queue(2);
        let (mut next, mut posted, mut fetched) = (0u32, VecDeque::new(), Vec::new());
        for (step, choice) in steps {
            let slots = driver.layout().slots();
            match step {
                0..=2 => {
                    let full = posted.len() + fetched.len() == slots as usize;
                    prop_assert_eq!(fill(&mut driver, &memory, next).is_none(), full);
                    if !full {
                        posted.push_back(next);
                        next += 1;
                    }
                    let _ = driver.publish(&memory);
                }
                3..=4 => {
                    let found = fetch(&mut device, &memory);
                    prop_assert_eq!(found.map(|(_, value)| value), posted.pop_front());
                    fetched.extend(found.map(|(slot, _)| slot));
                }
                5..=6 => {
                    if !fetched.is_empty() {
                        let slot = fetched.remove(choice % fetched.len());
                        device.give_back(&memory, slot, 0);
                        device.publish(&memory);
                        prop_assert_eq!(driver.complete(slot), Ok(()));
                    }
                }
                _ if slots < 64 => {
                    let longer = RingLayout::new(2 * slots, 7).unwrap();
                    let target = Memory::new(&longer);
                    driver.copy_to(&memory, &longer, &target, &mut [0; 64]);
                    // What happens on either side before the device moves.
                    if let Some(slot) = driver.reserve() {
                        for (memory, layout) in [(&memory, driver.layout()), (&target, &longer)] {
                            memory.write(layout.slot(slot), &next.to_le_bytes());
                        }
                        driver.mirror(&longer, &target, slot);
                        driver.offer(&memory, slot);
                        posted.push_back(next);
                        next += 1;
                    }
                    if choice % 2 == 0 {
                        let _ = driver.publish(&memory);
                        let found = fetch(&mut device, &memory);
                        prop_assert_eq!(found.map(|(_, value)| value), posted.pop_front());
                        fetched.extend(found.map(|(slot, _)| slot));
                    }
                    device.moved(longer, &target);
                    driver.moved(longer, list(2 * slots));
                    memory = target;
                    prop_assert_eq!(device.used_index(), u16::from_le(memory.load_u16(longer.used_idx())));
                }
                _ => {}
            }
        }
    }
}

/// What is armed stays armed when a CQ moves, whichever completion comes when.
#[test]
fn a_moved_cq_fires_the_event_that_was_asked_for() {
    for kind in [ArmKind::Next, ArmKind::Solicited] {
        for pending in 0..3u32 {
            for after in 0..3u32 {
                let (memory, mut driver, mut device) = completion_queue(8);
                assert_eq!(driver.arm(&memory, kind, false), Armed::Waiting);
                // What completes while the event is not due, of which the device tells nobody.
                for value in 0..pending {
                    device.push(&memory, &value.to_le_bytes(), false).unwrap();
                }
                let mut fired = u32::from(device.publish(&memory));
                let end = device.used_index();
                let longer = layout(16);
                let target = Memory::new(&longer);
                let next = CompletionQueue::new(longer, &target);
                device.moved(longer);
                for value in 0..after {
                    let value = pending + value;
                    device.push(&target, &value.to_le_bytes(), true).unwrap();
                    fired += u32::from(device.publish(&target));
                }
                for value in 0..pending {
                    assert_eq!(poll(&mut driver, &memory), Some(value));
                }
                assert_eq!(u32::from(end), pending);
                if driver.moved(next, &target, pending != 0) {
                    fired += u32::from(device.publish(&target));
                }
                if pending + after == 0 {
                    device.push(&target, &[0; 4], true).unwrap();
                    fired += u32::from(device.publish(&target));
                }
                assert_eq!(fired, 1, "{kind:?}, {pending} before, {after} after");
                driver.event_received(&target);
                for value in pending..pending + after {
                    assert_eq!(poll(&mut driver, &target), Some(value));
                }
            }
        }
    }
}

#[test]
fn a_moved_cq_that_nobody_armed_fires_nothing() {
    let (memory, mut driver, mut device) = completion_queue(8);
    device.push(&memory, &[0; 4], true).unwrap();
    assert!(!device.publish(&memory));
    let shorter = layout(2);
    let target = Memory::new(&shorter);
    let next = CompletionQueue::new(shorter, &target);
    device.moved(shorter);
    assert!(!driver.moved(next, &target, true));
    device.push(&target, &[0; 4], true).unwrap();
    assert!(!device.publish(&target));
}
