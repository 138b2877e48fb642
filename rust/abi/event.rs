// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Event virtqueues of the own-rings mode: virtqueues 1 to `num_event_queues`.
//!
//! The driver fills them with buffers of [`Event::SIZE`] bytes. Queue n carries the completion
//! events of the CQs created with it; the first also carries asynchronous events.

use super::ib::AsyncEvent;
use super::wire::UnknownValue;

/// Virtqueue number of the first event queue, which carries asynchronous events.
pub const FIRST_EVENT_QUEUE: u16 = 1;

/// `kind` of a completion event.
pub const KIND_COMPLETION: u32 = 0;
/// `kind` of an asynchronous event is this plus its [`AsyncEvent`].
pub const KIND_ASYNC: u32 = 0x100;

wire_struct! {
    /// An event.
    pub struct Event: 16 {
        /// See [`Event::kind`].
        0 => raw_kind: u32,
        /// Reserved, zero.
        4 => reserved: u32,
        /// Cookie of the CQ, QP or SRQ; the port number for a port's event, 0 for the device's.
        8 => cookie: u64,
    }
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// An armed CQ has a completion.
    Completion,
    /// An asynchronous event.
    Async(AsyncEvent),
}

impl Event {
    /// An event of `kind` for the object with `cookie`.
    pub const fn new(kind: EventKind, cookie: u64) -> Self {
        let raw_kind = match kind {
            EventKind::Completion => KIND_COMPLETION,
            EventKind::Async(event) => KIND_ASYNC + event.value() as u32,
        };
        Self {
            raw_kind,
            reserved: 0,
            cookie,
        }
    }

    /// The kind of the event, or the number that means nothing.
    pub fn kind(&self) -> Result<EventKind, UnknownValue> {
        if self.raw_kind == KIND_COMPLETION {
            return Ok(EventKind::Completion);
        }
        self.raw_kind
            .checked_sub(KIND_ASYNC)
            .and_then(|event| u8::try_from(event).ok())
            .and_then(|event| AsyncEvent::try_from(event).ok())
            .map(EventKind::Async)
            .ok_or(UnknownValue(self.raw_kind))
    }
}
