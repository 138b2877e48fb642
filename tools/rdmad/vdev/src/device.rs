// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The interface between a device and its PCI function.

use std::sync::Arc;

use crate::Virtqueue;

/// A shared memory region (virtio 1.3, 2.10) without memory behind it: reads return zeroes, and an
/// aligned 32-bit write calls [`VirtioDevice::shm_write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// Identifier of the region.
    pub id: u8,
    /// Length in bytes, a power of two of at least 4096.
    pub len: u64,
}

/// A virtio device.
///
/// The properties of a device are constant. Methods that the socket thread calls must neither wait
/// nor take long.
pub trait VirtioDevice: Send + Sync {
    /// Device type (virtio 1.3, section 5).
    fn device_id(&self) -> u16;

    /// PCI class code: base class, sub-class, programming interface.
    fn pci_class(&self) -> u32;

    /// Offered features: of the device type, and a subset of
    /// [`TRANSPORT_FEATURES`](crate::TRANSPORT_FEATURES).
    fn features(&self) -> u64;

    /// Maximum size of each queue in descriptors; each is a power of two.
    fn queue_sizes(&self) -> Vec<u16>;

    /// The shared memory region, whose writes call [`shm_write`](Self::shm_write).
    fn shared_memory(&self) -> Option<SharedMemory>;

    /// Fills `data` from the configuration space at `offset`, with zeroes beyond its end. Called by
    /// the socket thread.
    fn config_read(&self, offset: usize, data: &mut [u8]);

    /// The driver has set DRIVER_OK: `features` are negotiated, and the device may use `queues`,
    /// which lists all queues of the device. A queue that the driver did not enable has no
    /// requests. Called by the service thread.
    fn activate(&self, features: u64, queues: &[Arc<Virtqueue>]);

    /// Resets the device. Returns when nothing accesses guest memory for the old driver any more.
    /// Called by the service thread, after the queues have been stopped.
    fn reset(&self);

    /// Stops the device after a failure, which `why` describes: the driver broke the rules, guest
    /// memory is lost, or work for the device panicked. On return no thread of the device accesses
    /// guest memory, and none serves requests before the next reset. The function then sets
    /// DEVICE_NEEDS_RESET. Called by the service thread.
    fn fail(&self, why: &str) {
        let _ = why;
    }

    /// The driver has reset only queue `index`: earlier requests of the queue are void. Called by
    /// the service thread.
    fn reset_queue(&self, index: u16) {
        let _ = index;
    }

    /// The state of the device, from which another process can [restore](Self::restore) it. Called
    /// while nothing uses the device.
    ///
    /// # Errors
    ///
    /// The device can't be handed over, for this reason.
    fn save(&self) -> Result<Vec<u8>, String> {
        Err("the device can't be handed over to another process".to_owned())
    }

    /// Takes over from a device that another process has [saved](Self::save), in place of
    /// [`activate`](Self::activate). Until [`resume`](Self::resume) is called, the device completes
    /// nothing.
    ///
    /// # Errors
    ///
    /// The state is damaged, or does not fit, for this reason. The device is as after a reset.
    fn restore(
        &self,
        features: u64,
        queues: &[Arc<Virtqueue>],
        state: &[u8],
    ) -> Result<(), String> {
        let _ = (features, queues, state);
        Err("the device can't be taken over from another process".to_owned())
    }

    /// Goes on after [`restore`](Self::restore). Called by the service thread.
    fn resume(&self) {}

    /// The driver notified queue `index`, or may have notified it before the queue was started.
    /// Returns false if the service thread must call [`serve`](Self::serve) for the queue. Called
    /// by the socket thread and the service thread, even before DRIVER_OK.
    fn kick(&self, index: u16) -> bool {
        let _ = index;
        false
    }

    /// Serves a bounded number of requests of a queue, taken by [`Virtqueue::pop_in_order`].
    /// Returns whether more requests may be available. Called by the service thread.
    fn serve(&self, queue: &Arc<Virtqueue>) -> bool;

    /// The guest wrote `value` at the aligned offset `offset` of the shared memory region. Called
    /// by the socket thread. The guest determines how often.
    fn shm_write(&self, offset: u64, value: u32);
}
