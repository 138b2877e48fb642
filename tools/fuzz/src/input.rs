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

    /// True with a probability of 1 in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        // False if the byte is zero, so that missing bytes lead to the common case.
        self.below(times) == times - 1
    }

    /// An element of `things`, which has at most 256 elements.
    pub fn of<T: Copy>(&mut self, things: &[T]) -> T {
        things[self.below(things.len())]
    }

    /// A list of up to `most` bytes.
    pub fn bytes(&mut self, most: u8) -> Vec<u8> {
        let len = usize::from(self.any::<u8>()).min(most.into());
        (0..len).map(|_| self.any()).collect()
    }

    /// The number `usual`, a neighbour of it, or another number for which range checks are often
    /// wrong.
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

    /// The number `usual` of an object, or another number by the choice of [`edge`](Self::edge).
    pub fn number<N: Number>(&mut self, usual: N) -> N {
        N::new(self.edge32(usual.get()))
    }
}
