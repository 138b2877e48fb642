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
/// Unlike in a [`WorkQueue`](super::WorkQueue), slots come back in any order, so `order` in the
/// ring names the slot of each position.
#[derive(Debug)]
pub struct SharedQueue<L> {
    layout: RingLayout,
    slots: SharedSlots<L>,
    /// Position after the last slot that was filled.
    head: u32,
    /// The producer's position as the device sees it.
    published: u32,
}

impl<L: DerefMut<Target = [u16]>> SharedQueue<L> {
    /// The queue in a ring that is all zeroes. `list` has an entry for each slot.
    pub fn new(layout: RingLayout, list: L) -> Self {
        Self::starting_at(layout, list, 0)
    }

    /// The queue, without work, in a ring whose two sides are both at `position`.
    pub fn starting_at(layout: RingLayout, list: L, position: u32) -> Self {
        debug_assert_eq!(list.len(), layout.slots() as usize);
        Self {
            layout,
            slots: SharedSlots::new(list),
            head: position,
            published: position,
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
        self.slots.free()
    }

    /// Takes a slot, or `None` when the queue is full. Its owner fills it and then
    /// [offers](Self::offer) it.
    #[inline]
    pub fn reserve(&mut self) -> Option<u16> {
        self.slots.reserve()
    }

    /// Puts a reserved slot, which is filled, behind those that were offered before. The device
    /// sees it from [`publish`](Self::publish) on.
    #[inline]
    pub fn offer<M: RingMemory + ?Sized>(&mut self, memory: &M, slot: u16) {
        memory.store_u16(self.layout.order(self.head), slot.to_le());
        self.head = self.head.wrapping_add(1);
    }

    /// Hands every offered slot to the device. Returns whether the device asked for a doorbell.
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

    /// Frees `slot`, whose completion was polled.
    ///
    /// # Errors
    ///
    /// Errors of [`SharedSlots::complete`].
    #[inline]
    pub fn complete(&mut self, slot: u16) -> Result<(), RingError> {
        self.slots.complete(slot)
    }

    /// Copies all that the device may still read from `memory`, where the queue lies, to `target`,
    /// a ring of `layout` that is all zeroes and has no fewer nor shorter slots. Until the device
    /// has moved there, whatever is filled and offered has to be [written there](Self::mirror) too.
    pub fn copy_to<M: RingMemory + ?Sized>(
        &self,
        memory: &M,
        layout: &RingLayout,
        target: &M,
        buffer: &mut [u8],
    ) {
        debug_assert!(layout.slots() >= self.layout.slots());
        debug_assert!(layout.slot_size() >= self.layout.slot_size());
        // The driver does not know which of its slots the device has fetched, so all are copied: by
        // position, which goes on.
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

    /// Offers `slot` in `target`, a ring of `layout` that was [copied to](Self::copy_to), at the
    /// position that the next [`offer`](Self::offer) will have here, and lets the device have it
    /// there.
    pub fn mirror<M: RingMemory + ?Sized>(&self, layout: &RingLayout, target: &M, slot: u16) {
        target.store_u16(layout.order(self.head), slot.to_le());
        target.store_owner_release(layout, self.head.wrapping_add(1).to_le());
    }

    /// The device has moved to a ring of `layout` that was [copied to](Self::copy_to): the queue
    /// goes on there. `list` has an entry for each of its slots.
    pub fn moved(&mut self, layout: RingLayout, list: L) {
        debug_assert_eq!(list.len(), layout.slots() as usize);
        self.layout = layout;
        self.slots.grow(list);
    }
}
