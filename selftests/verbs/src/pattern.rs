// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Pseudo-random test data, which both sides derive from the same seed.

use anyhow::{ensure, Result};

/// SplitMix64, a pseudo-random number generator by Steele, Lea and Flood.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with the seed `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: usize) -> usize {
        // The remainder is slightly biased, which does not matter for tests.
        (self.next() % limit as u64) as usize
    }
}

/// `length` pseudo-random bytes for `seed`.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Fails if `actual` differs from `expected`. The error names the first different byte.
pub fn compare(what: &str, actual: &[u8], expected: &[u8]) -> Result<()> {
    ensure!(
        actual.len() == expected.len(),
        "{what}: {} bytes instead of {}",
        actual.len(),
        expected.len()
    );
    if let Some(at) = actual.iter().zip(expected).position(|(a, b)| a != b) {
        let wrong = actual.iter().zip(expected).filter(|(a, b)| a != b).count();
        anyhow::bail!(
            "{what}: byte {at} of {} is {:#04x} instead of {:#04x}, {wrong} bytes differ",
            actual.len(),
            actual[at],
            expected[at]
        );
    }
    Ok(())
}
