// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The virtqueues of a device, as its front end offers them: event queues of own rings, or the
//! queues themselves in RFC mode.

use virtio_rdma_abi::event::Event;
use virtqueue::Split;

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
