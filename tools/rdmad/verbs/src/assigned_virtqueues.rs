// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The virtqueues that CQs, SQs and RQs use in virtqueue mode.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use virtio_rdma_abi::queues::QueueNumbers;

use crate::error::{Errno, Result};
use crate::memory::VirtqueueMem;
use crate::virtqueues::Virtqueues;

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
        let queue = queue.ok_or(Errno::INVAL)?;
        let split = self.queues.split(queue).ok_or(Errno::INVAL)?;
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
