// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Allocation of the slots of a send or receive queue.

use super::RingError;

/// Allocates the slots of a queue of work requests, in any kind of memory.
///
/// Slots are used in order: the work request at position `p` is in slot `p` modulo the number of
/// slots. Positions wrap at 32 bits and identify outstanding work requests. A slot is free again
/// when the completion of its work request, or of a later work request, was polled: then the CQ has
/// room for the completion of the next work request.
#[derive(Debug)]
pub struct WorkSlots {
    slots: u32,
    /// Position after the last reserved slot.
    head: u32,
    /// Position after the last slot that the device may fetch.
    published: u32,
    /// Position after the last free slot: the position of the oldest slot in use plus the number
    /// of slots.
    end: u32,
}

impl WorkSlots {
    /// `slots` free slots. `slots` must be a power of two.
    pub const fn new(slots: u32) -> Self {
        Self::starting_at(slots, 0)
    }

    /// `slots` free slots, the next of which has `position`. `slots` must be a power of two.
    pub const fn starting_at(slots: u32, position: u32) -> Self {
        Self {
            slots,
            head: position,
            published: position,
            end: position.wrapping_add(slots),
        }
    }

    /// Number of slots that [`reserve`](Self::reserve) can still return.
    #[inline]
    pub fn free(&self) -> u32 {
        self.end.wrapping_sub(self.head)
    }

    /// Position after the last reserved slot.
    #[inline]
    pub fn reserved(&self) -> u32 {
        self.head
    }

    /// Position after the last published slot.
    #[inline]
    pub fn published(&self) -> u32 {
        self.published
    }

    /// Reserves the next slot and returns its position, or `None` if all are in use.
    #[inline]
    pub fn reserve(&mut self) -> Option<u32> {
        if self.head == self.end {
            return None;
        }
        let position = self.head;
        self.head = position.wrapping_add(1);
        Some(position)
    }

    /// Counts all reserved slots as published, and returns how many are new.
    #[inline]
    pub fn publish(&mut self) -> u32 {
        let fresh = self.head.wrapping_sub(self.published);
        self.published = self.head;
        fresh
    }

    /// Cancels all reservations since the last [`publish`](Self::publish).
    #[inline]
    pub fn withdraw(&mut self) {
        self.head = self.published;
    }

    /// Cancels the last reservation, unless it was published.
    #[inline]
    pub fn cancel(&mut self) {
        if self.head != self.published {
            self.head = self.head.wrapping_sub(1);
        }
    }

    /// Whether the slot at `position` was published and is not complete.
    #[inline]
    pub fn is_outstanding(&self, position: u32) -> bool {
        let tail = self.tail();
        position.wrapping_sub(tail) < self.published.wrapping_sub(tail)
    }

    /// Frees the slot at `position`, whose completion was polled, and all slots before it.
    ///
    /// # Errors
    ///
    /// [`RingError::NotOutstanding`] if this slot was not published or is complete already; nothing
    /// is freed then.
    #[inline]
    pub fn complete(&mut self, position: u32) -> Result<(), RingError> {
        if !self.is_outstanding(position) {
            return Err(RingError::NotOutstanding);
        }
        self.end = position.wrapping_add(1).wrapping_add(self.slots);
        Ok(())
    }

    /// Frees all slots before position `tail`.
    ///
    /// # Errors
    ///
    /// [`RingError::NotOutstanding`] if a slot before `tail` was not published; nothing is freed
    /// then.
    #[inline]
    pub fn reclaim(&mut self, tail: u32) -> Result<(), RingError> {
        let oldest = self.tail();
        if tail.wrapping_sub(oldest) > self.published.wrapping_sub(oldest) {
            return Err(RingError::NotOutstanding);
        }
        self.end = tail.wrapping_add(self.slots);
        Ok(())
    }

    /// Whether published slots exist that are not complete.
    #[inline]
    pub fn has_outstanding(&self) -> bool {
        self.published != self.tail()
    }

    /// Position of the oldest slot in use.
    #[inline]
    pub fn tail(&self) -> u32 {
        self.end.wrapping_sub(self.slots)
    }

    /// Frees all slots and returns the position of the next slot.
    pub fn reset(&mut self) -> u32 {
        self.head = self.published;
        self.end = self.published.wrapping_add(self.slots);
        self.published
    }
}
