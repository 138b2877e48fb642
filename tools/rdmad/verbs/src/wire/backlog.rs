// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Received frames that a turn leaves for the next one.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;
use roce::frame::Frames;
use virtio_rdma_abi::number::Qpn;

/// Frames that a turn took from the frame port without budget to process them. The next turn begins
/// with these frames.
#[derive(Debug, Default)]
pub(crate) struct ReceiveBacklog {
    /// Whether there are frames. Most turns leave no frames, and then the lock is not taken.
    any: AtomicBool,
    frames: Mutex<Backlog>,
}

/// The frames that one turn leaves.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub frames: Frames,
    /// If the first frame is a datagram to a group: the members that have yet to receive it. `None`
    /// if its delivery has not begun.
    pub group: Option<GroupDelivery>,
}

/// The delivery of a datagram to the members of its group.
#[derive(Debug)]
pub(super) struct GroupDelivery {
    members: Arc<[Qpn]>,
    /// Number of members that have received the datagram.
    done: usize,
}

impl GroupDelivery {
    /// A delivery to `members` that has not begun.
    pub(super) fn new(members: Arc<[Qpn]>) -> Self {
        Self { members, done: 0 }
    }

    /// The rest of this delivery, to those members that are still in `members`.
    pub(super) fn among(self, members: Arc<[Qpn]>) -> Self {
        if Arc::ptr_eq(&self.members, &members) {
            return self;
        }
        let left = self.members.iter().skip(self.done).copied();
        Self::new(left.filter(|qpn| members.contains(qpn)).collect())
    }

    /// The next member.
    pub(super) fn next(&mut self) -> Option<Qpn> {
        let next = self.members.get(self.done).copied()?;
        self.done += 1;
        Some(next)
    }

    /// Whether there is no next member.
    pub(super) fn is_over(&self) -> bool {
        self.done == self.members.len()
    }
}

impl ReceiveBacklog {
    /// Stores what a turn leaves. Returns whether there are frames.
    pub(super) fn put(&self, backlog: Backlog) -> bool {
        let any = !backlog.frames.is_empty();
        if any {
            *self.frames.lock() = backlog;
            self.any.store(true, Ordering::Release);
        }
        any
    }

    /// Takes what the last turn left.
    pub(super) fn take(&self) -> Backlog {
        if self.any.load(Ordering::Acquire) {
            self.any.store(false, Ordering::Relaxed);
            return mem::take(&mut *self.frames.lock());
        }
        Backlog::default()
    }
}
