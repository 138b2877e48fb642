// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Driver side of a send or receive queue.

use super::abi::ring::RingLayout;
use super::publish;
use super::RingError;
use super::RingMemory;
use super::WorkSlots;

/// Producer of a send or receive queue. Slots are taken in ring order, see [`WorkSlots`].
#[derive(Debug)]
pub struct WorkQueue {
    layout: RingLayout,
    slots: WorkSlots,
}

impl WorkQueue {
    /// The queue in a ring that is all zeroes.
    pub const fn new(layout: RingLayout) -> Self {
        Self::starting_at(layout, 0)
    }

    /// The queue in a ring whose two sides are both at `position`.
    pub const fn starting_at(layout: RingLayout, position: u32) -> Self {
        Self {
            slots: WorkSlots::starting_at(layout.slots(), position),
            layout,
        }
    }

    /// Where the parts of the ring lie.
    #[inline]
    pub fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// Number of slots that [`reserve`](Self::reserve) can still hand out.
    #[inline]
    pub fn free_slots(&self) -> u32 {
        self.slots.free()
    }

    /// Takes the next slot and returns its position, or `None` when the queue is full. The slot is
    /// at [`RingLayout::slot`] of the position. The device sees it from [`publish`](Self::publish)
    /// on; until then its owner fills it.
    #[inline]
    pub fn reserve(&mut self) -> Option<u32> {
        self.slots.reserve()
    }

    /// Position after the last slot that was reserved.
    #[inline]
    pub fn reserved(&self) -> u32 {
        self.slots.reserved()
    }

    /// Hands every reserved slot to the device. Returns whether the device asked for a doorbell.
    #[inline]
    #[must_use = "the device may sleep until its doorbell is rung"]
    pub fn publish<M: RingMemory + ?Sized>(&mut self, memory: &M) -> bool {
        let old = self.slots.published();
        if self.slots.publish() == 0 {
            return false;
        }
        publish(&self.layout, memory, old, self.slots.published())
    }

    /// Takes back every slot that was reserved since the last [`publish`](Self::publish).
    #[inline]
    pub fn withdraw(&mut self) {
        self.slots.withdraw();
    }

    /// Takes back the slot that was reserved last, unless it was published.
    #[inline]
    pub fn cancel(&mut self) {
        self.slots.cancel();
    }

    /// Whether the device has the slot at `position`, and its completion was not polled.
    #[inline]
    pub fn is_outstanding(&self, position: u32) -> bool {
        self.slots.is_outstanding(position)
    }

    /// Frees the slot at `position`, whose completion was polled, and every slot before it.
    ///
    /// # Errors
    ///
    /// Errors of [`WorkSlots::complete`].
    #[inline]
    pub fn complete(&mut self, position: u32) -> Result<(), RingError> {
        self.slots.complete(position)
    }

    /// Frees every slot before position `tail`. For an owner whose polling side has a lock of its
    /// own: it keeps the position of the oldest slot that is not complete, and the posting side
    /// reclaims up to there.
    ///
    /// # Errors
    ///
    /// Errors of [`WorkSlots::reclaim`].
    #[inline]
    pub fn reclaim(&mut self, tail: u32) -> Result<(), RingError> {
        self.slots.reclaim(tail)
    }

    /// Whether the device has slots whose completions were not polled.
    #[inline]
    pub fn has_outstanding(&self) -> bool {
        self.slots.has_outstanding()
    }

    /// Frees every slot and returns the position of the next. For a queue whose device side has
    /// just given all back (QP state RESET).
    pub fn reset(&mut self) -> u32 {
        self.slots.reset()
    }
}
