// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Events: their kind and their object.
//!
//! A cookie consists of an index into the driver's table of objects and of the entry's generation.
//! The generation advances when the entry is reused, so a late event never reaches the next object.
//! Generation 0 is the device itself: cookie 0 names the device and cookie 1 its port, and one
//! object of the driver receives the events of both.

use super::abi::event::{Event, EventKind};

/// An entry of the driver's table of objects, as named by a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Index of the entry.
    pub index: u32,
    /// Generation of the entry.
    pub generation: u32,
}

impl Cookie {
    /// The device and its port.
    pub const DEVICE: Self = Self {
        index: 0,
        generation: 0,
    };

    /// First generation of an entry for an object.
    pub const FIRST_GENERATION: u32 = 1;

    /// Decodes a cookie. The caller must compare the generation with that of the entry.
    #[inline]
    pub fn decode(cookie: u64) -> Self {
        // CAST: The two halves of the cookie.
        let (index, generation) = (cookie as u32, (cookie >> 32) as u32);
        if generation == Self::DEVICE.generation {
            return Self::DEVICE;
        }
        Self { index, generation }
    }

    /// The cookie as given to the device.
    #[inline]
    pub fn value(self) -> u64 {
        (u64::from(self.generation) << 32) | u64::from(self.index)
    }

    /// The generation that follows `generation`. It is never the device's generation, 0.
    pub const fn next_generation(generation: u32) -> u32 {
        match generation.checked_add(1) {
            Some(next) => next,
            None => Self::FIRST_GENERATION,
        }
    }
}

/// An event of a known kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownEvent {
    /// The kind of event.
    pub kind: EventKind,
    /// The object to which the event belongs.
    pub object: Cookie,
}

impl KnownEvent {
    /// Decodes an event from a buffer. `written` is the number of bytes that the device claims to
    /// have written.
    ///
    /// Returns `None` if `written` is less than the size of an event or more than the size of the
    /// buffer. Also returns `None` for unknown kinds, which newer devices may send.
    pub fn decode(buffer: &[u8], written: usize) -> Option<Self> {
        let event = Event::decode(buffer.get(..written)?)?;
        Some(Self {
            kind: event.kind().ok()?,
            object: Cookie::decode(event.cookie),
        })
    }
}
