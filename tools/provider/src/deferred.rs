// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Work that control verbs leave to the holder of a CQ's lock, in order.
//!
//! A polling batch may hold the lock of its CQ for any time, and the thread of the batch may call
//! control verbs. Control verbs therefore never wait for that lock. They queue a message, and the
//! holder of the lock applies it.
//!
//! Polling checks for messages when its ring is empty, and when the QP of a completion is not in
//! the table. [`defer`](Deferred::defer) first sets [`is_pending`](Deferred::is_pending). Then the
//! control verb takes the QP out of the table by a release store. So a poller whose acquire load
//! does not find the QP sees `is_pending`.
//!
//! Control verbs do not wait, so messages may arrive as fast as they are applied. The holder of the
//! lock therefore applies only the messages that it finds at first, and does not loop until the
//! queue is empty.

use std::collections::VecDeque;
use std::io;
use std::mem::swap;
use std::sync::PoisonError;

use crate::allocation::no_memory;
use crate::sync::AtomicU8;
use crate::sync::Mutex;
use crate::sync::Ordering;

/// There are messages.
const PENDING: u8 = 1 << 0;
/// The holder of the lock has unfinished work.
const BUSY: u8 = 1 << 1;

/// A queue of messages. Room is reserved in advance, where a failure can be reported.
pub struct Deferred<M> {
    attention: AtomicU8,
    queue: Mutex<Queue<M>>,
}

/// # Invariants
///
/// `messages` has room for each message that may still be queued under a reservation, and `applied`
/// has as much room while it is empty.
struct Queue<M> {
    messages: VecDeque<M>,
    /// Messages that are applied and still to be dropped.
    applied: VecDeque<M>,
    reserved: usize,
}

impl<M> Deferred<M> {
    /// An empty queue.
    pub fn new() -> Self {
        Self {
            attention: AtomicU8::new(0),
            queue: Mutex::new(Queue {
                messages: VecDeque::new(),
                applied: VecDeque::new(),
                reserved: 0,
            }),
        }
    }

    /// Calls `then` with the queue.
    fn queue<T>(&self, then: impl FnOnce(&mut Queue<M>) -> T) -> T {
        then(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reserves room for `count` messages until they are [released](Self::release).
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn reserve(&self, count: usize) -> io::Result<()> {
        self.queue(|queue| {
            let reserved = queue.reserved + count;
            for messages in [&mut queue.messages, &mut queue.applied] {
                messages.try_reserve(reserved).map_err(|_| no_memory())?;
            }
            // INVARIANT: both queues have room.
            queue.reserved = reserved;
            Ok(())
        })
    }

    /// Gives reserved room back. Queued messages stay.
    pub fn release(&self, count: usize) {
        self.queue(|queue| queue.reserved -= count);
    }

    /// Calls `add` to change the queue within the reserved room. A poller that sees a release store
    /// of `add` sees [`is_pending`](Self::is_pending) too.
    pub fn defer(&self, add: impl FnOnce(&mut VecDeque<M>)) {
        self.queue(|queue| {
            self.attention.fetch_or(PENDING, Ordering::Relaxed);
            add(&mut queue.messages);
            if queue.messages.is_empty() {
                self.attention.fetch_and(!PENDING, Ordering::Relaxed);
            }
        });
    }

    /// Whether there are messages or unfinished work.
    #[inline(always)]
    pub fn needs_attention(&self) -> bool {
        self.attention.load(Ordering::Relaxed) != 0
    }

    /// Whether there are messages.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.attention.load(Ordering::Relaxed) & PENDING != 0
    }

    /// Whether `matches` is true of any message.
    pub fn has(&self, matches: impl Fn(&M) -> bool) -> bool {
        self.is_pending() && self.queue(|queue| queue.messages.iter().any(matches))
    }

    /// Calls `apply` with the messages, oldest first. No other thread changes the queue meanwhile.
    /// The messages are kept until they are [dropped](Self::drop_applied). Only the holder of the
    /// CQ's lock calls this function.
    pub fn apply(&self, apply: impl FnOnce(&mut [M])) {
        // `applied` is empty after this: only this thread adds to it.
        self.drop_applied();
        self.queue(|queue| {
            // INVARIANT: both queues have the reserved room.
            swap(&mut queue.messages, &mut queue.applied);
            apply(queue.applied.make_contiguous());
            self.attention.fetch_and(!PENDING, Ordering::Relaxed);
        });
    }

    /// Drops the applied messages while this queue is not locked: a drop may unmap rings.
    pub fn drop_applied(&self) {
        for _ in 0..self.queue(|queue| queue.applied.len()) {
            drop(self.queue(|queue| queue.applied.pop_front()));
        }
    }

    /// Applies the messages under the lock that `lock` takes, and drops them after the release of
    /// the lock.
    ///
    /// `lock` returns `None` if the present holder of the lock will check for messages later.
    pub fn drain<G>(&self, lock: impl Fn() -> Option<G>, apply: impl Fn(&mut G, &mut [M])) {
        if !self.is_pending() {
            return;
        }
        // This thread does not loop: the thread that queues a later message applies it.
        let Some(mut guard) = lock() else {
            return;
        };
        self.apply(|messages| apply(&mut guard, messages));
        drop(guard);
        self.drop_applied();
    }

    /// Sets whether there is unfinished work. Only the holder of the CQ's lock calls this function.
    pub fn set_busy(&self, is_busy: bool) {
        match is_busy {
            true => self.attention.fetch_or(BUSY, Ordering::Relaxed),
            false => self.attention.fetch_and(!BUSY, Ordering::Relaxed),
        };
    }
}

impl<M> Default for Deferred<M> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn messages_come_in_order_and_ask_for_attention() {
        let deferred = Deferred::new();
        deferred.reserve(2).unwrap();
        assert!(!deferred.needs_attention());
        deferred.defer(|queue| queue.extend([1, 2]));
        deferred.release(2);
        deferred.set_busy(true);
        assert!(deferred.is_pending());
        assert!(deferred.has(|message| *message == 2) && !deferred.has(|message| *message == 3));
        deferred.apply(|messages| assert_eq!(messages, [1, 2]));
        assert!(!deferred.has(|_| true), "applied");
        deferred.apply(|messages| assert!(messages.is_empty()));
        assert!(!deferred.is_pending() && deferred.needs_attention());
        deferred.set_busy(false);
        assert!(!deferred.needs_attention());
    }
}
