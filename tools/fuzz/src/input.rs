// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Choices drawn from the engine's bytes.

use arbitrary::{Arbitrary, Unstructured};
use virtio_rdma_abi::number::Number;

/// The bytes of an input. Reads beyond its end return zeros.
pub struct Input<'a>(Unstructured<'a>);

impl<'a> Input<'a> {
    /// Draws choices from these bytes.
    pub fn new(data: &'a [u8]) -> Self {
        Self(Unstructured::new(data))
    }

    /// Whether bytes are left.
    pub fn has_more(&self) -> bool {
        !self.0.is_empty()
    }

    /// Any value of the type.
    pub fn any<T: Arbitrary<'a> + Default>(&mut self) -> T {
        T::arbitrary(&mut self.0).unwrap_or_default()
    }

    /// A number in `0..end`; `end` is at most 256.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.any::<u8>()) % end
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        // False for zeros, so that missing bytes take the common path.
        self.below(times) == times - 1
    }

    /// An element of `things`, which has at most 256.
    pub fn of<T: Copy>(&mut self, things: &[T]) -> T {
        things[self.below(things.len())]
    }

    /// Up to `most` bytes.
    pub fn bytes(&mut self, most: u8) -> Vec<u8> {
        let len = usize::from(self.any::<u8>()).min(most.into());
        (0..len).map(|_| self.any()).collect()
    }

    /// `usual`, a neighbour of `usual`, or a number that range checks tend to get wrong.
    pub fn edge(&mut self, usual: u64) -> u64 {
        match self.below(16) {
            0..=9 => usual,
            10 => usual.wrapping_add(1),
            11 => usual.wrapping_sub(1),
            12 => u64::from(self.any::<u16>()),
            13 => u64::MAX - u64::from(self.any::<u8>()),
            14 => 1 << self.below(64),
            _ => self.any(),
        }
    }

    /// Like [`edge`](Self::edge), with 32 bits.
    pub fn edge32(&mut self, usual: u32) -> u32 {
        // The cast keeps the low 32 bits.
        self.edge(usual.into()) as u32
    }

    /// The number of an object, or one near it.
    pub fn number<N: Number>(&mut self, usual: N) -> N {
        N::new(self.edge32(usual.get()))
    }
}
