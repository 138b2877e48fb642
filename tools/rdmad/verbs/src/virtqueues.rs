// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The virtqueues of an HCA, as the virtio front end provides them: event queues and, in
//! virtqueue mode, the queues of CQs and QPs.

use virtio_rdma_abi::event::Event;
use virtqueue::Split;

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
