// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Slots of a shared receive queue that are in use.

use core::ops::DerefMut;

use super::RingError;

/// A slot that is in use. No slot has this number.
const IN_USE: u16 = u16::MAX;
/// The end of the list of free slots. No slot has this number.
const END: u16 = u16::MAX - 1;

/// Accounts for the slots of a shared receive queue, whose work requests complete in any order,
/// since QPs take turns to fetch them.
///
/// Free slots are a list, so each step costs the same. It lies in memory of the owner's, which the
/// device can't reach. `L` holds an entry for each slot.
#[derive(Debug)]
pub struct SharedSlots<L> {
    /// Of a free slot the next free one, else [`IN_USE`].
    list: L,
    first: u16,
    /// Number of free slots.
    free: u16,
}

impl<L: DerefMut<Target = [u16]>> SharedSlots<L> {
    /// As many free slots as `list` has entries: at most 32,768.
    pub fn new(list: L) -> Self {
        let mut this = Self {
            list,
            first: END,
            free: 0,
        };
        this.add(0);
        this
    }

    /// Puts slots from `from` up into the list, the lowest first.
    fn add(&mut self, from: usize) {
        for slot in (from..self.list.len()).rev() {
            self.list[slot] = self.first;
            // There are no more slots than a u16 counts.
            self.first = slot as u16;
            self.free += 1;
        }
    }

    /// Number of slots that [`reserve`](Self::reserve) can still hand out.
    #[inline]
    pub fn free(&self) -> u16 {
        self.free
    }

    /// Takes a slot, or `None` when all are in use.
    #[inline]
    pub fn reserve(&mut self) -> Option<u16> {
        let slot = self.first;
        let entry = self.list.get_mut(usize::from(slot))?;
        self.first = *entry;
        *entry = IN_USE;
        self.free -= 1;
        Some(slot)
    }

    /// Frees `slot`, whose completion was polled.
    ///
    /// # Errors
    ///
    /// [`RingError::BadSlot`] and [`RingError::NotOutstanding`] if it is not in use; nothing
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

    /// Goes on in `list`, which has more entries. Slots in use stay in use.
    pub fn grow(&mut self, mut list: L) {
        let slots = self.list.len();
        list[..slots].copy_from_slice(&self.list);
        self.list = list;
        self.add(slots);
    }
}
