// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The virtqueues that CQs, SQs and RQs use in RFC mode.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use virtio_rdma_abi::queues::QueueNumbers;

use crate::error::{Errno, Result};
use crate::memory::VirtqueueMem;
use crate::virtqueues::Virtqueues;

/// Assigns virtqueues to the CQs and QPs of RFC mode.
pub(crate) struct RfcQueues {
    queues: Arc<dyn Virtqueues>,
    numbers: QueueNumbers,
    /// Virtqueues assigned to an object since the driver last reset them. Their indices belong to
    /// that object, even if it is destroyed.
    awaits_reset: Mutex<BTreeSet<u16>>,
}

impl RfcQueues {
    /// All virtqueues unassigned, for a device with `max_cq` CQs in RFC mode.
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

    /// Whether the driver has enabled virtqueue `queue`, and it may be assigned to an object.
    pub(crate) fn is_usable(&self, queue: Option<u16>) -> bool {
        queue.is_some_and(|queue| {
            self.queues.split(queue).is_some() && !self.awaits_reset.lock().contains(&queue)
        })
    }

    /// Assigns virtqueue `queue` to an object. It can't be assigned again until the driver resets
    /// it.
    pub(crate) fn take(&self, queue: Option<u16>) -> Result<VirtqueueMem> {
        let queue = queue.ok_or(Errno::INVAL)?;
        let split = self.queues.split(queue).ok_or(Errno::INVAL)?;
        let mem = VirtqueueMem::new(queue, split)?;
        self.awaits_reset.lock().insert(queue);
        Ok(mem)
    }

    /// Called when the driver has reset virtqueue `queue`.
    pub(crate) fn renew(&self, queue: u16) {
        self.awaits_reset.lock().remove(&queue);
    }

    /// Called when the driver has reset the device.
    pub(crate) fn renew_all(&self) {
        self.awaits_reset.lock().clear();
    }
}
