// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sets of objects that are ready for a turn.

use std::marker::PhantomData;

use virtio_rdma_abi::number::Number;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

const WORD: u32 = u64::BITS;

/// A set of small numbers. Any thread may add numbers, and any worker may take them. Numbers are
/// taken round robin.
///
/// Adding a number sets a bit, without lock or allocation. A number that is added repeatedly is in
/// the set once.
#[derive(Debug)]
pub struct ReadySet<N> {
    bits: Box<[AtomicU64]>,
    /// Bit n is set if word n of `bits` may be nonzero. If the bit is clear, the word is 0, or a
    /// thread is about to set the bit.
    summary: Box<[AtomicU64]>,
    /// Number at which the next search starts.
    cursor: AtomicU32,
    number: PhantomData<N>,
}

impl<N: Number> ReadySet<N> {
    /// An empty set for numbers below `size`.
    pub fn new(size: u32) -> Self {
        let words = |n: u32| {
            (0..n.div_ceil(WORD))
                .map(|_| AtomicU64::new(0))
                .collect::<Box<[_]>>()
        };
        let bits = words(size);
        Self {
            summary: words(bits.len() as u32),
            bits,
            cursor: AtomicU32::new(0),
            number: PhantomData,
        }
    }

    /// Adds `number`. Returns whether it was not in the set before.
    #[inline]
    pub fn insert(&self, number: N) -> bool {
        let number = number.get();
        let word = number / WORD;
        let Some(bits) = self.bits.get(word as usize) else {
            return false;
        };
        let bit = 1 << (number % WORD);
        if bits.fetch_or(bit, Ordering::AcqRel) & bit != 0 {
            return false;
        }
        self.summary[(word / WORD) as usize].fetch_or(1 << (word % WORD), Ordering::AcqRel);
        true
    }

    /// Whether `number` is in the set.
    #[inline]
    pub(crate) fn contains(&self, number: N) -> bool {
        let number = number.get();
        let word = self.bits.get((number / WORD) as usize);
        word.is_some_and(|bits| bits.load(Ordering::Relaxed) & (1 << (number % WORD)) != 0)
    }

    /// Takes the next number after the one that was taken last.
    pub fn take(&self) -> Option<N> {
        let start = self.cursor.load(Ordering::Relaxed);
        let number = self.take_from(start).or_else(|| self.take_from(0))?;
        self.cursor.store(number + 1, Ordering::Relaxed);
        Some(N::new(number))
    }

    /// Removes `number`. Returns whether it was in the set.
    #[inline]
    pub fn remove(&self, number: N) -> bool {
        let number = number.get();
        let (word, bit) = (number / WORD, 1 << (number % WORD));
        let Some(bits) = self.bits.get(word as usize) else {
            return false;
        };
        if bits.load(Ordering::Relaxed) & bit == 0 {
            return false;
        }
        let before = bits.fetch_and(!bit, Ordering::AcqRel);
        if before == bit {
            self.tidy(word);
        }
        before & bit != 0
    }

    /// Whether the set is empty. May still return false after the last number was taken, until
    /// [`take`](Self::take) finds no number and corrects the summary.
    pub fn is_empty(&self) -> bool {
        self.summary
            .iter()
            .all(|word| word.load(Ordering::Acquire) == 0)
    }

    /// Whether the set has a number for which `is_wanted` is true.
    pub fn any(&self, mut is_wanted: impl FnMut(N) -> bool) -> bool {
        (0..).zip(&self.summary).any(|(group, summary)| {
            bits_of(summary.load(Ordering::Acquire)).any(|word| {
                let word = group * WORD + word;
                let numbers = self.bits[word as usize].load(Ordering::Acquire);
                bits_of(numbers).any(|number| is_wanted(N::new(word * WORD + number)))
            })
        })
    }

    /// Takes the smallest number from `start` on.
    fn take_from(&self, start: u32) -> Option<u32> {
        let first = start / WORD;
        let mut index = first;
        while let Some(word) = self.next_word(index) {
            let from = if word == first { start % WORD } else { 0 };
            if let Some(number) = self.take_in(word, from) {
                return Some(number);
            }
            index = word + 1;
        }
        None
    }

    /// Index of the first word from `index` on whose summary bit is set.
    fn next_word(&self, index: u32) -> Option<u32> {
        let mut group = index / WORD;
        let mut mask = u64::MAX << (index % WORD);
        loop {
            let summary = self.summary.get(group as usize)?.load(Ordering::Acquire) & mask;
            if summary != 0 {
                return Some(group * WORD + summary.trailing_zeros());
            }
            group += 1;
            mask = u64::MAX;
        }
    }

    fn take_in(&self, word: u32, from: u32) -> Option<u32> {
        let bits = &self.bits[word as usize];
        loop {
            let seen = bits.load(Ordering::Acquire);
            let candidates = seen & (u64::MAX << from);
            if candidates == 0 {
                // Other threads may have found the set empty while `tidy` had cleared the summary
                // bit, so numbers that were added meanwhile must be taken here.
                if seen == 0 && self.tidy(word) {
                    continue;
                }
                return None;
            }
            let bit = 1 << candidates.trailing_zeros();
            let before = bits.fetch_and(!bit, Ordering::AcqRel);
            if before & bit != 0 {
                if before == bit {
                    self.tidy(word);
                }
                return Some(word * WORD + candidates.trailing_zeros());
            }
        }
    }

    /// Clears the summary bit of an empty word. If a number was added meanwhile, sets the bit again
    /// and returns true.
    fn tidy(&self, word: u32) -> bool {
        let summary = &self.summary[(word / WORD) as usize];
        let bit = 1 << (word % WORD);
        summary.fetch_and(!bit, Ordering::AcqRel);
        // A thread that adds a number sets the number's bit before the summary bit, so one of the
        // two threads sees the other's change.
        let has_numbers = self.bits[word as usize].load(Ordering::SeqCst) != 0;
        if has_numbers {
            summary.fetch_or(bit, Ordering::AcqRel);
        }
        has_numbers
    }
}

/// The numbers of the bits that are set in `word`.
fn bits_of(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = word.trailing_zeros();
        // `wrapping_sub` since `word` may be 0.
        word &= word.wrapping_sub(1);
        (bit < WORD).then_some(bit)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use virtio_rdma_abi::number::Qpn;

    use super::*;

    #[test]
    fn serves_in_turn() {
        let set = ReadySet::<Qpn>::new(10_000);
        for number in [9_999, 64, 3, 5_000, 3] {
            set.insert(Qpn::new(number));
        }
        assert_eq!(set.take().map(Qpn::get), Some(3));
        set.insert(Qpn::new(3));
        assert_eq!(
            set.take().map(Qpn::get),
            Some(64),
            "others come before one that comes back"
        );
        assert_eq!(set.take().map(Qpn::get), Some(5_000));
        assert_eq!(set.take().map(Qpn::get), Some(9_999));
        assert_eq!(set.take().map(Qpn::get), Some(3));
        assert_eq!(set.take().map(Qpn::get), None);
        assert!(set.is_empty());
    }

    #[test]
    fn any_looks_without_taking() {
        let set = ReadySet::<Qpn>::new(10_000);
        for number in [3, 5_000] {
            set.insert(Qpn::new(number));
        }
        assert!(set.any(|number| number.get() == 5_000));
        assert!(!set.any(|number| number.get() == 4));
        assert_eq!(set.take().map(Qpn::get), Some(3));
        assert!(!set.any(|number| number.get() == 3));
    }

    #[test]
    fn many_threads_lose_nothing() {
        const ROUNDS: u32 = 2_000;
        let set = ReadySet::<Qpn>::new(200);
        let taken = AtomicU32::new(0);
        let added = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (set, added) = (&set, &added);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        if set.insert(Qpn::new((round * 7 + thread * 31) % 200)) {
                            added.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    if set.take().is_some() {
                        taken.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        });
        while set.take().is_some() {
            taken.fetch_add(1, Ordering::SeqCst);
        }
        assert_eq!(taken.into_inner(), added.into_inner());
        assert!(set.is_empty());
    }

    proptest! {
        #[test]
        fn is_a_set(
            steps in prop::collection::vec(prop::option::of(0u32..9_000), 0..300),
            removed in prop::collection::vec(0u32..9_000, 0..100),
        ) {
            let set = ReadySet::<Qpn>::new(9_000);
            let mut model = BTreeSet::new();
            for step in steps {
                match step {
                    Some(number) => {
                        prop_assert_eq!(set.insert(Qpn::new(number)), model.insert(number));
                    }
                    None => match set.take() {
                        Some(number) => prop_assert!(model.remove(&number.get())),
                        None => prop_assert!(model.is_empty()),
                    },
                }
            }
            for number in removed.into_iter().chain(model.clone()) {
                prop_assert_eq!(set.remove(Qpn::new(number)), model.remove(&number));
            }
            prop_assert!(set.is_empty() && set.take().is_none());
        }
    }
}
