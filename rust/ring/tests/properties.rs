// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Random work against a model, and random bytes in the ring.
#![cfg(not(loom))]

mod common;

use std::collections::VecDeque;

use common::*;
use proptest::prelude::*;
use virtio_rdma_ring::DeviceCq;
use virtio_rdma_ring::RingMemory;

proptest! {
    /// Random batches through a send queue and its completion queue, against a list of what is outstanding.
    #[test]
    fn work_completes_in_order(shift in 1u32..5, steps in prop::collection::vec((0u8..4, 1u32..20), 1..400)) {
        let (sq_memory, mut sq, mut device_sq) = work_queue(1 << shift);
        let (cq_memory, mut cq, mut device_cq) = completion_queue(1 << shift);
        let (mut next, mut posted, mut fetched, mut completed, mut polled) =
            (0u32, VecDeque::new(), VecDeque::new(), VecDeque::new(), 0u16);
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
                        if slot.is_some() {
                            prop_assert_eq!(sq.complete(polled), Ok(()));
                            polled += 1;
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
