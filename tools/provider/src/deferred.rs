// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Work that control verbs leave to the holder of a CQ's lock, in order.
//!
//! A polling batch may hold the lock of its CQ for any time, and the thread of the batch may call
//! control verbs. Control verbs therefore never wait for that lock. They queue a message, and the
//! holder of the lock applies it.
//!
//! Polling looks for messages when its ring is empty, and when the QP of a completion is not in the
//! table. A control verb takes a QP out of the table in [`defer`](Deferred::defer), by a release
//! store, after it has set [`is_pending`](Deferred::is_pending). A poller that misses the QP by an
//! acquire load sees `is_pending` too.

use std::collections::VecDeque;
use std::io;
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
/// `messages` has room for each message that may still come under a reservation.
struct Queue<M> {
    messages: VecDeque<M>,
    reserved: usize,
}

impl<M> Deferred<M> {
    /// An empty queue.
    pub fn new() -> Self {
        Self {
            attention: AtomicU8::new(0),
            queue: Mutex::new(Queue {
                messages: VecDeque::new(),
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
            queue
                .messages
                .try_reserve(reserved)
                .map_err(|_| no_memory())?;
            // INVARIANT: there is room.
            queue.reserved = reserved;
            Ok(())
        })
    }

    /// Gives reserved room back. Queued messages stay.
    pub fn release(&self, count: usize) {
        self.queue(|queue| queue.reserved -= count);
    }

    /// Has `add` change the queue within the reserved room. A poller that sees a release store of
    /// `add` sees [`is_pending`](Self::is_pending) too.
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

    /// Takes the oldest message and calls `apply` with it. No other thread changes the queue until
    /// `apply` returns. Returns its result, or `None` if there are no messages. Only the holder of
    /// the lock calls this.
    pub fn apply<T>(&self, apply: impl FnOnce(M) -> T) -> Option<T> {
        self.queue(|queue| {
            let Some(message) = queue.messages.pop_front() else {
                self.attention.fetch_and(!PENDING, Ordering::Relaxed);
                return None;
            };
            Some(apply(message))
        })
    }

    /// Applies the messages one by one, each with a guard of the lock, and drops each result after
    /// the guard: that may unmap rings.
    ///
    /// `lock` returns `None` if the present holder of the lock will look for messages later.
    pub fn settle<G, T>(&self, lock: impl Fn() -> Option<G>, apply: impl Fn(&mut G, M) -> T) {
        while self.is_pending() {
            let Some(mut guard) = lock() else {
                return;
            };
            let done = self.apply(|message| apply(&mut guard, message));
            drop(guard);
            drop(done);
        }
    }

    /// Sets whether there is unfinished work. Only the holder of the lock calls this.
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
        assert_eq!(deferred.apply(|message| message * 10), Some(10));
        assert_eq!(deferred.apply(|message| message * 10), Some(20));
        assert_eq!(deferred.apply(|message| message * 10), None);
        assert!(!deferred.is_pending() && deferred.needs_attention());
        deferred.set_busy(false);
        assert!(!deferred.needs_attention());
    }
}
