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
}

/// A cookie of an entry that is free. The entry's earlier objects had other cookies.
#[derive(Debug, PartialEq, Eq)]
pub struct UnusedCookie(Cookie);

impl UnusedCookie {
    /// The first cookie of an entry for objects.
    pub const fn first(index: u32) -> Self {
        Self(Cookie {
            index,
            generation: Cookie::DEVICE.generation + 1,
        })
    }

    /// The cookie for the next object of the entry, whose present object has `cookie`. Its
    /// generation is never that of the device.
    pub const fn after(cookie: Cookie) -> Self {
        match cookie.generation.checked_add(1) {
            Some(generation) => Self(Cookie {
                generation,
                ..cookie
            }),
            None => Self::first(cookie.index),
        }
    }

    /// Uses the cookie for an object.
    pub const fn take(self) -> Cookie {
        self.0
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
