// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A set of indices of which few are in it: to empty it takes no longer for a larger table.

use std::mem;

/// The set.
#[derive(Debug)]
pub(crate) struct Listed {
    /// Whether each index is in the set.
    is_listed: Vec<bool>,
    list: Vec<usize>,
}

impl Listed {
    /// An empty set of indices below `size`.
    pub(crate) fn new(size: usize) -> Self {
        Self {
            is_listed: vec![false; size],
            list: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, index: usize) {
        if !mem::replace(&mut self.is_listed[index], true) {
            self.list.push(index);
        }
    }

    /// All indices, in the order in which they were added.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        self.list.iter().copied()
    }

    /// Moves all indices to `to`, in ascending order. Replaces the contents of `to`.
    pub(crate) fn take(&mut self, to: &mut Vec<usize>) {
        to.clear();
        mem::swap(&mut self.list, to);
        to.sort_unstable();
        for index in &*to {
            self.is_listed[*index] = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_each_index_once_and_returns_them_in_order() {
        let (mut set, mut taken) = (Listed::new(8), vec![5]);
        for index in [7, 2, 7, 0] {
            set.add(index);
        }
        assert_eq!(Vec::from_iter(set.iter()), [7, 2, 0]);
        set.take(&mut taken);
        assert_eq!(taken, [0, 2, 7]);
        set.add(2);
        set.take(&mut taken);
        assert_eq!(taken, [2]);
        set.take(&mut taken);
        assert_eq!(taken, []);
    }
}
