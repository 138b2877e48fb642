// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Completion queues: order, overflow, the longest ring, and invalid positions.
#![cfg(not(loom))]

mod common;

use common::*;
use virtio_rdma_ring::CompletionConsumer;
use virtio_rdma_ring::RingError;
use virtio_rdma_ring::RingMemory;

// abi
#[test]
fn a_completion_queue_overflows_when_nobody_polls() {
    for start in STARTS {
        let (memory, mut driver, mut device) = completion_queue(4, start);
        for value in 0..4u32 {
            device.push(&memory, &value.to_le_bytes(), false).unwrap();
        }
        let full = device.push(&memory, &[0; 4], false);
        assert_eq!(full, Err(RingError::Overflow));
        assert_eq!(poll(&mut driver, &memory), None, "not published");
        assert!(!device.publish(&memory));
        assert_eq!(poll(&mut driver, &memory), Some(0));
        assert!(!complete(&mut device, &memory, 4, false));
        for value in 1..5 {
            assert_eq!(poll(&mut driver, &memory), Some(value));
        }
        assert_eq!(poll(&mut driver, &memory), None);
    }
}

// abi
#[test]
fn completions_pass_the_wrap_in_order() {
    let start = u32::MAX - 1000;
    for slots in [2, 8, 1024] {
        let (memory, mut driver, mut device) = completion_queue(slots, start);
        for value in (0..5000u32).step_by(2) {
            for value in [value, value + 1] {
                device.push(&memory, &value.to_le_bytes(), false).unwrap();
            }
            assert!(!device.publish(&memory));
            assert_eq!(device.published(), start.wrapping_add(value + 2));
            for value in [value, value + 1] {
                assert_eq!(poll(&mut driver, &memory), Some(value));
            }
            assert_eq!(poll(&mut driver, &memory), None);
            for (ahead, is_next) in [(1, false), (2, true), (3, false)] {
                assert_eq!(driver.is_at(start.wrapping_add(value + ahead)), is_next);
            }
        }
    }
}

// abi
#[test]
fn the_longest_ring_is_filled_and_drained() {
    const SLOTS: u32 = 4_194_304;
    // Ring memory with only the words `owner` and `device`: the CQEs would take 256 MiB.
    struct Words(std::cell::Cell<[u32; 2]>);
    impl Words {
        fn at(offset: u32) -> usize {
            let layout = completion_layout(SLOTS);
            [layout.owner(), layout.device()]
                .iter()
                .position(|&word| word == offset)
                .unwrap()
        }
    }
    impl RingMemory for Words {
        fn load_u32(&self, offset: u32) -> u32 {
            self.0.get()[Self::at(offset)]
        }
        fn load_u32_acquire(&self, offset: u32) -> u32 {
            self.load_u32(offset)
        }
        fn store_u32(&self, offset: u32, value: u32) {
            let mut words = self.0.get();
            words[Self::at(offset)] = value;
            self.0.set(words);
        }
        fn store_u32_release(&self, offset: u32, value: u32) {
            self.store_u32(offset, value);
        }
        fn load_u64(&self, offset: u32) -> u64 {
            assert_eq!(offset, completion_layout(SLOTS).arm());
            0
        }
        fn store_u64(&self, _offset: u32, _value: u64) {
            panic!("nobody arms");
        }
        fn load_u16(&self, _offset: u32) -> u16 {
            panic!("a CQ has no order");
        }
        fn store_u16(&self, _offset: u32, _value: u16) {
            panic!("a CQ has no order");
        }
        fn read(&self, _offset: u32, _bytes: &mut [u8]) {}
        fn write(&self, offset: u32, _bytes: &[u8]) {
            assert!(offset < 64 * SLOTS && offset % 64 == 0);
        }
        fn full_barrier(&self) {}
    }

    for start in [0, 0u32.wrapping_sub(SLOTS / 2)] {
        let memory = Words([start.to_le(); 2].into());
        let layout = completion_layout(SLOTS);
        let mut device = virtio_rdma_ring::DeviceCq::starting_at(layout, start);
        let mut driver = CompletionConsumer::starting_at(layout, start);
        for _ in 0..SLOTS {
            device.push(&memory, &[], false).unwrap();
        }
        assert_eq!(device.unpolled(&memory), Ok(SLOTS));
        assert_eq!(device.push(&memory, &[], false), Err(RingError::Overflow));
        assert!(!device.publish(&memory));
        for ahead in 0..SLOTS {
            let position = start.wrapping_add(ahead);
            assert_eq!(driver.take(&memory), Ok(Some(position)));
        }
        assert_eq!(driver.take(&memory), Ok(None));
        driver.publish(&memory);
        assert_eq!(device.unpolled(&memory), Ok(0));
        assert_eq!(device.push(&memory, &[], false), Ok(()));
        // The consumer's position is further back than the ring's length.
        memory.store_u32(layout.owner(), start.to_le());
        assert_eq!(device.unpolled(&memory), Err(RingError::PositionJump));
        memory.store_u32(layout.device(), start.wrapping_add(2 * SLOTS + 1).to_le());
        assert_eq!(driver.take(&memory), Err(RingError::PositionJump));
    }
}

// abi: R-535
#[test]
fn the_driver_bounds_the_position_of_the_device() {
    for start in STARTS {
        let (memory, mut driver, mut device) = completion_queue(4, start);
        let layout = *driver.layout();
        let at = |ahead| start.wrapping_add(ahead).to_le();
        for ahead in [5, 6, 0x8000_0000, u32::MAX] {
            memory.store_u32(layout.device(), at(ahead));
            assert_eq!(driver.take(&memory), Err(RingError::PositionJump));
            let unpolled = driver.for_each_unpolled(&memory, |_| panic!("visited"));
            assert_eq!(unpolled, Err(RingError::PositionJump));
            driver.event_received(&memory);
        }
        memory.store_u32(layout.device(), at(0));
        assert_eq!(driver.take(&memory), Ok(None));
        for value in 0..2 {
            assert!(!complete(&mut device, &memory, value, false));
        }
        assert_eq!(driver.take(&memory), Ok(Some(start)));
        // The position moves back, although the second CQE is known already.
        memory.store_u32(layout.device(), at(1));
        let unpolled = driver.for_each_unpolled(&memory, |_| panic!("visited"));
        assert_eq!(unpolled, Err(RingError::PositionJump));
        assert_eq!(driver.take(&memory), Ok(Some(start.wrapping_add(1))));
        assert_eq!(driver.take(&memory), Err(RingError::PositionJump));
    }
}

// abi
#[test]
fn the_device_bounds_the_position_of_the_consumer() {
    for start in STARTS {
        let (memory, driver, mut device) = completion_queue(4, start);
        let owner = driver.layout().owner();
        for value in 0..4 {
            assert!(!complete(&mut device, &memory, value, false));
        }
        // Positions ahead of the producer, or further back than the ring's length.
        for ahead in [5, 6, 0x8000_0000, u32::MAX, u32::MAX - 4] {
            memory.store_u32(owner, start.wrapping_add(ahead).to_le());
            let full = device.push(&memory, &[0xff; 4], false);
            assert_eq!(full, Err(RingError::PositionJump), "{ahead} ahead");
            assert_eq!(device.unpolled(&memory), Err(RingError::PositionJump));
        }
        assert_eq!(device.published(), start.wrapping_add(4));
        for slot in 0..4u32 {
            let ahead = slot.wrapping_sub(start) % 4;
            let kept: [u8; 4] = memory.load(driver.layout().slot(slot));
            assert_eq!(kept, ahead.to_le_bytes(), "overwritten");
        }
        // The driver gives all slots back without polling. It loses only its own CQEs.
        memory.store_u32(owner, start.wrapping_add(4).to_le());
        for value in 0..4 {
            assert!(!complete(&mut device, &memory, value, false));
        }
        let full = device.push(&memory, &[0; 4], false);
        assert_eq!(full, Err(RingError::Overflow));
    }
}

// abi: R-533
#[test]
fn the_consumer_publishes_once_a_batch() {
    for start in STARTS {
        let (memory, mut driver, mut device) = completion_queue(4, start);
        let owner = driver.layout().owner();
        for value in 0..3 {
            assert!(!complete(&mut device, &memory, value, false));
        }
        for _ in 0..3 {
            driver.take(&memory).unwrap().unwrap();
            assert_eq!(memory.position(owner), start);
        }
        driver.publish(&memory);
        assert_eq!(memory.position(owner), start.wrapping_add(3));
        // A poll of an empty queue does not touch the device's cache line.
        memory.store_u32(owner, 0x1234_5678);
        assert_eq!(driver.take(&memory), Ok(None));
        driver.publish(&memory);
        assert_eq!(memory.load_u32(owner), 0x1234_5678);
    }
}

#[test]
fn a_look_that_finds_completions_shows_the_position() {
    for start in STARTS {
        let (memory, _, mut device) = completion_queue(4, start);
        let mut consumer = CompletionConsumer::starting_at(completion_layout(4), start);
        let nothing = consumer.peek(&memory, |_| panic!("nothing new"));
        assert_eq!(nothing, Ok(None));
        for value in 0..2 {
            assert!(!complete(&mut device, &memory, value, false));
        }
        let mut shown = None;
        let first = consumer.peek(&memory, |produced| shown = Some(produced));
        assert_eq!(first, Ok(Some(start)));
        assert_eq!(shown, Some(start.wrapping_add(2)));
        consumer.advance();
        let second = consumer.peek(&memory, |_| panic!("known already"));
        assert_eq!(second, Ok(Some(start.wrapping_add(1))));
        assert_eq!(consumer.next(), start.wrapping_add(1));
        assert_eq!(consumer.seen(), start.wrapping_add(2));
    }
}

// abi: R-534
#[test]
fn unpolled_completions_can_be_killed_where_they_lie() {
    for start in STARTS {
        let (memory, mut driver, mut device) = completion_queue(8, start);
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
}

#[test]
fn completions_before_an_end_are_visited() {
    for start in STARTS {
        let consumer = CompletionConsumer::starting_at(completion_layout(4), start);
        for (ahead, count) in [(0, 0), (1, 1), (4, 4), (5, 0), (u32::MAX, 0)] {
            let mut visited = Vec::new();
            consumer.for_each_before(start.wrapping_add(ahead), |position| {
                visited.push(position.wrapping_sub(start));
            });
            assert_eq!(visited, (0..count).collect::<Vec<_>>(), "{ahead} ahead");
        }
    }
}
