// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Which slots of a send or receive queue are in use.

use super::position_after;
use super::RingError;

/// Accounts for the slots of a queue of work requests, wherever these lie.
///
/// Slots are taken in order, so the slot of the work request at position `p` is `p` modulo the number of slots. A slot
/// is free again when the completion of its work request, or of a later one, has been polled: then there is room for
/// the completion of the next one in the CQ.
#[derive(Debug)]
pub struct WorkSlots {
    slots: u16,
    /// Position after the last reserved slot.
    head: u16,
    /// Position after the last slot that the device may fetch.
    published: u16,
    /// Position of the oldest slot that is not free.
    tail: u16,
}

impl WorkSlots {
    /// `slots` free slots: a power of two, of at most 32,768.
    pub const fn new(slots: u16) -> Self {
        Self {
            slots,
            head: 0,
            published: 0,
            tail: 0,
        }
    }

    /// Number of slots that [`reserve`](Self::reserve) can still hand out.
    #[inline]
    pub fn free(&self) -> u16 {
        self.slots - self.head.wrapping_sub(self.tail)
    }

    /// Position after the last slot that was published.
    #[inline]
    pub fn published(&self) -> u16 {
        self.published
    }

    /// Takes the next slot, or `None` when all are in use.
    #[inline]
    pub fn reserve(&mut self) -> Option<u16> {
        if self.free() == 0 {
            return None;
        }
        let slot = self.head & (self.slots - 1);
        self.head = self.head.wrapping_add(1);
        Some(slot)
    }

    /// Counts every reserved slot as the device's, and returns how many those are.
    #[inline]
    pub fn publish(&mut self) -> u16 {
        let fresh = self.head.wrapping_sub(self.published);
        self.published = self.head;
        fresh
    }

    /// Takes back the slots that were reserved since the last [`publish`](Self::publish).
    #[inline]
    pub fn withdraw(&mut self) {
        self.head = self.published;
    }

    /// Frees `slot`, whose completion was polled, and every slot before it.
    ///
    /// # Errors
    ///
    /// [`RingError::BadSlot`] and [`RingError::NotOutstanding`] if the device never got this slot or has completed
    /// it before; nothing is freed then.
    #[inline]
    pub fn complete(&mut self, slot: u16) -> Result<(), RingError> {
        if slot >= self.slots {
            return Err(RingError::BadSlot);
        }
        self.reclaim(position_after(self.slots, self.tail, slot))
    }

    /// Frees every slot before position `tail`.
    ///
    /// # Errors
    ///
    /// [`RingError::NotOutstanding`] if the device never got a slot before `tail`; nothing is freed then.
    #[inline]
    pub fn reclaim(&mut self, tail: u16) -> Result<(), RingError> {
        if tail.wrapping_sub(self.tail) > self.published.wrapping_sub(self.tail) {
            return Err(RingError::NotOutstanding);
        }
        self.tail = tail;
        Ok(())
    }

    /// Frees every slot and returns the position of the next.
    pub fn reset(&mut self) -> u16 {
        self.head = self.published;
        self.tail = self.published;
        self.published
    }
}
