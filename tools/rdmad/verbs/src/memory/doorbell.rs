// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Asking the owner of a queue for its doorbell.

use virtio_rdma_ring::DeviceQueue;

use super::RingView;

/// The owner of a queue rings for what it posts next.
#[derive(Debug)]
#[must_use]
pub(crate) struct ForDoorbell(());

impl RingView<'_> {
    /// Asks for the doorbell of `queue`, which lies here. `None` if something was posted that may not be rung for.
    pub(crate) fn await_doorbell(&self, queue: &mut DeviceQueue) -> Option<ForDoorbell> {
        (!queue.enable_doorbell(self)).then_some(ForDoorbell(()))
    }
}
