// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Tests of the ABI against bytes, values and offsets that were derived by hand from the
//! specification.

mod commands;
mod elements;
mod features;
mod ring;
mod uverbs;
mod values;
mod versions;

use std::fmt::Debug;

use virtio_rdma_abi::wire::Wire;

/// The bytes given by `hex`. White space between fields is ignored.
fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).expect("a hexadecimal digit"))
        .collect();
    assert_eq!(digits.len() % 2, 0, "whole bytes");
    digits
        .chunks(2)
        .map(|pair| u8::try_from((pair[0] << 4) | pair[1]).expect("two digits make a byte"))
        .collect()
}

/// Asserts that `value` encodes to exactly these bytes and decodes from them.
#[track_caller]
fn check<T: Wire + PartialEq + Debug>(value: T, hex: &str) {
    let expected = bytes(hex);
    assert_eq!(T::SIZE, expected.len(), "size");
    // Fill the buffer first: the encoding must overwrite all of it.
    let mut encoded = vec![0xa5; T::SIZE];
    value.put(&mut encoded);
    assert_eq!(encoded, expected, "encoding");
    assert_eq!(T::get(&expected), value, "decoding");
    assert_eq!(T::get(&vec![0; T::SIZE]), T::ZERO, "zero");
}
