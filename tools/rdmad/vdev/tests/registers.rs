// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Register writes that break the rules, and what they leave behind.

mod common;

use common::*;

/// The addresses of the selected queue.
fn addresses(driver: &mut Driver) -> Vec<u8> {
    driver.client.read(2, reg::QUEUE_DESC, 24).unwrap()
}

#[test]
fn eight_byte_writes_fill_one_register_or_none() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    assert_eq!(driver.negotiate(TRANSPORT), 11);
    let value = 0x1122_3344_5566_7788u64.to_le_bytes();
    for offset in [reg::QUEUE_DESC, reg::QUEUE_DRIVER, reg::QUEUE_DEVICE] {
        driver.client.write(2, offset, &value).unwrap();
    }
    assert_eq!(addresses(&mut driver), value.repeat(3));
    for offset in [0x18, 0x1c, 0x24, 0x2c, 0x34, 0x38, 0x3c] {
        driver.client.write(2, offset, &[0xee; 8]).unwrap();
        assert_eq!(addresses(&mut driver), value.repeat(3), "{offset:#x}");
    }
}
