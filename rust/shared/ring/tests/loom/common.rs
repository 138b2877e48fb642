// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Ring memory and wake-ups made of loom's primitives.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize as Counter;
use std::time::Instant;

use loom::sync::atomic::fence;
use loom::sync::atomic::AtomicU16;
use loom::sync::atomic::AtomicU32;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering;
use loom::sync::Arc;
use loom::sync::Condvar;
use loom::sync::Mutex;
use virtio_rdma_abi::ring::RingKind;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_ring::RingMemory;

pub const SLOTS: u32 = 2;

/// First positions: 0 as in a new ring, and a position that wraps after one step.
pub const STARTS: [u32; 2] = [0, u32::MAX];

pub fn layout(kind: RingKind, slots: u32) -> RingLayout {
    RingLayout::new(kind, slots, 6).unwrap()
}

/// Explores a model from each of [`STARTS`]. Prints the number of executions and their time.
pub fn explore(name: &str, model: impl Fn(u32) + Sync + Send + Copy + 'static) {
    for start in STARTS {
        let begun = Instant::now();
        let executions = std::sync::Arc::new(Counter::new(0));
        let counted = executions.clone();
        loom::model(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            model(start);
        });
        let executions = executions.load(Ordering::Relaxed);
        let seconds = begun.elapsed().as_secs_f32();
        println!("{name} from {start:#x}: {executions} executions, {seconds:.1} s");
    }
}

/// Ring memory made of loom's atomics, one for each word of the layout. A slot holds one unordered
/// word, so a slot that is read before its publication shows an old value.
pub struct Memory {
    halves: HashMap<u32, AtomicU16>,
    words: HashMap<u32, AtomicU32>,
    arm: AtomicU64,
}

impl Memory {
    /// A ring in which both positions are `position`.
    pub fn starting_at(layout: &RingLayout, position: u32) -> Arc<Self> {
        let mut halves = HashMap::new();
        let mut words = HashMap::new();
        for word in [layout.owner(), layout.device()] {
            words.insert(word, AtomicU32::new(position.to_le()));
        }
        for slot in 0..layout.slots() {
            words.insert(layout.slot(slot), AtomicU32::new(0));
            if layout.kind() == RingKind::Shared {
                halves.insert(layout.order(slot), AtomicU16::new(0));
            }
        }
        let arm = AtomicU64::new(0);
        Arc::new(Self { halves, words, arm })
    }

    pub fn load(&self, offset: u32) -> u32 {
        let mut bytes = [0; 4];
        self.read(offset, &mut bytes);
        u32::from_ne_bytes(bytes)
    }
}

impl RingMemory for Memory {
    fn load_u16(&self, offset: u32) -> u16 {
        self.halves[&offset].load(Ordering::Relaxed)
    }
    fn store_u16(&self, offset: u32, value: u16) {
        self.halves[&offset].store(value, Ordering::Relaxed);
    }
    fn load_u32(&self, offset: u32) -> u32 {
        self.words[&offset].load(Ordering::Relaxed)
    }
    fn load_u32_acquire(&self, offset: u32) -> u32 {
        self.words[&offset].load(Ordering::Acquire)
    }
    fn store_u32(&self, offset: u32, value: u32) {
        self.words[&offset].store(value, Ordering::Relaxed);
    }
    fn store_u32_release(&self, offset: u32, value: u32) {
        self.words[&offset].store(value, Ordering::Release);
    }
    fn load_u64(&self, _arm: u32) -> u64 {
        self.arm.load(Ordering::Relaxed)
    }
    fn store_u64(&self, _arm: u32, value: u64) {
        self.arm.store(value, Ordering::Relaxed);
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

/// A doorbell or event: one thread sets it, another waits for it. If one is lost, the model
/// deadlocks, which loom reports.
#[derive(Default)]
pub struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    pub fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    /// Sends an event. The previous event must have been received.
    pub fn send(&self) {
        let rung = std::mem::replace(&mut *self.rung.lock().unwrap(), true);
        assert!(!rung, "two events");
        self.changed.notify_one();
    }

    pub fn is_rung(&self) -> bool {
        *self.rung.lock().unwrap()
    }

    pub fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}
