// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The driver's decoder, taking and refusing: exact bytes, each kind of nonsense, and
//! random bytes against the promises of each function.

mod answers;
mod completions;
mod config;
mod events;
mod random;

/// The bytes that `hex` spells; white space separates fields for the reader.
fn bytes<const N: usize>(hex: &str) -> [u8; N] {
    let digits: String = hex.split_whitespace().collect();
    assert_eq!(digits.len(), 2 * N, "{hex}");
    std::array::from_fn(|at| {
        u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("hexadecimal digits")
    })
}
