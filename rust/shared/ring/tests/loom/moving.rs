// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Queues that move to another ring while both sides use them.

use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::Ordering;
use loom::sync::Arc;
use loom::sync::Mutex;
use loom::thread;
use virtio_rdma_abi::ring::ArmKind;
use virtio_rdma_abi::ring::RingKind;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_ring::Armed;
use virtio_rdma_ring::CompletionQueue;
use virtio_rdma_ring::DeviceCq;
use virtio_rdma_ring::DeviceSharedQueue;
use virtio_rdma_ring::RingMemory;
use virtio_rdma_ring::SharedQueue;

use crate::common::*;

type Shared = SharedQueue<Box<[u16]>>;

fn list(layout: &RingLayout) -> Box<[u16]> {
    vec![0; layout.slots() as usize].into()
}

fn post(queue: &mut Shared, memory: &Memory, value: u32) {
    let slot = queue.reserve().unwrap();
    memory.write(queue.layout().slot(slot.into()), &value.to_ne_bytes());
    queue.offer(memory, slot);
    let _ = queue.publish(memory);
}

/// An SRQ grows while the device fetches. One receive is posted before the device executes the
/// command, one meanwhile, and one afterwards.
// abi
#[test]
fn a_growing_srq_keeps_its_order() {
    explore("SRQ that grows", |start| {
        let layouts = [SLOTS, 2 * SLOTS].map(|slots| layout(RingKind::Shared, slots));
        let old = Memory::starting_at(&layouts[0], start);
        let new = Memory::starting_at(&layouts[1], 0);
        let command = Arc::new(AtomicBool::new(false));
        let mut queue = Shared::starting_at(layouts[0], list(&layouts[0]), start);
        post(&mut queue, &old, 101);
        let device = thread::spawn({
            let (old, new, command) = (old.clone(), new.clone(), command.clone());
            move || {
                let mut queue = DeviceSharedQueue::starting_at(layouts[0], start);
                let (mut memory, mut layout) = (&old, &layouts[0]);
                let mut taken = 0;
                while taken < 3 {
                    if layout.slots() == SLOTS && command.load(Ordering::Acquire) {
                        queue.moved(layouts[1]);
                        (memory, layout) = (&new, &layouts[1]);
                        command.store(false, Ordering::Release);
                    }
                    match queue.fetch(&**memory).unwrap() {
                        Some(slot) => {
                            taken += 1;
                            assert_eq!(memory.load(layout.slot(slot.into())), 100 + taken);
                        }
                        None => thread::yield_now(),
                    }
                }
            }
        });
        queue.copy_to(&*old, &layouts[1], &*new, &mut [0; 4]);
        command.store(true, Ordering::Release);
        // The slot is published in the new ring first: a device that has seen the position in the
        // old ring must find the work request in the new ring.
        let slot = queue.reserve().unwrap();
        new.write(layouts[1].slot(slot.into()), &102u32.to_ne_bytes());
        queue.mirror(&layouts[1], &*new, slot);
        old.write(layouts[0].slot(slot.into()), &102u32.to_ne_bytes());
        queue.offer(&*old, slot);
        let _ = queue.publish(&*old);
        while command.load(Ordering::Acquire) {
            thread::yield_now();
        }
        queue.moved(layouts[1], list(&layouts[1]));
        post(&mut queue, &new, 103);
        device.join().unwrap();
    });
}

/// The device side of a CQ that moves, and its event channel.
struct Device {
    memory: [Arc<Memory>; 2],
    /// The device side, and the index of the ring that it uses.
    cq: Mutex<(DeviceCq, usize)>,
    event: Bell,
}

impl Device {
    fn complete(&self, solicited: bool) {
        let mut cq = self.cq.lock().unwrap();
        let (cq, ring) = &mut *cq;
        let value = [101u32, 201][*ring];
        cq.push(&*self.memory[*ring], &value.to_ne_bytes(), solicited)
            .unwrap();
        if cq.publish(&*self.memory[*ring]) {
            self.event.send();
        }
    }

    fn doorbell(&self) {
        let mut cq = self.cq.lock().unwrap();
        let (cq, ring) = &mut *cq;
        if cq.publish(&*self.memory[*ring]) {
            self.event.send();
        }
    }

    /// Executes RESIZE_CQ. Returns the position at which the old ring ends.
    fn resize(&self, layout: RingLayout) -> u32 {
        let mut cq = self.cq.lock().unwrap();
        let end = cq.0.published();
        cq.0.moved(layout);
        cq.1 = 1;
        end
    }
}

/// A consumer sleeps until an event while its CQ moves and two work requests complete.
fn resize(name: &str, kind: ArmKind, solicited: [bool; 2]) {
    explore(name, move |start| {
        let layouts = [SLOTS, 2 * SLOTS].map(|slots| layout(RingKind::Completion, slots));
        let old = Memory::starting_at(&layouts[0], start);
        let new = Memory::starting_at(&layouts[1], 0);
        let device = Arc::new(Device {
            memory: [old.clone(), new.clone()],
            cq: Mutex::new((DeviceCq::starting_at(layouts[0], start), 0)),
            event: Bell::default(),
        });
        let worker = thread::spawn({
            let device = device.clone();
            move || {
                for solicited in solicited {
                    device.complete(solicited);
                }
            }
        });
        let mut queue = CompletionQueue::starting_at(layouts[0], start);
        if queue.arm(&*old, kind, false) == Armed::RingDoorbell {
            device.doorbell();
        }
        let end = device.resize(layouts[1]);
        let mut polled = 0;
        let mut held = 0;
        while !queue.is_at(end) {
            // abi: R-583
            assert!(queue.take(&*old).unwrap().is_some());
            held += 1;
        }
        let next = CompletionQueue::new(layouts[1]);
        // abi
        if queue.moved(next, &*new, held != 0) {
            device.doorbell();
        }
        while polled != 2 {
            // abi: R-581
            device.event.wait();
            queue.event_received(&*new);
            polled += std::mem::take(&mut held);
            if queue.arm(&*new, kind, false) == Armed::RingDoorbell {
                device.doorbell();
            }
            while let Some(position) = queue.take(&*new).unwrap() {
                // abi: R-580
                assert_eq!(new.load(layouts[1].slot(position)), 201);
                queue.publish(&*new);
                polled += 1;
            }
        }
        worker.join().unwrap();
    });
}

#[test]
fn a_moving_cq_wakes_its_consumer() {
    resize("CQ that moves, next", ArmKind::Next, [false, false]);
    resize(
        "CQ that moves, solicited",
        ArmKind::Solicited,
        [false, true],
    );
}
