// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Allocation of the slots of a shared receive queue.

use core::ops::DerefMut;

use super::RingError;

/// Entry of a slot in use. No slot has this number.
const IN_USE: u16 = u16::MAX;
/// Entry that ends the list of free slots. No slot has this number.
const END: u16 = u16::MAX - 1;

/// Allocates the slots of a shared receive queue. Its work requests complete in any order, since
/// several QPs fetch them.
///
/// Free slots form a linked list, so all operations are O(1). The list is in private memory of the
/// owner. `L` holds an entry for each slot.
#[derive(Debug)]
pub struct SharedSlots<L> {
    /// The entry of a free slot is the number of the next free slot, the entry of any other slot is
    /// [`IN_USE`].
    list: L,
    first: u16,
    /// Number of free slots.
    free: u16,
}

impl<L: DerefMut<Target = [u16]>> SharedSlots<L> {
    /// An allocator with one free slot for each entry of `list`, at most 32,768.
    pub fn new(list: L) -> Self {
        let mut this = Self {
            list,
            first: END,
            free: 0,
        };
        this.add(0);
        this
    }

    /// Adds the slots from number `from` on to the free list, the lowest first.
    fn add(&mut self, from: usize) {
        for slot in (from..self.list.len()).rev() {
            self.list[slot] = self.first;
            // LOSSLESS: A `u16` can count all slots.
            self.first = slot as u16;
            self.free += 1;
        }
    }

    /// Number of slots that [`reserve`](Self::reserve) can still return.
    #[inline]
    pub fn free(&self) -> u16 {
        self.free
    }

    /// Reserves a slot, or returns `None` if all are in use.
    #[inline]
    pub fn reserve(&mut self) -> Option<u16> {
        let slot = self.first;
        let entry = self.list.get_mut(usize::from(slot))?;
        self.first = *entry;
        *entry = IN_USE;
        self.free -= 1;
        Some(slot)
    }

    /// Frees `slot` after its completion was polled.
    ///
    /// # Errors
    ///
    /// [`RingError::BadSlot`] or [`RingError::NotOutstanding`] if `slot` is not in use; nothing
    /// changes then.
    #[inline]
    pub fn complete(&mut self, slot: u16) -> Result<(), RingError> {
        let entry = self
            .list
            .get_mut(usize::from(slot))
            .ok_or(RingError::BadSlot)?;
        if *entry != IN_USE {
            return Err(RingError::NotOutstanding);
        }
        *entry = self.first;
        self.first = slot;
        self.free += 1;
        Ok(())
    }

    /// Replaces the list by `list`, which has more entries. Slots in use stay in use.
    pub fn grow(&mut self, mut list: L) {
        let slots = self.list.len();
        list[..slots].copy_from_slice(&self.list);
        self.list = list;
        self.add(slots);
    }
}
