// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! QPs by number, as a CQ looks them up: at a cost that does not depend on how many there are.

/// log2 of the entries of a leaf.
const LEAF_SHIFT: u32 = 8;
const LEAF_SIZE: usize = 1 << LEAF_SHIFT;

/// A sparse array with two levels. The device gives low numbers first, so the first level stays short.
pub struct Table<T> {
    leaves: Vec<Option<Box<Leaf<T>>>>,
}

struct Leaf<T> {
    entries: [Option<T>; LEAF_SIZE],
    used: usize,
}

fn split(number: u32) -> (usize, usize) {
    (
        (number >> LEAF_SHIFT) as usize,
        number as usize & (LEAF_SIZE - 1),
    )
}

impl<T> Table<T> {
    /// An empty table.
    pub const fn new() -> Self {
        Self { leaves: Vec::new() }
    }

    /// The entry of `number`.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        let (leaf, index) = split(number);
        self.leaves.get(leaf)?.as_ref()?.entries[index].as_ref()
    }

    /// Sets the entry of `number`, a value of 24 bits, and returns the one before.
    pub fn insert(&mut self, number: u32, value: T) -> Option<T> {
        let (leaf, index) = split(number);
        if leaf >= self.leaves.len() {
            self.leaves.resize_with(leaf + 1, || None);
        }
        let leaf = self.leaves[leaf].get_or_insert_with(|| {
            Box::new(Leaf {
                entries: [const { None }; LEAF_SIZE],
                used: 0,
            })
        });
        let before = leaf.entries[index].replace(value);
        leaf.used += usize::from(before.is_none());
        before
    }

    /// Clears the entry of `number` and returns it.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let (leaf_index, index) = split(number);
        let leaf = self.leaves.get_mut(leaf_index)?.as_mut()?;
        let before = leaf.entries[index].take()?;
        leaf.used -= 1;
        if leaf.used == 0 {
            self.leaves[leaf_index] = None;
        }
        Some(before)
    }
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_and_go() {
        let mut table = Table::new();
        for number in [0, 1, 255, 256, 0x00ff_ffff] {
            assert_eq!(table.get(number), None);
            assert_eq!(table.insert(number, number), None);
            assert_eq!(table.get(number), Some(&number));
        }
        assert_eq!(table.get(2), None);
        assert_eq!(table.get(0x0100_0000), None);
        assert_eq!(table.insert(256, 7), Some(256));
        assert_eq!(table.remove(256), Some(7));
        assert_eq!(table.remove(256), None);
        assert_eq!(table.get(255), Some(&255));
        assert!(table.leaves[1].is_none(), "an empty leaf is freed");
    }
}
