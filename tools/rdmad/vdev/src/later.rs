// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Interrupts that a thread defers until it holds no lock.
//!
//! An interrupt is a system call of some microseconds, which wakes a thread of the client. A worker
//! that made this call under the locks of queues would delay the threads that wait for these locks.

use std::cell::RefCell;
use std::sync::Arc;

use crate::Virtqueue;

thread_local! {
    /// Queues of all devices whose drivers this thread has yet to interrupt. The list keeps its
    /// capacity, so that later interrupts allocate no memory.
    static DUE: RefCell<Vec<Arc<Virtqueue>>> = const { RefCell::new(Vec::new()) };
}

/// Records that the driver must be interrupted for `queue`.
pub(crate) fn interrupt(queue: &Arc<Virtqueue>) {
    DUE.with_borrow_mut(|due| {
        if !due.iter().any(|other| Arc::ptr_eq(other, queue)) {
            due.push(queue.clone());
        }
    });
}

/// Sends the interrupts that [`Virtqueue::push_later`] and [`Virtqueue::interrupt_later`] have
/// deferred in the current thread: one for each queue.
pub fn send_interrupts() {
    DUE.with_borrow_mut(|due| {
        for queue in due.drain(..) {
            queue.interrupt();
        }
    });
}
