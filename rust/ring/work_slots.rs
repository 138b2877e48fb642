// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Slots of a send or receive queue that are in use.

use super::RingError;

/// Accounts for the slots of a queue of work requests, wherever these lie.
///
/// Slots are taken in order, so the slot of the work request at position `p` is `p` modulo the
/// number of slots, and positions, which wrap at 32 bits, name outstanding work requests. A slot is
/// free again when the completion of its work request, or of a later one, has been polled: then
/// there is room for the completion of the next one in the CQ.
#[derive(Debug)]
pub struct WorkSlots {
    slots: u32,
    /// Position after the last reserved slot.
    head: u32,
    /// Position after the last slot that the device may fetch.
    published: u32,
    /// Position after the last free slot: a turn of the ring after the oldest that is not free.
    end: u32,
}

impl WorkSlots {
    /// `slots` free slots, a power of two.
    pub const fn new(slots: u32) -> Self {
        Self::starting_at(slots, 0)
    }

    /// `slots` free slots, a power of two, of which the next has this position.
    pub const fn starting_at(slots: u32, position: u32) -> Self {
        Self {
            slots,
            head: position,
            published: position,
            end: position.wrapping_add(slots),
        }
    }

    /// Number of slots that [`reserve`](Self::reserve) can still hand out.
    #[inline]
    pub fn free(&self) -> u32 {
        self.end.wrapping_sub(self.head)
    }

    /// Position after the last reserved slot.
    #[inline]
    pub fn reserved(&self) -> u32 {
        self.head
    }

    /// Position after the last slot that was published.
    #[inline]
    pub fn published(&self) -> u32 {
        self.published
    }

    /// Takes the next slot and returns its position, or `None` when all are in use.
    #[inline]
    pub fn reserve(&mut self) -> Option<u32> {
        if self.head == self.end {
            return None;
        }
        let position = self.head;
        self.head = position.wrapping_add(1);
        Some(position)
    }

    /// Counts every reserved slot as the device's, and returns how many those are.
    #[inline]
    pub fn publish(&mut self) -> u32 {
        let fresh = self.head.wrapping_sub(self.published);
        self.published = self.head;
        fresh
    }

    /// Takes back the slots that were reserved since the last [`publish`](Self::publish).
    #[inline]
    pub fn withdraw(&mut self) {
        self.head = self.published;
    }

    /// Takes back the slot that was reserved last, unless it was published.
    #[inline]
    pub fn cancel(&mut self) {
        if self.head != self.published {
            self.head = self.head.wrapping_sub(1);
        }
    }

    /// Whether the slot at `position` was published and is not completed.
    #[inline]
    pub fn is_outstanding(&self, position: u32) -> bool {
        let tail = self.tail();
        position.wrapping_sub(tail) < self.published.wrapping_sub(tail)
    }

    /// Frees the slot at `position`, whose completion was polled, and every slot before it.
    ///
    /// # Errors
    ///
    /// [`RingError::NotOutstanding`] if the device never got this slot or has completed it before;
    /// nothing is freed then.
    #[inline]
    pub fn complete(&mut self, position: u32) -> Result<(), RingError> {
        if !self.is_outstanding(position) {
            return Err(RingError::NotOutstanding);
        }
        self.end = position.wrapping_add(1).wrapping_add(self.slots);
        Ok(())
    }

    /// Frees every slot before position `tail`.
    ///
    /// # Errors
    ///
    /// [`RingError::NotOutstanding`] if the device never got a slot before `tail`; nothing is freed
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

    /// Whether there are slots that were published and not completed.
    #[inline]
    pub fn has_outstanding(&self) -> bool {
        self.published != self.tail()
    }

    /// Position of the oldest slot that is not free.
    #[inline]
    fn tail(&self) -> u32 {
        self.end.wrapping_sub(self.slots)
    }

    /// Frees every slot and returns the position of the next.
    pub fn reset(&mut self) -> u32 {
        self.head = self.published;
        self.end = self.published.wrapping_add(self.slots);
        self.published
    }
}
