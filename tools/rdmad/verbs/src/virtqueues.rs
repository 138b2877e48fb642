// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The virtqueues of an HCA, as the virtio front end provides them: event queues and, in
//! virtqueue mode, the queues of CQs and QPs.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use virtio_rdma_abi::event::Event;
use virtio_rdma_abi::queues::QueueNumbers;
use virtqueue::Split;

use crate::error::{refusal, Reason, Result, What};
use crate::memory::VirtqueueMem;

/// The virtqueues of an HCA, except for the control queue.
pub trait Virtqueues: Send + Sync {
    /// Writes `event` to event queue `queue`. [`send_interrupts`](Self::send_interrupts) sends the
    /// interrupt. Returns false if the queue has no buffer. In that case
    /// [`Hca::notified`](crate::Hca::notified) must be called when the driver has added one.
    fn push(&self, queue: u16, event: Event) -> bool;
    /// The rings of virtqueue `queue`, if the driver has enabled it.
    fn split(&self, queue: u16) -> Option<Split>;
    /// Requests an interrupt for virtqueue `queue`, which
    /// [`send_interrupts`](Self::send_interrupts) sends.
    fn interrupt(&self, queue: u16);
    /// Called when the HCA has failed, for reason `why`. The HCA serves nothing until it is
    /// reset. The implementation should report the failure to the driver.
    fn fail(&self, why: &str) {
        let _ = why;
    }
    /// Sends the interrupts that the current thread has requested, for any HCA. The caller must
    /// hold no lock.
    fn send_interrupts(&self);
}

/// Assigns virtqueues to the CQs and QPs of virtqueue mode.
pub(crate) struct AssignedVirtqueues {
    queues: Arc<dyn Virtqueues>,
    numbers: QueueNumbers,
    /// Virtqueues that were assigned to an object and not reset by the driver since then. They
    /// can't be assigned again even if the object was destroyed: the ring indices have advanced.
    awaits_reset: Mutex<BTreeSet<u16>>,
}

impl AssignedVirtqueues {
    /// State without assigned virtqueues, for an HCA with at most `max_cq` CQs in virtqueue mode.
    pub(crate) fn new(queues: Arc<dyn Virtqueues>, max_cq: u32) -> Self {
        Self {
            queues,
            numbers: QueueNumbers::new(max_cq),
            awaits_reset: Mutex::default(),
        }
    }

    /// The numbers and purposes of virtqueues.
    pub(crate) fn numbers(&self) -> QueueNumbers {
        self.numbers
    }

    /// Whether virtqueue `queue` may be assigned to an object: the driver has enabled it, and has
    /// reset it after its last assignment.
    pub(crate) fn is_usable(&self, queue: Option<u16>) -> bool {
        queue.is_some_and(|queue| {
            self.queues.split(queue).is_some() && !self.awaits_reset.lock().contains(&queue)
        })
    }

    /// Assigns virtqueue `queue` to an object. The virtqueue can't be assigned again until the
    /// driver resets it.
    pub(crate) fn take(&self, queue: Option<u16>) -> Result<VirtqueueMem> {
        let queue = queue.ok_or(refusal(Reason::NoSuch, What::Virtqueue, u16::MAX))?;
        let unset = refusal(Reason::NoSuch, What::Virtqueue, queue);
        let split = self.queues.split(queue).ok_or(unset)?;
        let mem = VirtqueueMem::new(queue, split)?;
        self.awaits_reset.lock().insert(queue);
        Ok(mem)
    }

    /// Called when the driver has reset virtqueue `queue`.
    pub(crate) fn mark_reset(&self, queue: u16) {
        self.awaits_reset.lock().remove(&queue);
    }

    /// Called when the driver has reset the device.
    pub(crate) fn mark_all_reset(&self) {
        self.awaits_reset.lock().clear();
    }
}
