// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Driver side of a shared receive queue.

use core::ops::DerefMut;

use super::abi::ring::RingLayout;
use super::publish;
use super::RingError;
use super::RingMemory;
use super::SharedSlots;

/// Producer of a shared receive queue.
///
/// Unlike in a [`WorkQueue`](super::WorkQueue), slots are freed in any order, so the ring's `order`
/// array maps each position to its slot.
#[derive(Debug)]
pub struct SharedQueue<L> {
    layout: RingLayout,
    slots: SharedSlots<L>,
    /// Position after the last slot that was offered.
    head: u32,
    /// The producer's position, as published to the device.
    published: u32,
}

impl<L: DerefMut<Target = [u16]>> SharedQueue<L> {
    /// The queue in a zeroed ring. `list` must have an entry for each slot.
    pub fn new(layout: RingLayout, list: L) -> Self {
        Self::starting_at(layout, list, 0)
    }

    /// An empty queue in a ring in which both sides are at `position`.
    pub fn starting_at(layout: RingLayout, list: L, position: u32) -> Self {
        debug_assert_eq!(list.len(), layout.slots() as usize);
        Self {
            layout,
            slots: SharedSlots::new(list),
            head: position,
            published: position,
        }
    }

    /// Offsets of the parts of the ring.
    #[inline]
    pub fn layout(&self) -> &RingLayout {
        &self.layout
    }

    /// Number of slots that [`reserve`](Self::reserve) can still return.
    #[inline]
    pub fn free_slots(&self) -> u16 {
        self.slots.free()
    }

    /// Reserves a slot, or returns `None` if the queue is full. The owner fills the slot and then
    /// [offers](Self::offer) it.
    #[inline]
    pub fn reserve(&mut self) -> Option<u16> {
        self.slots.reserve()
    }

    /// Queues a reserved slot, which must be filled, at the next position. The device sees it after
    /// the next [`publish`](Self::publish).
    #[inline]
    pub fn offer<M: RingMemory + ?Sized>(&mut self, memory: &M, slot: u16) {
        memory.store_u16(self.layout.order(self.head), slot.to_le());
        self.head = self.head.wrapping_add(1);
    }

    /// Publishes all offered slots to the device. Returns whether the device requested a doorbell.
    #[inline]
    #[must_use = "the device may sleep until its doorbell is rung"]
    pub fn publish<M: RingMemory + ?Sized>(&mut self, memory: &M) -> bool {
        let (old, new) = (self.published, self.head);
        if old == new {
            return false;
        }
        self.published = new;
        publish(&self.layout, memory, old, new)
    }

    /// Frees `slot` after its completion was polled.
    ///
    /// # Errors
    ///
    /// Errors of [`SharedSlots::complete`].
    #[inline]
    pub fn complete(&mut self, slot: u16) -> Result<(), RingError> {
        self.slots.complete(slot)
    }

    /// Copies everything that the device may still read from `memory`, the current ring, to
    /// `target`, a zeroed ring of `layout`. The new ring has at least as many slots, of at least
    /// the same size. Until the device has moved, the owner must also fill each slot in `target`,
    /// and [mirror](Self::mirror) its offer there.
    pub fn copy_to<M: RingMemory + ?Sized>(
        &self,
        memory: &M,
        layout: &RingLayout,
        target: &M,
        buffer: &mut [u8],
    ) {
        debug_assert!(layout.slots() >= self.layout.slots());
        debug_assert!(layout.slot_size() >= self.layout.slot_size());
        // The driver does not know which slots the device has fetched, so it copies all slots.
        // Positions continue in the new ring.
        let size = buffer.len().min(self.layout.slot_size() as usize);
        let slots = self.layout.slots();
        for back in (1..=slots).rev() {
            let position = self.head.wrapping_sub(back);
            let slot = memory.load_u16(self.layout.order(position));
            target.store_u16(layout.order(position), slot);
        }
        for slot in 0..slots {
            memory.read(self.layout.slot(slot), &mut buffer[..size]);
            target.write(layout.slot(slot), &buffer[..size]);
        }
        target.store_owner_release(layout, self.head.to_le());
    }

    /// Offers and publishes `slot` in `target`, a ring of `layout` that was [copied
    /// to](Self::copy_to). The position is the one that the next [`offer`](Self::offer) will use in
    /// the current ring.
    pub fn mirror<M: RingMemory + ?Sized>(&self, layout: &RingLayout, target: &M, slot: u16) {
        target.store_u16(layout.order(self.head), slot.to_le());
        target.store_owner_release(layout, self.head.wrapping_add(1).to_le());
    }

    /// Switches to a ring of `layout` that was [copied to](Self::copy_to), after the device has
    /// moved. `list` must have an entry for each slot of the new ring.
    pub fn moved(&mut self, layout: RingLayout, list: L) {
        debug_assert_eq!(list.len(), layout.slots() as usize);
        self.layout = layout;
        self.slots.grow(list);
    }
}
