// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Wakes the thread of the switch.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{eventfd, EventfdFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// An eventfd that the thread waits for.
#[derive(Debug)]
pub(crate) struct Waker {
    event: OwnedFd,
    /// Whether the eventfd was written since [`clear`](Self::clear).
    woken: AtomicBool,
    stop: AtomicBool,
}

impl Waker {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self {
            event,
            woken: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        })
    }

    pub(crate) fn wake(&self) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            // The write fails only if the counter is full, and then the thread wakes up anyway.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Clears the event. To be called before the queues are read: a frame that is queued later
    /// wakes the thread again. The swap of `woken` synchronises with senders that found the flag
    /// set, so the frames of these senders are visible in the queues.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        self.woken.swap(false, Ordering::SeqCst);
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
