// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Order, limits, wrapping of 16-bit indices, and what the other side of a ring may not do.
#![cfg(not(loom))]

mod common;

use common::*;
use virtio_rdma_ring::RingError;
use virtio_rdma_ring::RingMemory;
use virtio_rdma_ring::WorkQueue;

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
                driver.complete(expected as u16).unwrap();
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
    assert_eq!(driver.complete(2), Err(RingError::NotOutstanding));
    assert_eq!(driver.complete(4), Err(RingError::NotOutstanding));
    assert_eq!(driver.complete(0x8003), Err(RingError::NotOutstanding));
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
fn withdrawn_slots_are_reserved_again() {
    let (memory, mut driver, mut device) = work_queue(4);
    post(&mut driver, &memory, 1);
    let _ = driver.publish(&memory);
    for value in 2..5 {
        post(&mut driver, &memory, value);
    }
    driver.withdraw();
    assert!(!driver.publish(&memory));
    assert_eq!(driver.free_slots(), 3);
    post(&mut driver, &memory, 9);
    let _ = driver.publish(&memory);
    for expected in [1, 9] {
        let slot = device.fetch(&memory).unwrap().unwrap();
        let offset = driver.layout().slot(slot);
        assert_eq!(u32::from_le_bytes(memory.load(offset)), expected);
    }
    assert_eq!(device.fetch(&memory), Ok(None));
}

#[test]
fn a_cancelled_slot_is_reserved_next() {
    let (memory, mut driver, mut device) = work_queue(4);
    driver.cancel();
    assert_eq!(driver.free_slots(), 4, "there was none");
    for value in [1, 2, 3] {
        post(&mut driver, &memory, value);
    }
    driver.cancel();
    driver.cancel();
    post(&mut driver, &memory, 9);
    let _ = driver.publish(&memory);
    driver.cancel();
    assert_eq!(driver.free_slots(), 2, "what was published stays");
    for expected in [1, 9] {
        let slot = device.fetch(&memory).unwrap().unwrap();
        let offset = driver.layout().slot(slot);
        assert_eq!(u32::from_le_bytes(memory.load(offset)), expected);
    }
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
        driver.complete(turn as u16).unwrap();
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
    assert_eq!(driver.take(&memory), Err(RingError::IndexJump));
    memory.store_u16(used, 0);
    for _ in 0..2 {
        device.push(&memory, &[0; 4], false).unwrap();
    }
    assert!(!device.publish(&memory));
    assert!(driver.take(&memory).unwrap().is_some());
    memory.store_u16(used, u16::to_le(1));
    assert_eq!(
        driver.for_each_unpolled(&memory, |_| ()),
        Err(RingError::IndexJump)
    );
    memory.store_u32(driver.layout().used_ring(1), u32::MAX);
    assert_eq!(
        driver.take(&memory),
        Ok(Some(1)),
        "slots are known by their order"
    );
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
        .for_each_unpolled(&memory, |position| {
            let offset = layout.slot(position);
            seen.push(u32::from_le_bytes(memory.load(offset)));
            memory.write(offset, &[0xff; 4]);
        })
        .unwrap();
    assert_eq!(seen, [1, 2, 3, 4]);
    assert_eq!(poll(&mut driver, &memory), Some(u32::MAX));
}

#[test]
fn slots_that_wait_are_counted_and_bounded() {
    let (memory, mut driver, mut device) = work_queue(4);
    assert_eq!(device.available(&memory), 0);
    for value in 0..3 {
        post(&mut driver, &memory, value);
    }
    let _ = driver.publish(&memory);
    assert_eq!(device.available(&memory), 3);
    device.fetch(&memory).unwrap();
    assert_eq!(device.available(&memory), 2);
    memory.store_u16(driver.layout().avail_idx(), 0x8000);
    assert_eq!(device.available(&memory), 3, "one slot is outstanding");
}

#[test]
fn work_is_outstanding_from_its_publication_to_its_completion() {
    let (memory, mut driver, _device) = work_queue(4);
    assert!(!driver.has_outstanding());
    post(&mut driver, &memory, 1);
    post(&mut driver, &memory, 2);
    assert!(!driver.has_outstanding(), "the device does not know it yet");
    let _ = driver.publish(&memory);
    assert!(driver.has_outstanding());
    driver.complete(0).unwrap();
    assert!(driver.has_outstanding());
    driver.complete(1).unwrap();
    assert!(!driver.has_outstanding());
    post(&mut driver, &memory, 3);
    let _ = driver.publish(&memory);
    driver.reset();
    assert!(!driver.has_outstanding());
}
