// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A device as its PCI function sees it.

use std::sync::Arc;

use crate::Virtqueue;

/// A shared memory region (virtio 1.3, 2.10) without memory behind it: reads give zeroes, an
/// aligned 32-bit write is handed to [`VirtioDevice::shm_write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// Identifier of the region.
    pub id: u8,
    /// Length in bytes, a power of two from 4096 on.
    pub len: u64,
}

/// A virtio device.
///
/// Its properties do not change while it lives. Methods that the socket thread calls must neither
/// wait nor take long.
pub trait VirtioDevice: Send + Sync {
    /// Device type (virtio 1.3, section 5).
    fn device_id(&self) -> u16;

    /// PCI class code: base class, sub-class, programming interface.
    fn pci_class(&self) -> u32;

    /// Features that are offered: those of the device, and those of
    /// [`TRANSPORT_FEATURES`](crate::TRANSPORT_FEATURES) that are not to be withheld.
    fn features(&self) -> u64;

    /// Greatest size of each queue; each is a power of two.
    fn queue_sizes(&self) -> Vec<u16>;

    /// The region that [`shm_write`](Self::shm_write) serves.
    fn shared_memory(&self) -> Option<SharedMemory>;

    /// Fills `data` from the configuration space at `offset`, with zeroes beyond its end. Called by
    /// the socket thread.
    fn config_read(&self, offset: usize, data: &mut [u8]);

    /// The driver is ready: these features are negotiated and these queues, one per queue of the
    /// device, may be used. A queue that the driver did not enable has no requests. Called by the
    /// service thread.
    fn activate(&self, features: u64, queues: &[Arc<Virtqueue>]);

    /// The driver has gone. Returns when nothing accesses guest memory for it any more. Called by
    /// the service thread, after the queues have been stopped.
    fn reset(&self);

    /// The device can't go on, as `why` tells: the driver broke the rules, its memory is lost, or
    /// work for the device panicked. On return its threads don't access guest memory any more, and
    /// serve nothing before the next reset. The driver is asked for that reset afterwards. Called
    /// by the service thread.
    fn fail(&self, why: &str) {
        let _ = why;
    }

    /// The driver has stopped queue `index` alone: requests from before are void. Called by the
    /// service thread.
    fn reset_queue(&self, index: u16) {
        let _ = index;
    }

    /// The driver rang queue `index`, or may have done so before it could be heard. Returns whether
    /// that is all; else the service thread calls [`serve`](Self::serve). Called by both threads,
    /// also while the driver is not ready.
    fn kick(&self, index: u16) -> bool {
        let _ = index;
        false
    }

    /// Serves requests of a queue: a bounded number, by [`Virtqueue::pop_in_order`]. Returns
    /// whether more may be there. Called by the service thread.
    fn serve(&self, queue: &Arc<Virtqueue>) -> bool;

    /// The guest wrote `value` at the aligned offset `offset` of the shared memory region. Called
    /// by the socket thread, however often the guest wants.
    fn shm_write(&self, offset: u64, value: u32);
}
