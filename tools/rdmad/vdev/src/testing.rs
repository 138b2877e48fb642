// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A device for unit tests.

use std::sync::Arc;

use crate::{SharedMemory, VirtioDevice, Virtqueue};

/// A device that does nothing.
pub(crate) struct Nothing;

impl VirtioDevice for Nothing {
    fn device_id(&self) -> u16 {
        42
    }

    fn pci_class(&self) -> u32 {
        0
    }

    fn features(&self) -> u64 {
        crate::TRANSPORT_FEATURES
    }

    fn queue_sizes(&self) -> Vec<u16> {
        vec![16]
    }

    fn shared_memory(&self) -> Option<SharedMemory> {
        None
    }

    fn config_read(&self, _offset: usize, data: &mut [u8]) {
        data.fill(0);
    }

    fn activate(&self, _features: u64, _queues: &[Arc<Virtqueue>]) {}

    fn reset(&self) {}

    fn serve(&self, _queue: &Arc<Virtqueue>) -> bool {
        false
    }

    fn shm_write(&self, _offset: u64, _value: u32) {}
}
