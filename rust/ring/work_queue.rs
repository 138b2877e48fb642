// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Driver side of a send or receive queue.

use super::abi::ring::RingLayout;
use super::offer_every_slot;
use super::passes_event;
use super::position_after;
use super::RingError;
use super::RingMemory;

/// Producer of a send or receive queue.
///
/// Slots are taken in ring order, so the slot of the work request at position `p` is `p` modulo the number of
/// slots: the ring of available slot numbers never changes and is written once, by [`new`](Self::new). A slot is
/// free again when the completion of its work request, or of a later one, has been polled. What the device writes to
/// the used ring is not read: it says that a slot may be overwritten, but not that its completion has room in the CQ.
#[derive(Debug)]
pub struct WorkQueue {
    layout: RingLayout,
    slots: u16,
    /// Position after the last reserved slot.
    head: u16,
    /// Position after the last slot that the device may fetch.
    published: u16,
    /// Position of the oldest slot that is not free.
    tail: u16,
}

impl WorkQueue {
    /// Starts a queue in `memory`, which is all zeroes and not yet known to the device.
    pub fn new<M: RingMemory + ?Sized>(layout: RingLayout, memory: &M) -> Self {
        Self {
            layout,
            slots: offer_every_slot(&layout, memory),
            head: 0,
            published: 0,
            tail: 0,
        }
    }

    /// Where the parts of the ring lie.
    #[inline]
    pub fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// Number of slots that [`reserve`](Self::reserve) can still hand out.
    #[inline]
    pub fn free_slots(&self) -> u16 {
        self.slots - self.head.wrapping_sub(self.tail)
    }

    /// Takes the next slot, or `None` when the queue is full. The device sees it from [`publish`](Self::publish) on;
    /// until then its owner fills it.
    #[inline]
    pub fn reserve(&mut self) -> Option<u16> {
        if self.head.wrapping_sub(self.tail) == self.slots {
            return None;
        }
        let slot = self.head & (self.slots - 1);
        self.head = self.head.wrapping_add(1);
        Some(slot)
    }

    /// Hands every reserved slot to the device. Returns whether the device asked for a doorbell.
    #[inline]
    #[must_use = "the device may sleep until its doorbell is rung"]
    pub fn publish<M: RingMemory + ?Sized>(&mut self, memory: &M) -> bool {
        let old = self.published;
        if old == self.head {
            return false;
        }
        self.published = self.head;
        memory.store_u16_release(self.layout.avail_idx(), self.head.to_le());
        // The device stores avail_event and then looks at avail.idx once more: one of the two sees the other's store.
        memory.full_barrier();
        let event = u16::from_le(memory.load_u16(self.layout.avail_event()));
        passes_event(event, self.head, old)
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

    /// Frees every slot before position `tail`. For an owner whose polling side has a lock of its own: it keeps the
    /// position of the oldest slot that is not complete, advances it with [`position_after`], and the posting side
    /// reclaims up to there.
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

    /// Frees every slot and returns the position of the next. For a queue whose device side has just given all back
    /// (QP state RESET).
    pub fn reset(&mut self) -> u16 {
        self.head = self.published;
        self.tail = self.published;
        self.published
    }
}
