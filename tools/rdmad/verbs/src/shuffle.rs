// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Unpredictable permutations of numbers.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};

/// Number of numbers in a block. Successive numbers are from the same block, so the memory that
/// they index is compact. An observer who knows one number knows the block of the next one.
const BLOCK: u32 = 4096;
/// Number of rounds of the Feistel network. Four suffice for a pseudorandom permutation.
const ROUNDS: u8 = 4;

/// The key of the permutation. A guest that knows some numbers, but not the key, can't predict
/// others.
#[derive(Clone, Debug)]
pub(crate) enum Secret {
    Random(RandomState),
    /// A known key, for repeatable runs.
    Known(u64),
}

impl Secret {
    /// The key `known`, or a random key if it is `None`.
    pub(crate) fn new(known: Option<u64>) -> Self {
        known.map_or_else(|| Self::Random(RandomState::new()), Self::Known)
    }

    /// A different key, for a separate set of numbers.
    pub(crate) fn another(&self) -> Self {
        match self {
            Self::Random(_) => Self::new(None),
            Self::Known(_) => Self::Known(self.hash("another")),
        }
    }

    /// 64 bits that depend on the key and on `value`.
    pub(crate) fn hash(&self, value: impl Hash) -> u64 {
        match self {
            Self::Random(state) => state.hash_one(value),
            Self::Known(known) => {
                BuildHasherDefault::<DefaultHasher>::default().hash_one((known, value))
            }
        }
    }
}

/// An unpredictable order of the numbers below a limit. The blocks are in random order, and so are
/// the numbers within each block. An incomplete block is the last one.
#[derive(Debug)]
pub(crate) struct Shuffle {
    secret: Secret,
    len: u32,
}

impl Shuffle {
    /// An order of the numbers below `len`.
    pub(crate) fn new(secret: Secret, len: u32) -> Self {
        Self { secret, len }
    }

    /// Number of numbers in the order.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// The number at position `at`, which must be below the length.
    pub(crate) fn nth(&self, at: u32) -> u32 {
        let (blocks, rest) = (self.len / BLOCK, self.len % BLOCK);
        let (block, within) = (at / BLOCK, at % BLOCK);
        if block == blocks {
            // The last, incomplete block.
            return blocks * BLOCK + self.permute(block, rest, within);
        }
        let block = self.permute(u32::MAX, blocks, block);
        block * BLOCK + self.permute(block, BLOCK, within)
    }

    /// Permutes the numbers below `len`. Each `tweak` gives another permutation. Applies a Feistel
    /// network over the next power of four, repeatedly until the result is below `len`.
    fn permute(&self, tweak: u32, len: u32, number: u32) -> u32 {
        let half_bits = (u32::BITS - len.saturating_sub(1).leading_zeros()).div_ceil(2);
        let mask = (1 << half_bits) - 1;
        let mut walked = number;
        loop {
            let (mut high, mut low) = (walked >> half_bits, walked & mask);
            for round in 0..ROUNDS {
                // The cast keeps the low bits of the hash.
                let hash = self.secret.hash((tweak, round, low)) as u32;
                (high, low) = (low, high ^ (hash & mask));
            }
            walked = (high << half_bits) | low;
            if walked < len {
                return walked;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_comes_once() {
        for len in [1, 2, 3, 5, 64, 4095, 4096, 4097, 16_383, 65_536] {
            let shuffle = Shuffle::new(Secret::new(None), len);
            let mut numbers: Vec<_> = (0..len).map(|at| shuffle.nth(at)).collect();
            numbers.sort();
            assert!(numbers.into_iter().eq(0..len), "{len}");
        }
    }

    #[test]
    fn what_is_known_repeats_itself() {
        let [one, two] = [(); 2].map(|()| Secret::new(Some(7)));
        assert_eq!(one.hash(1), two.hash(1));
        assert_eq!(one.another().hash(1), two.another().hash(1));
        assert_ne!(one.another().hash(1), one.hash(1));
        let random = Secret::new(None);
        assert_ne!(random.another().hash(1), random.hash(1));
    }

    #[test]
    fn neighbours_are_no_neighbours() {
        let [one, two] = [(); 2].map(|()| Shuffle::new(Secret::new(None), 65_536));
        let followers = |shuffle: &Shuffle| {
            (1..1000)
                .filter(|&at| shuffle.nth(at) == shuffle.nth(at - 1) + 1)
                .count()
        };
        assert!(followers(&one) < 10);
        let same = (0..1000).filter(|&at| one.nth(at) == two.nth(at)).count();
        assert!(same < 10);
        // Successive numbers are in the same block.
        assert!((1..1000).all(|at| one.nth(at) / BLOCK == one.nth(0) / BLOCK));
    }
}
