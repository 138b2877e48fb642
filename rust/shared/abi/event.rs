// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Event virtqueues, with own rings: virtqueues 1 to `num_event_queues`.
//!
//! The driver fills them with buffers of [`Event::SIZE`] bytes. An event queue carries the
//! completion events of the CQs that were created with its number. The first event queue also
//! carries asynchronous events.

use core::ffi::CStr;

use super::ib::AsyncEvent;
use super::wire::UnknownValue;

/// Virtqueue number of the first event queue, which carries asynchronous events.
pub const FIRST_EVENT_QUEUE: u16 = 1;

/// `kind` of a completion event.
pub const KIND_COMPLETION: u32 = 0;
/// `kind` of an asynchronous event: this value plus the [`AsyncEvent`].
pub const KIND_ASYNC: u32 = 0x100;

wire_struct! {
    /// An event.
    pub struct Event: 16 {
        /// Numeric kind, see [`Event::kind`].
        0 => raw_kind: u32,
        /// Reserved, zero.
        4 => reserved: u32,
        /// Cookie of the CQ, QP or SRQ. For an event of the port the port number, for an event of
        /// the device 0.
        8 => cookie: u64,
    }
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// An armed CQ has a new completion.
    Completion,
    /// An asynchronous event.
    Async(AsyncEvent),
}

impl EventKind {
    /// The name in the specification.
    pub const fn c_name(self) -> &'static CStr {
        match self {
            Self::Completion => c"COMPLETION",
            Self::Async(event) => event.c_name(),
        }
    }
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

    /// The kind of the event, or the unknown number.
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
