// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Consumers that arm a CQ and sleep.

use loom::sync::Arc;
use loom::sync::Mutex;
use loom::thread;
use virtio_rdma_abi::ring::ArmKind;
use virtio_rdma_abi::ring::RingKind;
use virtio_rdma_ring::Armed;
use virtio_rdma_ring::CompletionQueue;
use virtio_rdma_ring::DeviceCq;

use crate::common::*;

/// The time at which a consumer polls.
#[derive(Clone, Copy)]
enum Look {
    /// After the consumer has armed the CQ.
    AfterArming,
    /// Before the consumer arms the CQ, until the CQ is empty. The consumer does not poll again
    /// before it sleeps.
    BeforeArming,
}

/// The device side, and its event channel.
struct Device {
    memory: Arc<Memory>,
    cq: Mutex<DeviceCq>,
    event: Bell,
}

impl Device {
    fn starting_at(start: u32) -> Arc<Self> {
        let layout = layout(RingKind::Completion, SLOTS);
        Arc::new(Self {
            memory: Memory::starting_at(&layout, start),
            cq: DeviceCq::starting_at(layout, start).into(),
            event: Bell::default(),
        })
    }

    fn complete(&self, solicited: bool) {
        let mut cq = self.cq.lock().unwrap();
        cq.push(&*self.memory, &[0; 4], solicited).unwrap();
        if cq.publish(&*self.memory) {
            self.event.send();
        }
    }

    /// Arms the CQ, and rings the doorbell if needed.
    fn arm(&self, queue: &mut CompletionQueue, kind: ArmKind) {
        let armed = queue.arm(&*self.memory, kind, false);
        if armed == Armed::RingDoorbell && self.cq.lock().unwrap().publish(&*self.memory) {
            self.event.send();
        }
    }
}

fn completion_queue(start: u32) -> CompletionQueue {
    CompletionQueue::starting_at(layout(RingKind::Completion, SLOTS), start)
}

/// A device thread completes `solicited.len()` work requests. A consumer arms for `kind`, polls,
/// and sleeps until it has polled all completions.
fn consumer_wakes(name: &str, kind: ArmKind, solicited: &'static [bool], look: Look) {
    explore(name, move |start| {
        let device = Device::starting_at(start);
        let mut queue = completion_queue(start);
        let worker = thread::spawn({
            let device = device.clone();
            move || {
                for &solicited in solicited {
                    device.complete(solicited);
                }
            }
        });
        let mut polled = 0;
        loop {
            if let Look::AfterArming = look {
                device.arm(&mut queue, kind);
            }
            while queue.take(&*device.memory).unwrap().is_some() {
                polled += 1;
                queue.publish(&*device.memory);
            }
            if polled == solicited.len() {
                break;
            }
            if let Look::BeforeArming = look {
                device.arm(&mut queue, kind);
            }
            device.event.wait();
            queue.event_received(&*device.memory);
        }
        worker.join().unwrap();
    });
}

// abi
#[test]
fn no_wakeup_is_lost_for_any_completion() {
    let completions = &[false, false];
    consumer_wakes("next", ArmKind::Next, completions, Look::AfterArming);
}

// abi
#[test]
fn no_wakeup_is_lost_for_a_solicited_completion() {
    let completions = &[false, true];
    consumer_wakes(
        "solicited",
        ArmKind::Solicited,
        completions,
        Look::AfterArming,
    );
}

// abi
#[test]
fn no_wakeup_is_lost_without_a_look_after_arming() {
    let name = "next, looking before";
    consumer_wakes(name, ArmKind::Next, &[false, false], Look::BeforeArming);
    let name = "solicited, looking before";
    consumer_wakes(name, ArmKind::Solicited, &[false, true], Look::BeforeArming);
}

/// One consumer sleeps until any completion. Another consumer polls, and arms the CQ for a
/// solicited completion.
// abi
#[test]
fn a_second_consumer_does_not_take_the_event_of_the_first() {
    explore("two consumers", |start| {
        let device = Device::starting_at(start);
        let mut queue = completion_queue(start);
        device.arm(&mut queue, ArmKind::Next);
        let worker = thread::spawn({
            let device = device.clone();
            move || device.complete(false)
        });
        let _ = queue.take(&*device.memory).unwrap();
        queue.publish(&*device.memory);
        device.arm(&mut queue, ArmKind::Solicited);
        // The first consumer is woken.
        device.event.wait();
        queue.event_received(&*device.memory);
        worker.join().unwrap();
        assert!(!device.event.is_rung());
    });
}
