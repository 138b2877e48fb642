// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A `Vec` whose capacity is charged.

use std::ops::{Deref, DerefMut};

use crate::{Charge, Exhausted, MemoryBudget};

/// Capacity in items after a list first grows: enough for a list of the extents of contiguous
/// memory, which has two items.
const FIRST: usize = 4;

/// A list with a fixed maximum number of items.
#[derive(Debug)]
pub struct ChargedList<T> {
    items: Vec<T>,
    most: usize,
    /// The charge for the capacity of `items`.
    charge: Charge,
}

impl<T> ChargedList<T> {
    /// An empty list for at most `most` items. It allocates no memory before the first
    /// [`push`](Self::push).
    pub fn new(budget: &MemoryBudget, most: usize) -> Self {
        Self {
            items: Vec::new(),
            most,
            charge: budget.nothing(),
        }
    }

    /// A list of `len` copies of `item`.
    pub fn filled(budget: &MemoryBudget, len: usize, item: T) -> Result<Self, Exhausted>
    where
        T: Clone,
    {
        let mut list = Self::new(budget, len);
        if len > 0 {
            list.grow(len)?;
        }
        list.items.resize(len, item);
        Ok(list)
    }

    /// Appends an item. Fails if the budget is used up or the list has its maximum number of items.
    pub fn push(&mut self, item: T) -> Result<(), Exhausted> {
        if self.items.len() == self.items.capacity() {
            let capacity = (2 * self.items.capacity()).max(FIRST).min(self.most);
            self.grow(capacity)?;
        }
        self.items.push(item);
        Ok(())
    }

    /// Removes all items after the first `len`, and returns the unused capacity to the budget.
    pub fn fit(&mut self, len: usize) {
        self.items.truncate(len);
        self.items.shrink_to_fit();
        // A smaller charge can't fail.
        let _ = self.charge.resize(bytes::<T>(self.items.capacity()));
    }

    /// Grows the capacity to `capacity` items. Fails if this is not more than the present number of
    /// items.
    fn grow(&mut self, capacity: usize) -> Result<(), Exhausted> {
        let exhausted = Exhausted {
            needed: bytes::<T>(capacity),
            left: 0,
        };
        let more = capacity.checked_sub(self.items.len());
        let more = more.filter(|more| *more > 0).ok_or(exhausted)?;
        let before = self.items.capacity();
        self.charge.resize(bytes::<T>(capacity))?;
        let grown = self.items.try_reserve_exact(more);
        // The allocator may give more capacity than requested.
        let counted = self.charge.resize(bytes::<T>(self.items.capacity()));
        if grown.is_err() || counted.is_err() {
            self.items.shrink_to(before);
            let _ = self.charge.resize(bytes::<T>(self.items.capacity()));
            return Err(exhausted);
        }
        Ok(())
    }
}

/// Size of `items` items in bytes.
pub(crate) fn bytes<T>(items: usize) -> u64 {
    (items as u64).saturating_mul(size_of::<T>() as u64)
}

impl<T> Deref for ChargedList<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<T> DerefMut for ChargedList<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capacity_is_charged() {
        let budget = MemoryBudget::new(8 * 100);
        let mut list = ChargedList::new(&budget, 1000);
        assert_eq!(budget.used(), 0);
        let mut pushed = 0;
        while list.push(pushed).is_ok() {
            pushed += 1u64;
            assert!(8 * pushed <= budget.used() && budget.used() <= budget.limit());
        }
        assert_eq!((pushed, list.len()), (64, 64), "128 do not fit");
        list.fit(10);
        assert_eq!(budget.used(), 80);
        assert_eq!(list[..], (0..10).collect::<Vec<_>>());
        drop(list);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn no_more_than_was_said() {
        let budget = MemoryBudget::new(u64::MAX);
        let mut list = ChargedList::new(&budget, 5);
        for n in 0..5u8 {
            list.push(n).unwrap();
        }
        assert_eq!(budget.used(), 5, "not the next power of two");
        assert!(list.push(5).is_err());
        let mut bytes = ChargedList::filled(&budget, 3, 7u8).unwrap();
        bytes[1] = 8;
        assert_eq!(bytes[..], [7, 8, 7]);
        assert!(ChargedList::filled(&budget, usize::MAX, 7u8).is_err());
        assert_eq!(budget.used(), 8);
        assert!(ChargedList::filled(&budget, 0, 7u8).unwrap().is_empty());
    }
}
