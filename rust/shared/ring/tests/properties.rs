// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Random work compared with a model, and random bytes in the ring.
#![cfg(not(loom))]

mod common;

use std::collections::VecDeque;

use common::*;
use proptest::prelude::*;
use virtio_rdma_abi::ring::ArmKind;
use virtio_rdma_ring::Armed;
use virtio_rdma_ring::DeviceCq;
use virtio_rdma_ring::DeviceQueue;
use virtio_rdma_ring::DeviceSharedQueue;
use virtio_rdma_ring::RingMemory;

fn start() -> impl Strategy<Value = u32> {
    prop_oneof![
        Just(0),
        (0u32..100).prop_map(|ahead| u32::MAX - ahead),
        any::<u32>()
    ]
}

fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![Just(0), Just(0xff), any::<u8>()]
}

proptest! {
    /// Random batches through a send queue and its completion queue, compared with a list of the
    /// outstanding work requests.
    // abi
    #[test]
    fn work_completes_in_order(
        shift in 1u32..5,
        sq_start in start(),
        cq_start in start(),
        steps in prop::collection::vec((0u8..4, 1u32..20), 1..400),
    ) {
        let (sq_memory, mut sq, mut device_sq) = work_queue(1 << shift, sq_start);
        let (cq_memory, mut cq, mut device_cq) = completion_queue(1 << shift, cq_start);
        let (mut next, mut posted, mut fetched, mut completed, mut polled) =
            (0u32, VecDeque::new(), VecDeque::new(), VecDeque::new(), sq_start);
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
                        let value = fetch(&mut device_sq, &sq_memory);
                        prop_assert_eq!(value, posted.pop_front());
                        fetched.extend(value);
                    }
                    2 => {
                        if let Some(value) = fetched.pop_front() {
                            device_sq.complete();
                            let _ = complete(&mut device_cq, &cq_memory, value, false);
                            completed.push_back(value);
                        }
                    }
                    _ => {
                        let value = poll(&mut cq, &cq_memory);
                        prop_assert_eq!(value, completed.pop_front());
                        if value.is_some() {
                            prop_assert_eq!(sq.complete(polled), Ok(()));
                            polled = polled.wrapping_add(1);
                        }
                    }
                }
            }
        }
    }

    /// Rings that start at any position behave like rings that start at 0.
    // abi: R-501
    #[test]
    fn the_first_position_changes_nothing(
        start in any::<u32>(),
        steps in prop::collection::vec((0u8..5, any::<bool>()), 1..200),
    ) {
        let run = |start| {
            let (sq_memory, mut sq, mut device_sq) = work_queue(4, start);
            let (cq_memory, mut cq, mut device_cq) = completion_queue(4, start);
            steps
                .iter()
                .map(|&(step, choice)| match step {
                    0 => match sq.reserve() {
                        Some(position) => position.wrapping_sub(start),
                        None => u32::MAX,
                    },
                    1 => u32::from(sq.publish(&sq_memory)),
                    2 => match device_sq.fetch(&sq_memory).unwrap() {
                        Some(position) => {
                            device_sq.complete();
                            let _ = sq.complete(position);
                            position.wrapping_sub(start)
                        }
                        None => 100 + u32::from(device_sq.enable_doorbell(&sq_memory)),
                    },
                    3 => {
                        let _ = device_cq.push(&cq_memory, &[0; 4], choice);
                        u32::from(device_cq.publish(&cq_memory))
                    }
                    _ => {
                        let kind = [ArmKind::Next, ArmKind::Solicited][usize::from(choice)];
                        let armed = cq.arm(&cq_memory, kind, choice);
                        let polled = poll(&mut cq, &cq_memory).is_some();
                        u32::from(armed == Armed::Waiting) + 2 * u32::from(polled)
                    }
                })
                .collect::<Vec<_>>()
        };
        prop_assert_eq!(run(start), run(0));
    }

    /// A process may overwrite its rings with anything: the device's calls return and stay within
    /// the rings.
    // abi
    #[test]
    fn garbage_never_leaves_the_ring(
        start in start(),
        seed in prop::collection::vec((0u32..480, byte()), 1..400),
    ) {
        let (memory, shared_memory) = (
            Memory::starting_at(&completion_layout(4), start),
            Memory::starting_at(&shared_layout(4), start),
        );
        let mut device = DeviceQueue::starting_at(work_layout(4), start);
        let mut shared = DeviceSharedQueue::starting_at(shared_layout(4), start);
        let mut cq = DeviceCq::starting_at(completion_layout(4), start);
        let mut known = start;
        for (offset, byte) in seed {
            memory.write(offset % completion_layout(4).size(), &[byte]);
            shared_memory.write(offset % shared_layout(4).size(), &[byte]);
            match device.fetch(&memory) {
                Ok(Some(position)) => {
                    prop_assert_eq!(position, known);
                    known = known.wrapping_add(1);
                    prop_assert!(device.outstanding() <= 4);
                    if byte % 2 == 0 {
                        device.complete();
                    }
                }
                Ok(None) => (),
                Err(_) => {
                    known = memory.position(work_layout(4).owner());
                    device.reset(&memory);
                }
            }
            prop_assert!(device.available(&memory) <= 4);
            let _ = device.enable_doorbell(&memory);
            device.suppress_doorbell(&memory);
            if let Ok(Some(slot)) = shared.fetch(&shared_memory) {
                prop_assert!(slot < 4);
                shared.complete();
            }
            prop_assert!(shared.available(&shared_memory) <= 4);
            let before = cq.unpolled(&memory);
            if cq.push(&memory, &[0; 38], false).is_ok() {
                prop_assert!(before != Ok(4));
            }
            let _ = cq.publish(&memory);
            let after = cq.unpolled(&memory);
            prop_assert!(after.is_ok_and(|unpolled| unpolled <= 4) || before.is_err());
        }
    }
}
