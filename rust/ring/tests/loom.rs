// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Every interleaving and every weak-memory outcome of the two sides of a ring, at the smallest sizes that matter.
#![cfg(loom)]

use std::collections::HashMap;

use loom::sync::atomic::fence;
use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::AtomicU16;
use loom::sync::atomic::AtomicU32;
use loom::sync::atomic::Ordering;
use loom::sync::Arc;
use loom::sync::Condvar;
use loom::sync::Mutex;
use loom::thread;
use virtio_rdma_abi::ring::ArmKind;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_ring::Armed;
use virtio_rdma_ring::CompletionQueue;
use virtio_rdma_ring::DeviceCq;
use virtio_rdma_ring::DeviceQueue;
use virtio_rdma_ring::RingMemory;
use virtio_rdma_ring::WorkQueue;

const SLOTS: u32 = 2;

fn layout() -> RingLayout {
    RingLayout::new(SLOTS, 6).unwrap()
}

/// Ring memory of loom's atomics, one for each word that the layout has. A slot holds one unordered double word, so
/// that a slot which is read before it was published shows an old value.
struct Memory {
    halves: HashMap<u32, AtomicU16>,
    words: HashMap<u32, AtomicU32>,
}

impl Memory {
    fn new() -> Arc<Self> {
        let layout = layout();
        let mut halves = vec![layout.avail_idx(), layout.used_idx(), layout.avail_event()];
        let mut words = vec![layout.arm()];
        for slot in 0..SLOTS as u16 {
            halves.push(layout.avail_ring(slot));
            words.extend([
                layout.slot(slot),
                layout.used_ring(slot),
                layout.used_ring(slot) + 4,
            ]);
        }
        Arc::new(Self {
            halves: halves
                .into_iter()
                .map(|offset| (offset, AtomicU16::new(0)))
                .collect(),
            words: words
                .into_iter()
                .map(|offset| (offset, AtomicU32::new(0)))
                .collect(),
        })
    }
}

impl RingMemory for Memory {
    fn load_u16(&self, offset: u32) -> u16 {
        self.halves[&offset].load(Ordering::Relaxed)
    }
    fn load_u16_acquire(&self, offset: u32) -> u16 {
        self.halves[&offset].load(Ordering::Acquire)
    }
    fn store_u16(&self, offset: u32, value: u16) {
        self.halves[&offset].store(value, Ordering::Relaxed);
    }
    fn store_u16_release(&self, offset: u32, value: u16) {
        self.halves[&offset].store(value, Ordering::Release);
    }
    fn load_u32(&self, offset: u32) -> u32 {
        self.words[&offset].load(Ordering::Relaxed)
    }
    fn store_u32(&self, offset: u32, value: u32) {
        self.words[&offset].store(value, Ordering::Relaxed);
    }
    fn read(&self, offset: u32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.load_u32(offset).to_ne_bytes());
    }
    fn write(&self, offset: u32, bytes: &[u8]) {
        self.store_u32(offset, u32::from_ne_bytes(bytes.try_into().unwrap()));
    }
    fn full_barrier(&self) {
        fence(Ordering::SeqCst);
    }
}

/// A doorbell or an event: set by one thread, waited for by another. A lost one is a deadlock, which loom reports.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// The device takes every posted slot with the content that was posted, though it sleeps whenever the ring is empty.
#[test]
fn posted_slots_reach_a_device_that_sleeps() {
    loom::model(|| {
        let memory = Memory::new();
        let bell = Arc::new(Bell::default());
        let mut queue = WorkQueue::new(layout(), &*memory);
        let device = thread::spawn({
            let (memory, bell) = (memory.clone(), bell.clone());
            move || {
                let mut queue = DeviceQueue::new(layout());
                let mut taken = 0;
                while taken < 2 {
                    while let Some(slot) = queue.fetch(&*memory).unwrap() {
                        let mut bytes = [0; 4];
                        memory.read(layout().slot(slot), &mut bytes);
                        taken += 1;
                        assert_eq!(u32::from_ne_bytes(bytes), 100 + taken);
                        queue.give_back(&*memory, slot, 0);
                        queue.publish(&*memory);
                    }
                    if taken < 2 && !queue.enable_doorbell(&*memory) {
                        bell.wait();
                    }
                }
            }
        });
        for value in [101u32, 102] {
            let slot = queue.reserve().unwrap();
            memory.write(layout().slot(slot), &value.to_ne_bytes());
            if queue.publish(&*memory) {
                bell.ring();
            }
        }
        device.join().unwrap();
    });
}

/// A slot of a completion queue is not overwritten before its CQE was copied out: three completions through two slots.
#[test]
fn completions_pass_through_fewer_slots() {
    loom::model(|| {
        let memory = Memory::new();
        let mut queue = CompletionQueue::new(layout(), &*memory);
        let device = thread::spawn({
            let memory = memory.clone();
            move || {
                let mut queue = DeviceCq::new(layout());
                let mut pushed = 0u32;
                while pushed < 3 {
                    if queue
                        .push(&*memory, &(101 + pushed).to_ne_bytes(), false)
                        .is_ok()
                    {
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
                let mut bytes = [0; 4];
                memory.read(layout().slot(position), &mut bytes);
                polled += 1;
                assert_eq!(u32::from_ne_bytes(bytes), 100 + polled);
                queue.publish(&*memory);
            } else {
                thread::yield_now();
            }
        }
        device.join().unwrap();
    });
}

/// When a consumer polls.
#[derive(Clone, Copy)]
enum Look {
    /// After it has armed, as it should.
    AfterArming,
    /// Until there is nothing, before it arms, and not again before it sleeps.
    BeforeArming,
}

/// A device thread that completes `solicited.len()` work requests, and a consumer that arms for `kind`, polls, and sleeps
/// until it has seen all of them.
fn consumer_wakes(kind: ArmKind, solicited: &'static [bool], look: Look) {
    loom::model(move || {
        let memory = Memory::new();
        let mut queue = CompletionQueue::new(layout(), &*memory);
        let device = Arc::new(Mutex::new(DeviceCq::new(layout())));
        let event = Arc::new(Bell::default());
        let done = Arc::new(AtomicBool::new(false));
        let worker = thread::spawn({
            let (memory, device, event, done) =
                (memory.clone(), device.clone(), event.clone(), done.clone());
            move || {
                for &solicited in solicited {
                    let mut cq = device.lock().unwrap();
                    cq.push(&*memory, &[0; 4], solicited).unwrap();
                    if cq.publish(&*memory) {
                        event.ring();
                    }
                }
                done.store(true, Ordering::Relaxed);
            }
        });
        let arm = |queue: &mut CompletionQueue| {
            let armed = queue.arm(&*memory, kind, false);
            if armed == Armed::RingDoorbell && device.lock().unwrap().publish(&*memory) {
                event.ring();
            }
        };
        let mut polled = 0;
        loop {
            if let Look::AfterArming = look {
                arm(&mut queue);
            }
            while queue.take(&*memory).unwrap().is_some() {
                polled += 1;
                queue.publish(&*memory);
            }
            if polled == solicited.len() {
                break;
            }
            if let Look::BeforeArming = look {
                arm(&mut queue);
            }
            event.wait();
            queue.event_received(&*memory);
        }
        worker.join().unwrap();
        assert!(done.load(Ordering::Relaxed));
    });
}

#[test]
fn no_wakeup_is_lost_for_any_completion() {
    consumer_wakes(ArmKind::Next, &[false, false], Look::AfterArming);
}

#[test]
fn no_wakeup_is_lost_for_a_solicited_completion() {
    consumer_wakes(ArmKind::Solicited, &[false, true], Look::AfterArming);
}

#[test]
fn no_wakeup_is_lost_for_who_does_not_look_after_arming() {
    consumer_wakes(ArmKind::Next, &[false, false], Look::BeforeArming);
    consumer_wakes(ArmKind::Solicited, &[false, true], Look::BeforeArming);
}
