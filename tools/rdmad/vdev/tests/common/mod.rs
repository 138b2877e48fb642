// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A virtio device that echoes, and the server of its vfio-user socket.

#![allow(dead_code)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use dma::DmaSpace;
use sockets::Access;
use testkit::vfio::{Client, Driver, TRANSPORT};
use vdev::{Handle, Listener, Records, ServerPool, SharedMemory, VirtioDevice, Virtqueue};

pub const SHM_LEN: u64 = 1 << 16;
pub const CONFIG: [u8; 6] = *b"config";
/// A feature bit of the device type.
pub const FEATURE: u64 = 1 << 3;
/// Feature bits of a driver.
pub const FEATURES: u64 = FEATURE | TRANSPORT;

/// A device that answers each request with the request's bytes in reverse order.
#[derive(Default)]
pub struct Echo {
    pub active: Mutex<Option<(u64, Vec<Arc<Virtqueue>>)>>,
    pub resets: AtomicU64,
    pub doorbells: AtomicU64,
    pub last_doorbell: AtomicU64,
    /// While this is true, the device ignores notifications.
    pub deaf: Mutex<bool>,
    /// Name of the method whose next call panics.
    planted: Mutex<Option<&'static str>>,
    /// The reasons of all calls of `fail`.
    pub failures: Mutex<Vec<String>>,
    /// While closed, a device reset does not end.
    pub hold_reset: Gate,
    /// While closed, a queue reset does not end.
    pub hold_queue_reset: Gate,
    /// While closed, a read of the configuration does not end.
    pub hold_config: Gate,
    /// While closed, no queue is served.
    pub hold_serve: Gate,
    /// For each request, the number of queues that were enabled when it was served.
    pub enabled: Mutex<Vec<usize>>,
}

/// A gate that blocks threads while it is closed.
#[derive(Default)]
pub struct Gate {
    /// Whether the gate is closed, and the number of threads that have arrived at it.
    state: Mutex<(bool, u64)>,
    changed: Condvar,
}

impl Gate {
    pub fn set_closed(&self, closed: bool) {
        self.state.lock().unwrap().0 = closed;
        self.changed.notify_all();
    }

    pub fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| state.0).unwrap());
    }

    /// Returns when a thread has arrived at the gate.
    pub fn await_guest(&self) {
        let state = self.state.lock().unwrap();
        drop(
            self.changed
                .wait_while(state, |state| state.1 == 0)
                .unwrap(),
        );
    }
}

impl Echo {
    /// Makes the next call of the method `call` panic.
    pub fn plant(&self, call: &'static str) {
        *self.planted.lock().unwrap() = Some(call);
    }

    /// The reasons of the calls of `fail` since the last call of this function.
    pub fn take_failures(&self) -> Vec<String> {
        std::mem::take(&mut self.failures.lock().unwrap())
    }

    fn panic_if_planted(&self, call: &str) {
        let planted = self
            .planted
            .lock()
            .unwrap()
            .take_if(|planted| *planted == call);
        if planted.is_some() {
            panic!("planted");
        }
    }
}

impl VirtioDevice for Echo {
    fn device_id(&self) -> u16 {
        42
    }

    fn pci_class(&self) -> u32 {
        0x02_80_00
    }

    fn features(&self) -> u64 {
        FEATURE | vdev::TRANSPORT_FEATURES
    }

    fn queue_sizes(&self) -> Vec<u16> {
        vec![64, 256]
    }

    fn shared_memory(&self) -> Option<SharedMemory> {
        Some(SharedMemory {
            id: 1,
            len: SHM_LEN,
        })
    }

    fn config_read(&self, offset: usize, data: &mut [u8]) {
        self.hold_config.pass();
        self.panic_if_planted("config");
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = CONFIG.get(offset + i).copied().unwrap_or(0);
        }
    }

    fn activate(&self, features: u64, queues: &[Arc<Virtqueue>]) {
        *self.active.lock().unwrap() = Some((features, queues.to_vec()));
    }

    fn reset(&self) {
        self.hold_reset.pass();
        self.panic_if_planted("reset");
        *self.active.lock().unwrap() = None;
        self.resets.fetch_add(1, Ordering::SeqCst);
    }

    fn reset_queue(&self, _index: u16) {
        self.hold_queue_reset.pass();
    }

    fn fail(&self, why: &str) {
        self.failures.lock().unwrap().push(why.to_owned());
    }

    fn serve(&self, queue: &Arc<Virtqueue>) -> bool {
        self.hold_serve.pass();
        self.panic_if_planted("serve");
        let deaf = self.deaf.lock().unwrap();
        if *deaf {
            return false;
        }
        match queue.pop_in_order(1000) {
            Some(request) => {
                if let Some((_, queues)) = &*self.active.lock().unwrap() {
                    let enabled = queues.iter().filter(|queue| queue.is_enabled());
                    self.enabled.lock().unwrap().push(enabled.count());
                }
                let answer: Vec<u8> = request.input().iter().rev().copied().collect();
                queue.push(request, &answer);
                true
            }
            None => false,
        }
    }

    fn shm_write(&self, offset: u64, value: u32) {
        self.doorbells.fetch_add(1, Ordering::SeqCst);
        self.last_doorbell
            .store((offset << 32) | u64::from(value), Ordering::SeqCst);
    }
}

/// An [`Echo`] device and the server of its vfio-user socket.
pub struct Bench {
    pub device: Arc<Echo>,
    pub space: Arc<DmaSpace>,
    pub path: PathBuf,
    pub handle: Option<Handle>,
    _dir: tempfile::TempDir,
}

/// Maximum number of bytes of guest memory that a port maps.
pub const GUEST_MEMORY: u64 = 1 << 40;

impl Bench {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vfio.sock");
        let (device, space) = (
            Arc::new(Echo::default()),
            Arc::new(DmaSpace::with_limit(GUEST_MEMORY)),
        );
        let handle = Listener::bind(&path, &Access::default())
            .unwrap()
            .start(
                "test",
                device.clone(),
                space.clone(),
                &ServerPool::new(1, Records::alone(1).unwrap()).unwrap(),
            )
            .unwrap();
        Self {
            device,
            space,
            path,
            handle: Some(handle),
            _dir: dir,
        }
    }

    pub fn client(&self) -> Client {
        Client::new(&self.path)
    }

    pub fn driver(&self) -> Driver {
        Driver::new(self.client())
    }
}
