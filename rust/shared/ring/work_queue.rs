// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Driver side of a send or receive queue.

use super::abi::ring::RingLayout;
use super::publish;
use super::RingError;
use super::RingMemory;
use super::WorkSlots;

/// Producer of a send or receive queue. Slots are used in ring order, see [`WorkSlots`].
#[derive(Debug)]
pub struct WorkQueue {
    layout: RingLayout,
    slots: WorkSlots,
}

impl WorkQueue {
    /// The queue in a zeroed ring.
    pub const fn new(layout: RingLayout) -> Self {
        Self::starting_at(layout, 0)
    }

    /// The queue in a ring in which both sides are at `position`.
    pub const fn starting_at(layout: RingLayout, position: u32) -> Self {
        Self {
            slots: WorkSlots::starting_at(layout.slots(), position),
            layout,
        }
    }

    /// Offsets of the parts of the ring.
    #[inline]
    pub fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// Number of slots that [`reserve`](Self::reserve) can still return.
    #[inline]
    pub fn free_slots(&self) -> u32 {
        self.slots.free()
    }

    /// Positions of the producer and of the oldest outstanding work request.
    pub fn positions(&self) -> (u32, u32) {
        (self.slots.published(), self.slots.tail())
    }

    /// Reserves the next slot and returns its position, or `None` if the queue is full. The slot is
    /// at [`RingLayout::slot`] of the position. The owner fills it; the device sees it after the
    /// next [`publish`](Self::publish).
    #[inline]
    pub fn reserve(&mut self) -> Option<u32> {
        self.slots.reserve()
    }

    /// Position after the last reserved slot.
    #[inline]
    pub fn reserved(&self) -> u32 {
        self.slots.reserved()
    }

    /// Publishes all reserved slots to the device. Returns whether the device requested a doorbell.
    #[inline]
    #[must_use = "the device may sleep until its doorbell is rung"]
    pub fn publish<M: RingMemory + ?Sized>(&mut self, memory: &M) -> bool {
        let old = self.slots.published();
        if self.slots.publish() == 0 {
            return false;
        }
        publish(&self.layout, memory, old, self.slots.published())
    }

    /// Cancels all reservations since the last [`publish`](Self::publish).
    #[inline]
    pub fn withdraw(&mut self) {
        self.slots.withdraw();
    }

    /// Cancels the last reservation, unless it was published.
    #[inline]
    pub fn cancel(&mut self) {
        self.slots.cancel();
    }

    /// Whether the slot at `position` was published and its completion was not polled.
    #[inline]
    pub fn is_outstanding(&self, position: u32) -> bool {
        self.slots.is_outstanding(position)
    }

    /// Frees the slot at `position`, whose completion was polled, and all slots before it.
    ///
    /// # Errors
    ///
    /// Errors of [`WorkSlots::complete`].
    #[inline]
    pub fn complete(&mut self, position: u32) -> Result<(), RingError> {
        self.slots.complete(position)
    }

    /// Frees all slots before position `tail`. For an owner whose polling side has a separate lock:
    /// the polling side records the position of the oldest incomplete slot, and the posting side
    /// frees all slots before it.
    ///
    /// # Errors
    ///
    /// Errors of [`WorkSlots::reclaim`].
    #[inline]
    pub fn reclaim(&mut self, tail: u32) -> Result<(), RingError> {
        self.slots.reclaim(tail)
    }

    /// Whether published slots exist whose completions were not polled.
    #[inline]
    pub fn has_outstanding(&self) -> bool {
        self.slots.has_outstanding()
    }

    /// Frees all slots and returns the position of the next slot, after the device has reset its
    /// side (QP state RESET).
    pub fn reset(&mut self) -> u32 {
        self.slots.reset()
    }
}
