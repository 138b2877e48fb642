// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Interrupts that a thread sends when it has no lock any more.
//!
//! An interrupt is a system call that wakes a thread of the client, some microseconds. A worker
//! that made it while it holds the locks of queues would hold up the threads that wait for them.

use std::cell::RefCell;
use std::sync::Arc;

use crate::Virtqueue;

thread_local! {
    /// Queues, of any device, whose driver the thread has yet to interrupt. It keeps its room, so
    /// nothing is allocated after a while.
    static DUE: RefCell<Vec<Arc<Virtqueue>>> = const { RefCell::new(Vec::new()) };
}

/// Notes that a queue's driver is to be interrupted.
pub(crate) fn interrupt(queue: &Arc<Virtqueue>) {
    DUE.with_borrow_mut(|due| {
        if !due.iter().any(|other| Arc::ptr_eq(other, queue)) {
            due.push(queue.clone());
        }
    });
}

/// Sends the interrupts that [`Virtqueue::push_later`] and [`Virtqueue::interrupt_later`] have left
/// in the current thread, once for each queue.
pub fn send_interrupts() {
    DUE.with_borrow_mut(|due| {
        for queue in due.drain(..) {
            queue.interrupt();
        }
    });
}
