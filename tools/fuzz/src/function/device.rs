// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The device of a function under test. It records its calls, which the model predicts. The device
//! of the tests of `vdev` has threads, and gates that hold them.

use std::sync::{Arc, Mutex, MutexGuard};

use vdev::{SharedMemory, VirtioDevice, Virtqueue};

/// Length of the shared memory region in bytes.
pub const SHM_LEN: u64 = 1 << 16;
/// Contents of the device configuration.
pub const CONFIG: [u8; 6] = *b"config";
/// Maximum sizes of the queues, in descriptors.
pub const QUEUES: [u16; 2] = [16, 64];
/// Maximum number of bytes that the device reads of a request.
const REQUEST: usize = 512;

/// A recorded event of the device. Except for `Answer`, these are calls of its methods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// The method `activate` was called, with these features.
    Activate(u64),
    /// The method `reset` was called.
    Reset,
    /// The method `reset_queue` was called for this queue.
    ResetQueue(u16),
    /// The method `fail` was called.
    Fail,
    /// The device answered a request of this queue.
    Answer(u16),
    /// The method `shm_write` was called, with this offset and value.
    Doorbell(u64, u32),
}

/// A device that answers each request with the request's bytes in reverse order.
#[derive(Default)]
pub struct Echo {
    calls: Mutex<Vec<Call>>,
    queues: Mutex<Vec<Arc<Virtqueue>>>,
}

impl Echo {
    /// The events since the last call of this function, in order.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut lock(&self.calls))
    }

    /// The device's queues. Empty before DRIVER_OK.
    pub fn queues(&self) -> Vec<Arc<Virtqueue>> {
        lock(&self.queues).clone()
    }

    fn note(&self, call: Call) {
        lock(&self.calls).push(call);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while it is held")
}

impl VirtioDevice for Echo {
    fn device_id(&self) -> u16 {
        42
    }

    fn pci_class(&self) -> u32 {
        0x02_80_00
    }

    fn features(&self) -> u64 {
        (1 << 3) | vdev::TRANSPORT_FEATURES
    }

    fn queue_sizes(&self) -> Vec<u16> {
        QUEUES.to_vec()
    }

    fn shared_memory(&self) -> Option<SharedMemory> {
        Some(SharedMemory {
            id: 1,
            len: SHM_LEN,
        })
    }

    fn config_read(&self, offset: usize, data: &mut [u8]) {
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = CONFIG.get(offset + i).copied().unwrap_or(0);
        }
    }

    fn activate(&self, features: u64, queues: &[Arc<Virtqueue>]) {
        *lock(&self.queues) = queues.to_vec();
        self.note(Call::Activate(features));
    }

    fn reset(&self) {
        lock(&self.queues).clear();
        self.note(Call::Reset);
    }

    fn fail(&self, _why: &str) {
        self.note(Call::Fail);
    }

    fn reset_queue(&self, index: u16) {
        self.note(Call::ResetQueue(index));
    }

    fn serve(&self, queue: &Arc<Virtqueue>) -> bool {
        let Some(request) = queue.pop_in_order(REQUEST) else {
            return false;
        };
        assert!(request.input().len() <= REQUEST, "more than was asked for");
        let answer: Vec<u8> = request.input().iter().rev().copied().collect();
        queue.push(request, &answer);
        self.note(Call::Answer(queue.index()));
        true
    }

    fn shm_write(&self, offset: u64, value: u32) {
        self.note(Call::Doorbell(offset, value));
    }
}
