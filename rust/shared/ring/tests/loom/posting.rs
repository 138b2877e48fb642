// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Posting to a device that sleeps, reuse of slots, and reset.

use loom::sync::Arc;
use loom::sync::Mutex;
use loom::thread;
use virtio_rdma_abi::ring::RingKind;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_ring::CompletionQueue;
use virtio_rdma_ring::DeviceCq;
use virtio_rdma_ring::DeviceQueue;
use virtio_rdma_ring::RingMemory;
use virtio_rdma_ring::WorkQueue;

use crate::common::*;

fn work_layout() -> RingLayout {
    layout(RingKind::Work, SLOTS)
}

fn post(queue: &mut WorkQueue, memory: &Memory, bell: &Bell, value: u32) {
    let position = queue.reserve().unwrap();
    memory.write(queue.layout().slot(position), &value.to_ne_bytes());
    if queue.publish(memory) {
        bell.ring();
    }
}

fn fetch(queue: &mut DeviceQueue, memory: &Memory) -> Option<u32> {
    let position = queue.fetch(memory).unwrap()?;
    Some(memory.load(queue.layout().slot(position)))
}

/// The device fetches every posted slot with its content, although it sleeps whenever the ring is
/// empty.
// abi
#[test]
fn posted_slots_reach_a_device_that_sleeps() {
    explore("posting to a device that sleeps", |start| {
        let memory = Memory::starting_at(&work_layout(), start);
        let bell = Arc::new(Bell::default());
        let mut queue = WorkQueue::starting_at(work_layout(), start);
        let device = thread::spawn({
            let (memory, bell) = (memory.clone(), bell.clone());
            move || {
                let mut queue = DeviceQueue::starting_at(work_layout(), start);
                let mut taken = 0;
                while taken < 2 {
                    while let Some(value) = fetch(&mut queue, &memory) {
                        taken += 1;
                        assert_eq!(value, 100 + taken);
                        queue.complete();
                    }
                    if taken < 2 && !queue.enable_doorbell(&*memory) {
                        bell.wait();
                    }
                }
            }
        });
        for value in [101, 102] {
            post(&mut queue, &memory, &bell, value);
        }
        device.join().unwrap();
    });
}

/// A slot is not overwritten before the device has copied its work request. Three work requests use
/// two slots, and the owner learns only from CQEs that slots are free.
// abi
#[test]
fn slots_are_reused_after_their_completions() {
    explore("reuse of slots", |start| {
        let cq_layout = layout(RingKind::Completion, SLOTS);
        let memory = Memory::starting_at(&work_layout(), start);
        let cq_memory = Memory::starting_at(&cq_layout, start);
        let mut queue = WorkQueue::starting_at(work_layout(), start);
        let mut cq = CompletionQueue::starting_at(cq_layout, start);
        let device = thread::spawn({
            let (memory, cq_memory) = (memory.clone(), cq_memory.clone());
            move || {
                let mut queue = DeviceQueue::starting_at(work_layout(), start);
                let mut cq = DeviceCq::starting_at(cq_layout, start);
                for value in 101..104 {
                    let found = loop {
                        match fetch(&mut queue, &memory) {
                            Some(found) => break found,
                            None => thread::yield_now(),
                        }
                    };
                    assert_eq!(found, value);
                    queue.complete();
                    cq.push(&*cq_memory, &[0; 4], false).unwrap();
                    assert!(!cq.publish(&*cq_memory));
                }
            }
        });
        let bell = Bell::default();
        for value in [101, 102] {
            post(&mut queue, &memory, &bell, value);
        }
        assert!(queue.reserve().is_none());
        let position = loop {
            match cq.take(&*cq_memory).unwrap() {
                Some(position) => break position,
                None => thread::yield_now(),
            }
        };
        cq.publish(&*cq_memory);
        queue.complete(position).unwrap();
        post(&mut queue, &memory, &bell, 103);
        device.join().unwrap();
    });
}

/// A QP is reset while the device fetches or sleeps. Only work that is posted afterwards is
/// fetched.
// abi: R-536
#[test]
fn work_after_a_reset_is_fetched() {
    explore("reset", |start| {
        let memory = Memory::starting_at(&work_layout(), start);
        let bell = Arc::new(Bell::default());
        let mut queue = WorkQueue::starting_at(work_layout(), start);
        let device = Arc::new(Mutex::new(DeviceQueue::starting_at(work_layout(), start)));
        let worker = thread::spawn({
            let (memory, bell, device) = (memory.clone(), bell.clone(), device.clone());
            move || loop {
                let mut queue = device.lock().unwrap();
                match fetch(&mut queue, &memory) {
                    Some(102) => break,
                    Some(value) => assert_eq!(value, 101),
                    None if queue.enable_doorbell(&*memory) => (),
                    None => {
                        drop(queue);
                        bell.wait();
                    }
                }
            }
        });
        post(&mut queue, &memory, &bell, 101);
        device.lock().unwrap().reset(&*memory);
        assert_eq!(queue.reset(), start.wrapping_add(1));
        post(&mut queue, &memory, &bell, 102);
        worker.join().unwrap();
        assert_eq!(device.lock().unwrap().outstanding(), 1);
    });
}
