// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Tests of the driver's decoder: exact bytes, each kind of invalid input, and random bytes against
//! the guarantees of each function.

mod completions;
mod config;
mod random;

/// The bytes given by `hex`. White space between fields is ignored.
fn bytes<const N: usize>(hex: &str) -> [u8; N] {
    let digits: String = hex.split_whitespace().collect();
    assert_eq!(digits.len(), 2 * N, "{hex}");
    std::array::from_fn(|at| {
        u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("hexadecimal digits")
    })
}
