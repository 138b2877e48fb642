// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Virtqueues of the transport: event queues of own rings, or the queues themselves in RFC mode.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use virtio_rdma_abi::event::Event;
use virtio_rdma_abi::queues::QueueNumbers;
use virtqueue::Split;

use crate::error::{Errno, Result};
use crate::memory::VirtqueueMem;

/// The virtqueues of a device but the control queue.
pub trait Virtqueues: Send + Sync {
    /// Writes `event` to event queue `queue`, for an interrupt of the driver by
    /// [`send_interrupts`](Self::send_interrupts). Returns false if no buffer is there; then
    /// [`Device::notified`](crate::Device::notified) is to be called when one has come.
    fn push(&self, queue: u16, event: Event) -> bool;
    /// Where virtqueue `queue` is, if the driver has enabled it.
    fn split(&self, queue: u16) -> Option<Split>;
    /// Has the driver interrupted for virtqueue `queue`, by
    /// [`send_interrupts`](Self::send_interrupts).
    fn interrupt(&self, queue: u16);
    /// The device serves nothing before it is reset: tells the driver, if there is a way, `why`.
    fn fail(&self, why: &str) {
        let _ = why;
    }
    /// Sends the interrupts that calls of the current thread have left, whichever device they were
    /// for. It holds no lock.
    fn send_interrupts(&self);
}

/// The virtqueues that CQs and QPs of RFC mode get.
pub(crate) struct Transport {
    queues: Arc<dyn Virtqueues>,
    numbers: QueueNumbers,
    /// Queues that an object had, or has, and that the driver has not reset since: their indices
    /// are those of that object.
    worn: Mutex<BTreeSet<u16>>,
}

impl Transport {
    /// For a device with `max_cq` CQs in RFC mode.
    pub(crate) fn new(queues: Arc<dyn Virtqueues>, max_cq: u32) -> Self {
        Self {
            queues,
            numbers: QueueNumbers::new(max_cq),
            worn: Mutex::default(),
        }
    }

    /// The numbers and purposes of virtqueues.
    pub(crate) fn numbers(&self) -> QueueNumbers {
        self.numbers
    }

    /// Whether the driver has virtqueue `queue` ready for an object.
    pub(crate) fn is_usable(&self, queue: Option<u16>) -> bool {
        queue.is_some_and(|queue| {
            self.queues.split(queue).is_some() && !self.worn.lock().contains(&queue)
        })
    }

    /// Takes virtqueue `queue` for an object, until the driver resets it.
    pub(crate) fn take(&self, queue: Option<u16>) -> Result<VirtqueueMem> {
        let queue = queue.ok_or(Errno::INVAL)?;
        let split = self.queues.split(queue).ok_or(Errno::INVAL)?;
        let mem = VirtqueueMem::new(queue, split)?;
        self.worn.lock().insert(queue);
        Ok(mem)
    }

    /// The driver has reset virtqueue `queue`.
    pub(crate) fn renew(&self, queue: u16) {
        self.worn.lock().remove(&queue);
    }

    /// The driver has reset the device.
    pub(crate) fn renew_all(&self) {
        self.worn.lock().clear();
    }

    /// Tells the driver that the device needs a reset.
    pub(crate) fn fail(&self, why: &str) {
        self.queues.fail(why);
    }

    /// Has the driver interrupted for virtqueue `queue`.
    pub(crate) fn interrupt(&self, queue: u16) {
        self.queues.interrupt(queue);
    }

    /// Sends the interrupts of the current thread, of any device. To be called at the end of
    /// whatever may complete work or raise an event, when no lock is held.
    #[inline]
    pub(crate) fn send_interrupts(&self) {
        self.queues.send_interrupts();
    }
}
