// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A `VecDeque` whose capacity is charged.

use std::collections::VecDeque;
use std::ops::Deref;

use crate::list::bytes;
use crate::{Charge, Exhausted, MemoryBudget};

/// A queue whose maximum number of items is set by [`make_room`](Self::make_room).
#[derive(Debug)]
pub struct ChargedQueue<T> {
    items: VecDeque<T>,
    room: usize,
    /// The charge for the capacity of `items`. `None` while the queue has no room.
    charge: Option<Charge>,
}

impl<T> ChargedQueue<T> {
    /// A queue with room for `room` items.
    pub fn new(budget: &MemoryBudget, room: usize) -> Result<Self, Exhausted> {
        let mut queue = Self::default();
        queue.make_room(budget, room)?;
        Ok(queue)
    }

    /// Grows the queue's room to `room` items. A queue with more room does not change.
    pub fn make_room(&mut self, budget: &MemoryBudget, room: usize) -> Result<(), Exhausted> {
        if room <= self.room {
            return Ok(());
        }
        let charge = budget.charge(bytes::<T>(room))?;
        let more = room - self.items.len();
        let needed = bytes::<T>(more);
        self.items
            .try_reserve_exact(more)
            .map_err(|_| Exhausted { needed, left: 0 })?;
        self.charge = Some(charge);
        self.room = room;
        Ok(())
    }

    /// Whether the queue holds its maximum number of items.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.items.len() >= self.room
    }

    /// Appends an item. Returns the item as the error if there is no room.
    #[inline]
    pub fn push_back(&mut self, item: T) -> Result<(), T> {
        if self.is_full() {
            return Err(item);
        }
        self.items.push_back(item);
        Ok(())
    }

    /// Takes the first item.
    #[inline]
    pub fn pop_front(&mut self) -> Option<T> {
        self.items.pop_front()
    }

    /// Takes the last item.
    #[inline]
    pub fn pop_back(&mut self) -> Option<T> {
        self.items.pop_back()
    }

    /// The item at `index`.
    #[inline]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.items.get_mut(index)
    }

    /// Takes all items.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.items.drain(..)
    }
}

impl<T> Default for ChargedQueue<T> {
    /// A queue without room.
    fn default() -> Self {
        Self {
            items: VecDeque::new(),
            room: 0,
            charge: None,
        }
    }
}

impl<T> Deref for ChargedQueue<T> {
    type Target = VecDeque<T>;

    #[inline]
    fn deref(&self) -> &VecDeque<T> {
        &self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_is_charged() {
        let budget = MemoryBudget::new(80);
        let mut queue = ChargedQueue::default();
        assert_eq!(queue.push_back(1u64), Err(1));
        assert!(queue.make_room(&budget, 11).is_err());
        queue.make_room(&budget, 3).unwrap();
        assert_eq!(budget.used(), 24);
        for n in 0..3 {
            queue.push_back(n).unwrap();
        }
        assert_eq!(queue.push_back(3), Err(3));
        assert_eq!(queue.pop_front(), Some(0));
        queue.make_room(&budget, 4).unwrap();
        assert_eq!(budget.used(), 32);
        assert!(queue.items.capacity() < 2 + 4, "room for two more");
        *queue.get_mut(1).unwrap() = 7;
        assert_eq!(queue.get_mut(2), None);
        assert_eq!(queue.pop_back(), Some(7));
        queue.push_back(2).unwrap();
        assert_eq!(queue.drain().collect::<Vec<_>>(), [1, 2]);
        drop(queue);
        assert_eq!(budget.used(), 0);
    }
}
