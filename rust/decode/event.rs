// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Events: what happened, and to which object.
//!
//! A cookie is an index into the driver's table of objects and the generation of that entry. The
//! generation advances when the entry is given away, so an event that arrives late never reaches
//! the next object. Generation 0 is the device itself: cookie 0 is the device's and cookie 1 its
//! port's, and one object of the driver gets the events of both.

use super::abi::event::{Event, EventKind};

/// An entry of the driver's table of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Index of the entry.
    pub index: u32,
    /// Generation of the entry.
    pub generation: u32,
}

impl Cookie {
    /// The device.
    pub const DEVICE: Self = Self {
        index: 0,
        generation: 0,
    };

    /// First generation of an entry for an object.
    pub const FIRST_GENERATION: u32 = 1;

    /// Reads a cookie. The caller compares the generation with that of the entry.
    #[inline]
    pub fn decode(cookie: u64) -> Self {
        // CAST: The halves of the cookie.
        let (index, generation) = (cookie as u32, (cookie >> 32) as u32);
        if generation == Self::DEVICE.generation {
            return Self::DEVICE;
        }
        Self { index, generation }
    }

    /// The number that the device gets.
    #[inline]
    pub fn value(self) -> u64 {
        (u64::from(self.generation) << 32) | u64::from(self.index)
    }

    /// The generation of an entry for an object after `generation`. It is never the device's.
    pub const fn next_generation(generation: u32) -> u32 {
        match generation.checked_add(1) {
            Some(next) => next,
            None => Self::FIRST_GENERATION,
        }
    }
}

/// An event of a kind that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The kind of event.
    pub kind: EventKind,
    /// The object.
    pub object: Cookie,
}

impl Report {
    /// Reads an event from a buffer, of which the device says to have written `written` bytes.
    ///
    /// `None` for fewer bytes than an event has and more than the buffer has, and for kinds that
    /// only later versions of the device know.
    pub fn decode(buffer: &[u8], written: usize) -> Option<Self> {
        let event = Event::decode(buffer.get(..written)?)?;
        Some(Self {
            kind: event.kind().ok()?,
            object: Cookie::decode(event.cookie),
        })
    }
}
