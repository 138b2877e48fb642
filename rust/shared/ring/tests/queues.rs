// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Work queues: order, limits, wrapping positions, doorbells, and hostile owners.
#![cfg(not(loom))]

mod common;

use common::*;
use virtio_rdma_ring::DeviceQueue;
use virtio_rdma_ring::RingError;
use virtio_rdma_ring::RingMemory;
use virtio_rdma_ring::WorkQueue;

// abi
#[test]
fn positions_wrap_at_every_ring_size() {
    for shift in 1..=15 {
        let slots = 1u32 << shift;
        // The positions wrap after half of the work requests.
        let start = 0u32.wrapping_sub(50_000);
        let (memory, mut driver, mut device) = work_queue(slots, start);
        let batch = (slots - 1).clamp(1, 1000);
        let mut value = 0;
        while value < 100_000 {
            for _ in 0..batch {
                post(&mut driver, &memory, value);
                value += 1;
            }
            assert!(driver.publish(&memory), "the device sleeps");
            for expected in value - batch..value {
                assert_eq!(fetch(&mut device, &memory), Some(expected));
                device.complete();
                driver.complete(start.wrapping_add(expected)).unwrap();
            }
            assert_eq!(device.fetch(&memory), Ok(None));
            assert!(!device.enable_doorbell(&memory));
        }
    }
}

// abi: R-532
#[test]
fn a_full_queue_has_no_slot_until_a_completion_is_polled() {
    for start in STARTS {
        let at = |ahead| start.wrapping_add(ahead);
        let (memory, mut driver, mut device) = work_queue(4, start);
        for value in 0..4 {
            post(&mut driver, &memory, value);
        }
        assert_eq!(driver.reserve(), None);
        assert_eq!(driver.reserved(), at(4));
        assert!(!driver.is_outstanding(start), "not published");
        assert!(driver.publish(&memory));
        for (ahead, outstanding) in [(u32::MAX, false), (0, true), (3, true), (4, false)] {
            assert_eq!(driver.is_outstanding(at(ahead)), outstanding);
        }
        for _ in 0..3 {
            device.fetch(&memory).unwrap().unwrap();
            device.complete();
        }
        assert_eq!(
            driver.reserve(),
            None,
            "the device's progress frees nothing"
        );
        driver.complete(at(2)).unwrap();
        let free = driver.free_slots();
        assert_eq!(free, 3, "a completion frees the slots before its own");
        for position in [at(1), at(2), at(4), at(0x8000_0003), at(u32::MAX)] {
            assert_eq!(driver.complete(position), Err(RingError::NotOutstanding));
        }
        assert_eq!(driver.reclaim(at(5)), Err(RingError::NotOutstanding));
        let backwards = driver.reclaim(at(2));
        assert_eq!(backwards, Err(RingError::NotOutstanding));
        assert_eq!(driver.reclaim(at(3)), Ok(()));
        driver.complete(at(3)).unwrap();
        assert_eq!(driver.complete(at(3)), Err(RingError::NotOutstanding));
        assert_eq!(driver.free_slots(), 4);
    }
}

// abi: R-530
#[test]
fn a_reserved_slot_is_not_outstanding_before_it_is_published() {
    for start in STARTS {
        let (memory, mut driver, mut device) = work_queue(4, start);
        post(&mut driver, &memory, 7);
        assert_eq!(driver.complete(start), Err(RingError::NotOutstanding));
        assert_eq!(device.fetch(&memory), Ok(None));
    }
}

#[test]
fn withdrawn_slots_are_reserved_again() {
    for start in STARTS {
        let (memory, mut driver, mut device) = work_queue(4, start);
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
        for expected in [Some(1), Some(9), None] {
            assert_eq!(fetch(&mut device, &memory), expected);
        }
    }
}

#[test]
fn a_cancelled_slot_is_reserved_next() {
    for start in STARTS {
        let (memory, mut driver, mut device) = work_queue(4, start);
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
        assert_eq!(driver.free_slots(), 2, "published slots stay");
        for expected in [Some(1), Some(9), None] {
            assert_eq!(fetch(&mut device, &memory), expected);
        }
    }
}

// abi
#[test]
fn sides_that_begin_in_the_middle_use_the_slot_of_their_position() {
    let layout = work_layout(4);
    for (start, slot) in [(2, 2), (0xffff_fffd, 1), (0x8000_0003, 3)] {
        let (memory, mut driver, mut device) = work_queue(4, start);
        post(&mut driver, &memory, 77);
        let _ = driver.publish(&memory);
        assert_eq!(memory.load(64 * slot), 77u32.to_le_bytes());
        assert_eq!(memory.position(layout.owner()), start.wrapping_add(1));
        assert_eq!(device.fetch(&memory), Ok(Some(start)));
        assert_eq!((device.outstanding(), device.available(&memory)), (1, 0));
    }
}

// abi
#[test]
fn doorbells_are_asked_for_once() {
    for start in STARTS {
        let (memory, mut driver, mut device) = work_queue(8, start);
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
}

// abi: R-531
#[test]
fn a_batch_rings_if_it_passes_the_doorbell() {
    for start in STARTS {
        let (memory, mut driver, mut device) = work_queue(8, start);
        let doorbell = driver.layout().device();
        for (ahead, rings) in [(u32::MAX, false), (0, true), (2, true), (3, false)] {
            let position = start.wrapping_add(ahead);
            memory.store_u32(doorbell, position.to_le());
            for value in 0..3 {
                post(&mut driver, &memory, value);
            }
            assert_eq!(driver.publish(&memory), rings, "{start:#x}, {ahead} ahead");
            device.reset(&memory);
            driver = WorkQueue::starting_at(*driver.layout(), start);
        }
    }
}

// abi
#[test]
fn a_polling_device_stores_its_doorbell_once() {
    for start in STARTS {
        let (memory, mut driver, mut device) = work_queue(4, start);
        let doorbell = driver.layout().device();
        device.suppress_doorbell(&memory);
        let behind = start.wrapping_sub(1);
        assert_eq!(memory.position(doorbell), behind);
        // A second store would cost the owner a cache miss.
        for turn in 0..10 {
            memory.store_u32(doorbell, 0x1234_5678);
            device.suppress_doorbell(&memory);
            assert_eq!(memory.load_u32(doorbell), 0x1234_5678, "stored again");
            memory.store_u32(doorbell, behind.to_le());
            post(&mut driver, &memory, turn);
            assert!(!driver.publish(&memory));
            assert_eq!(fetch(&mut device, &memory), Some(turn));
            device.complete();
            driver.complete(start.wrapping_add(turn)).unwrap();
        }
        assert!(!device.enable_doorbell(&memory));
        assert_eq!(memory.position(doorbell), start.wrapping_add(10));
        device.suppress_doorbell(&memory);
        assert_eq!(memory.position(doorbell), start.wrapping_add(9));
    }
}

// abi
#[test]
fn a_suppressed_doorbell_stays_quiet_until_positions_come_round() {
    let (memory, mut driver, mut device) = work_queue(2, 0);
    device.suppress_doorbell(&memory);
    // The doorbell is at position u32::MAX. The first step ends there, the second passes it.
    for (position, rings) in [(u32::MAX - 1, false), (u32::MAX, true)] {
        driver = WorkQueue::starting_at(*driver.layout(), position);
        post(&mut driver, &memory, 0);
        assert_eq!(driver.publish(&memory), rings);
    }
}

// abi: R-521
#[test]
fn the_device_bounds_the_position_of_its_owner() {
    for start in STARTS {
        let (memory, mut driver, mut device) = work_queue(4, start);
        let owner = driver.layout().owner();
        let jump = |device: &mut DeviceQueue, ahead: u32| {
            memory.store_u32(owner, start.wrapping_add(ahead).to_le());
            assert_eq!(device.fetch(&memory), Err(RingError::PositionJump));
        };
        for ahead in [5, 6, 0x8000_0000, u32::MAX] {
            jump(&mut device, ahead);
        }
        memory.store_u32(owner, start.to_le());
        for value in 0..3 {
            post(&mut driver, &memory, value);
        }
        let _ = driver.publish(&memory);
        for _ in 0..3 {
            device.fetch(&memory).unwrap().unwrap();
        }
        assert_eq!(device.outstanding(), 3);
        // The owner first moves its position ahead by more than the number of slots, then back.
        jump(&mut device, 5);
        jump(&mut device, 2);
        assert_eq!(device.outstanding(), 3);
        device.complete();
        memory.store_u32(owner, start.wrapping_add(5).to_le());
        assert_eq!(device.fetch(&memory), Ok(Some(start.wrapping_add(3))));
        assert_eq!(device.fetch(&memory), Ok(Some(start.wrapping_add(4))));
        assert_eq!(device.fetch(&memory), Ok(None));
    }
}

// abi: R-521
#[test]
fn a_position_that_was_checked_is_not_read_again() {
    for start in STARTS {
        let (memory, mut driver, mut device) = work_queue(4, start);
        for value in 0..2 {
            post(&mut driver, &memory, value);
        }
        let _ = driver.publish(&memory);
        assert_eq!(fetch(&mut device, &memory), Some(0));
        let jumped = start.wrapping_add(1000);
        memory.store_u32(driver.layout().owner(), jumped.to_le());
        assert_eq!(fetch(&mut device, &memory), Some(1));
        assert_eq!(device.fetch(&memory), Err(RingError::PositionJump));
    }
}

// abi: R-521
#[test]
fn slots_that_wait_are_counted_and_bounded() {
    for start in STARTS {
        let (memory, mut driver, mut device) = work_queue(4, start);
        assert_eq!(device.available(&memory), 0);
        for value in 0..3 {
            post(&mut driver, &memory, value);
        }
        let _ = driver.publish(&memory);
        assert_eq!(device.available(&memory), 3);
        device.fetch(&memory).unwrap();
        assert_eq!(device.available(&memory), 2);
        let jumped = start.wrapping_add(0x8000_0000);
        memory.store_u32(driver.layout().owner(), jumped.to_le());
        assert_eq!(device.available(&memory), 3, "one slot is outstanding");
    }
}

// abi: R-536
#[test]
fn reset_counts_all_that_was_posted_as_done() {
    for start in STARTS {
        let at = |ahead| start.wrapping_add(ahead);
        let (memory, mut driver, mut device) = work_queue(4, start);
        for value in 0..3 {
            post(&mut driver, &memory, value);
        }
        let _ = driver.publish(&memory);
        device.fetch(&memory).unwrap();
        device.reset(&memory);
        assert_eq!(device.outstanding(), 0);
        assert_eq!(driver.reset(), at(3));
        assert_eq!(driver.free_slots(), 4);
        assert_eq!(device.fetch(&memory), Ok(None));
        assert!(!device.enable_doorbell(&memory));
        post(&mut driver, &memory, 9);
        assert!(driver.publish(&memory));
        assert_eq!(device.fetch(&memory), Ok(Some(at(3))));
    }
}

// abi: R-536
#[test]
fn reset_ends_a_jump_and_leaves_the_doorbell_suppressed() {
    for start in STARTS {
        let (memory, driver, mut device) = work_queue(4, start);
        let layout = *driver.layout();
        device.suppress_doorbell(&memory);
        let jumped = start.wrapping_add(0x8000_0000);
        memory.store_u32(layout.owner(), jumped.to_le());
        assert_eq!(device.fetch(&memory), Err(RingError::PositionJump));
        device.reset(&memory);
        assert_eq!(device.fetch(&memory), Ok(None));
        let mut driver = WorkQueue::starting_at(layout, jumped);
        post(&mut driver, &memory, 5);
        assert!(!driver.publish(&memory));
        assert_eq!(fetch(&mut device, &memory), Some(5));
    }
}

#[test]
fn work_is_outstanding_from_its_publication_to_its_completion() {
    for start in STARTS {
        let (memory, mut driver, _device) = work_queue(4, start);
        assert!(!driver.has_outstanding());
        post(&mut driver, &memory, 1);
        post(&mut driver, &memory, 2);
        assert!(!driver.has_outstanding(), "the device does not know it yet");
        let _ = driver.publish(&memory);
        assert!(driver.has_outstanding());
        driver.complete(start).unwrap();
        assert!(driver.has_outstanding());
        driver.complete(start.wrapping_add(1)).unwrap();
        assert!(!driver.has_outstanding());
        post(&mut driver, &memory, 3);
        let _ = driver.publish(&memory);
        driver.reset();
        assert!(!driver.has_outstanding());
    }
}
