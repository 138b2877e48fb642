// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Shared receive queues: slots freed in any order, queues that grow, and hostile owners.
#![cfg(not(loom))]

mod common;

use std::collections::VecDeque;

use common::*;
use proptest::prelude::*;
use virtio_rdma_abi::ring::RingKind;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_ring::DeviceSharedQueue;
use virtio_rdma_ring::RingError;
use virtio_rdma_ring::RingMemory;
use virtio_rdma_ring::SharedQueue;

type Shared = SharedQueue<Box<[u16]>>;

fn list(slots: u32) -> Box<[u16]> {
    vec![0; slots as usize].into()
}

/// Both sides of a shared queue that starts at `position`.
fn shared_queue(slots: u32, position: u32) -> (Memory, Shared, DeviceSharedQueue) {
    let layout = shared_layout(slots);
    (
        Memory::starting_at(&layout, position),
        SharedQueue::starting_at(layout, list(slots), position),
        DeviceSharedQueue::starting_at(layout, position),
    )
}

fn fill(queue: &mut Shared, memory: &Memory, value: u32) -> Option<u16> {
    let slot = queue.reserve()?;
    memory.write(queue.layout().slot(slot.into()), &value.to_le_bytes());
    queue.offer(memory, slot);
    Some(slot)
}

fn fetch(queue: &mut DeviceSharedQueue, memory: &Memory) -> Option<(u16, u32)> {
    let slot = queue.fetch(memory).unwrap()?;
    let value = u32::from_le_bytes(memory.load(queue.layout().slot(slot.into())));
    Some((slot, value))
}

// abi: R-575
#[test]
fn a_slot_is_free_once_its_own_completion_was_polled() {
    for start in STARTS {
        let (memory, mut driver, mut device) = shared_queue(4, start);
        for value in 0..4 {
            fill(&mut driver, &memory, value).unwrap();
        }
        assert_eq!(driver.reserve(), None);
        assert_eq!(fetch(&mut device, &memory), None, "not published");
        assert!(driver.publish(&memory));
        assert!(!driver.publish(&memory), "nothing new");
        let slots: Vec<u16> = (0..4)
            .map(|value| {
                let (slot, found) = fetch(&mut device, &memory).unwrap();
                assert_eq!(found, value);
                slot
            })
            .collect();
        device.complete();
        assert_eq!(
            driver.reserve(),
            None,
            "the device's progress frees nothing"
        );
        driver.complete(slots[2]).unwrap();
        assert_eq!(driver.free_slots(), 1, "those before it stay in use");
        assert_eq!(driver.complete(slots[2]), Err(RingError::NotOutstanding));
        assert_eq!(driver.complete(4), Err(RingError::BadSlot));
        assert_eq!(driver.complete(u16::MAX), Err(RingError::BadSlot));
        assert_eq!(fill(&mut driver, &memory, 9), Some(slots[2]));
        let _ = driver.publish(&memory);
        assert_eq!(fetch(&mut device, &memory), Some((slots[2], 9)));
    }
}

// abi
#[test]
fn the_longest_ring_is_used_up_and_wraps() {
    let (memory, mut driver, mut device) = shared_queue(32_768, u32::MAX - 50_000);
    for round in 0..3 {
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
        // Completes the slots in another order than that of fetching.
        slots.reverse();
        for slot in slots {
            device.complete();
            driver.complete(slot).unwrap();
        }
        assert_eq!(driver.free_slots(), 32_768);
    }
}

// abi
#[test]
fn order_names_the_slot_of_each_position() {
    for start in STARTS {
        let (memory, mut driver, mut device) = shared_queue(4, start);
        let layout = *driver.layout();
        let order = |position| u16::from_le(memory.load_u16(layout.order(position)));
        for slot in 0..4 {
            assert_eq!(fill(&mut driver, &memory, 0), Some(slot));
        }
        let _ = driver.publish(&memory);
        for _ in 0..4 {
            fetch(&mut device, &memory).unwrap();
        }
        for slot in [1, 3] {
            device.complete();
            driver.complete(slot).unwrap();
        }
        // The slot freed last is reserved first.
        for (ahead, slot) in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (5, 1)] {
            let position = start.wrapping_add(ahead);
            if ahead >= 4 {
                assert_eq!(fill(&mut driver, &memory, 0), Some(slot));
            }
            assert_eq!(order(position), slot);
        }
    }
}

// abi: R-521
#[test]
fn the_device_bounds_the_position_of_its_owner() {
    for start in STARTS {
        let (memory, mut driver, mut device) = shared_queue(4, start);
        let owner = driver.layout().owner();
        let jump = |device: &mut DeviceSharedQueue, ahead: u32| {
            memory.store_u32(owner, start.wrapping_add(ahead).to_le());
            assert_eq!(device.fetch(&memory), Err(RingError::PositionJump));
        };
        for ahead in [5, 0x8000_0000, u32::MAX] {
            jump(&mut device, ahead);
        }
        memory.store_u32(owner, start.to_le());
        fill(&mut driver, &memory, 7).unwrap();
        let _ = driver.publish(&memory);
        assert_eq!(fetch(&mut device, &memory), Some((0, 7)));
        jump(&mut device, 0);
        jump(&mut device, 5);
        // The bound depends on the number of completed work requests, in any order.
        device.complete();
        memory.store_u32(owner, start.wrapping_add(5).to_le());
        assert_eq!(device.available(&memory), 4);
        assert!(device.fetch(&memory).is_ok());
    }
}

// abi
#[test]
fn the_device_bounds_the_slots_of_its_owner() {
    for start in STARTS {
        let (memory, mut driver, mut device) = shared_queue(4, start);
        let layout = *driver.layout();
        for value in 0..2 {
            fill(&mut driver, &memory, value).unwrap();
        }
        let _ = driver.publish(&memory);
        for bad in [4, 5, 0x8000, u16::MAX] {
            memory.store_u16(layout.order(start), bad.to_le());
            assert_eq!(device.fetch(&memory), Err(RingError::BadSlot));
        }
        // The device's position has not changed. A slot may appear twice in `order`: this harms
        // only the owner.
        memory.store_u16(layout.order(start), 1u16.to_le());
        assert_eq!(fetch(&mut device, &memory), Some((1, 1)));
        assert_eq!(fetch(&mut device, &memory), Some((1, 1)));
        assert_eq!(device.fetch(&memory), Ok(None));
    }
}

// abi: R-572
#[test]
fn a_polling_device_stores_its_doorbell_once_a_ring() {
    for start in STARTS {
        let (memory, mut driver, mut device) = shared_queue(2, start);
        let layout = *driver.layout();
        device.suppress_doorbell(&memory);
        assert_eq!(memory.position(layout.device()), start.wrapping_sub(1));
        memory.store_u32(layout.device(), 0x1234_5678);
        device.suppress_doorbell(&memory);
        assert_eq!(memory.load_u32(layout.device()), 0x1234_5678);

        let longer = shared_layout(4);
        let target = Memory::new(&longer);
        driver.copy_to(&memory, &longer, &target, &mut [0; 64]);
        device.moved(longer);
        driver.moved(longer, list(4));
        device.suppress_doorbell(&target);
        assert_eq!(target.position(longer.device()), start.wrapping_sub(1));
        fill(&mut driver, &target, 1).unwrap();
        assert!(!driver.publish(&target));
    }
}

// abi
#[test]
fn a_queue_that_grows_keeps_positions_slots_and_order() {
    for start in STARTS {
        let at = |ahead| start.wrapping_add(ahead);
        let (memory, mut driver, mut device) = shared_queue(2, start);
        for value in 0..2 {
            fill(&mut driver, &memory, value).unwrap();
        }
        let _ = driver.publish(&memory);
        assert_eq!(fetch(&mut device, &memory), Some((0, 0)));
        device.complete();
        driver.complete(0).unwrap();
        // The slots of the new ring are longer.
        let longer = RingLayout::new(RingKind::Shared, 8, 7).unwrap();
        let target = Memory::new(&longer);
        driver.copy_to(&memory, &longer, &target, &mut [0; 64]);
        assert_eq!(target.position(longer.owner()), at(2));
        // Posts a receive to both rings while the device still uses the old ring.
        let slot = driver.reserve().unwrap();
        for (memory, layout) in [(&target, &longer), (&memory, driver.layout())] {
            memory.write(layout.slot(slot.into()), &2u32.to_le_bytes());
        }
        driver.mirror(&longer, &target, slot);
        driver.offer(&memory, slot);
        let _ = driver.publish(&memory);
        assert_eq!(target.position(longer.owner()), at(3));
        assert_eq!(driver.reserve(), None);
        assert_eq!(fetch(&mut device, &memory), Some((1, 1)));
        device.moved(longer);
        driver.moved(longer, list(8));
        assert_eq!(driver.free_slots(), 6);
        assert_eq!(device.available(&target), 1);
        assert_eq!(fetch(&mut device, &target), Some((0, 2)));
        for value in 3..9 {
            fill(&mut driver, &target, value).unwrap();
        }
        assert_eq!(driver.reserve(), None);
        let _ = driver.publish(&target);
        for value in 3..9 {
            assert_eq!(fetch(&mut device, &target).unwrap().1, value);
        }
        assert_eq!(target.position(longer.owner()), at(9));
        assert_eq!(device.fetch(&target), Ok(None));
    }
}

proptest! {
    /// Random work, completed in random order, while the queue sometimes moves to a longer ring.
    /// Receives are fetched once each, in the order of posting.
    // abi
    #[test]
    fn order_survives_moves(
        start in any::<prop::sample::Index>(),
        steps in prop::collection::vec((0u8..8, 0usize..64), 1..500),
    ) {
        let start = *start.get(&STARTS);
        let (mut memory, mut driver, mut device) = shared_queue(2, start);
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
                        device.complete();
                        prop_assert_eq!(driver.complete(slot), Ok(()));
                    }
                }
                _ if slots < 64 => {
                    let longer = RingLayout::new(RingKind::Shared, 2 * slots, 7).unwrap();
                    let target = Memory::new(&longer);
                    driver.copy_to(&memory, &longer, &target, &mut [0; 64]);
                    // Steps of both sides before the device moves.
                    if let Some(slot) = driver.reserve() {
                        for (memory, layout) in [(&target, &longer), (&memory, driver.layout())] {
                            memory.write(layout.slot(slot.into()), &next.to_le_bytes());
                        }
                        driver.mirror(&longer, &target, slot);
                        driver.offer(&memory, slot);
                        posted.push_back(next);
                        next += 1;
                    }
                    let _ = driver.publish(&memory);
                    if choice % 2 == 0 {
                        let found = fetch(&mut device, &memory);
                        prop_assert_eq!(found.map(|(_, value)| value), posted.pop_front());
                        fetched.extend(found.map(|(slot, _)| slot));
                    }
                    device.moved(longer);
                    driver.moved(longer, list(2 * slots));
                    memory = target;
                    let producer = start.wrapping_add(next);
                    prop_assert_eq!(memory.position(longer.owner()), producer);
                    prop_assert_eq!(device.available(&memory) as usize, posted.len());
                }
                _ => {}
            }
        }
    }
}
