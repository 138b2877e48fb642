// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! More completions than slots.

use loom::thread;
use virtio_rdma_abi::ring::RingKind;
use virtio_rdma_ring::CompletionQueue;
use virtio_rdma_ring::DeviceCq;

use crate::common::*;

/// A slot of a completion queue is not overwritten before its CQE is copied out. Three completions
/// use two slots.
// abi
#[test]
fn completions_pass_through_fewer_slots() {
    explore("completions through fewer slots", |start| {
        let layout = layout(RingKind::Completion, SLOTS);
        let memory = Memory::starting_at(&layout, start);
        let mut queue = CompletionQueue::starting_at(layout, start);
        let device = thread::spawn({
            let memory = memory.clone();
            move || {
                let mut queue = DeviceCq::starting_at(layout, start);
                let mut pushed = 0u32;
                while pushed < 3 {
                    let value = 101 + pushed;
                    if queue.push(&*memory, &value.to_ne_bytes(), false).is_ok() {
                        pushed += 1;
                        assert!(!queue.publish(&*memory));
                    } else {
                        thread::yield_now();
                    }
                }
            }
        });
        let mut polled = 0;
        while polled < 3 {
            if let Some(position) = queue.take(&*memory).unwrap() {
                polled += 1;
                assert_eq!(memory.load(layout.slot(position)), 100 + polled);
                queue.publish(&*memory);
            } else {
                thread::yield_now();
            }
        }
        device.join().unwrap();
    });
}
