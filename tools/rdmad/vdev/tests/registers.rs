// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Register writes that violate the specification, and their effects.

mod common;

use common::*;
use testkit::vfio::{reg, Driver, DATA, TRANSPORT};
use testkit::wait_until;

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

#[test]
fn a_vector_that_does_not_exist_disconnects() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    driver.start(FEATURES);
    driver.write16(reg::QUEUE_SELECT, 0);
    driver.write16(reg::QUEUE_VECTOR, 3);
    driver.write16(reg::CONFIG_VECTOR, 3);
    assert_eq!(driver.read16(reg::QUEUE_VECTOR), 0xffff);
    assert_eq!(driver.read16(reg::CONFIG_VECTOR), 0xffff);
    bench.handle.as_ref().unwrap().config_changed();
    let of_configuration = driver.interrupted(0);
    driver.put(DATA, b"x");
    driver.descriptor(0, 0, DATA, 1, 0, 0);
    driver.submit(0, 16, 0);
    wait_until("an answer", || driver.used_index(0) != 0);
    // When the reset is done, the service thread does not work on the request any more.
    driver.reset();
    let of_queue = driver.interrupted(1);
    assert_eq!((of_configuration, of_queue), (false, false));
}

#[test]
fn a_queue_takes_no_vector_while_it_is_reset() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    driver.start(FEATURES);
    driver.write16(reg::QUEUE_SELECT, 0);
    bench.device.hold_queue_reset.set_closed(true);
    driver.write16(reg::QUEUE_RESET, 1);
    bench.device.hold_queue_reset.await_guest();
    driver.write16(reg::QUEUE_VECTOR, 2);
    let vector = driver.read16(reg::QUEUE_VECTOR);
    bench.device.hold_queue_reset.set_closed(false);
    assert_eq!(vector, 1);
    while driver.read16(reg::QUEUE_RESET) != 0 {}
    assert_eq!(driver.read16(reg::QUEUE_VECTOR), 0xffff);
}

#[test]
fn a_queue_that_was_never_used_is_reset_at_once() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    bench.device.hold_queue_reset.set_closed(true);
    let states = [(); 3].map(|()| {
        assert_eq!(driver.negotiate(FEATURES), 11);
        driver.enable_queue(0, 16);
        driver.write16(reg::QUEUE_RESET, 1);
        [reg::QUEUE_ENABLE, reg::QUEUE_RESET, reg::QUEUE_VECTOR]
            .map(|register| driver.read16(register))
    });
    bench.device.hold_queue_reset.set_closed(false);
    assert_eq!(states, [[0, 0, 0xffff]; 3]);
    driver.start(FEATURES);
    assert_eq!(driver.echo(0, 16, b"ab", 2), b"ba");
}

/// A queue that is enabled before DRIVER_OK starts with DRIVER_OK, and serves nothing before.
#[test]
fn an_enabled_queue_waits_for_driver_ok() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    assert_eq!(driver.negotiate(FEATURES), 11);
    driver.put(DATA, b"ab");
    driver.descriptor(0, 0, DATA, 2, 0, 0);
    driver.enable_queue(0, 16);
    assert!(bench.device.active.lock().unwrap().is_none());
    driver.submit(0, 16, 0);
    // The service thread executes its tasks in order: a queue that had started would be served when
    // the next command is answered.
    for _ in 0..3 {
        assert_eq!(driver.read8(reg::STATUS), 11);
    }
    assert_eq!(driver.used_index(0), 0);
    driver.start(FEATURES);
    assert_eq!(driver.echo(0, 16, b"ab", 2), b"ba");
}

#[test]
fn a_queue_reset_needs_the_value_1() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    driver.start(FEATURES);
    driver.write16(reg::QUEUE_SELECT, 0);
    for value in [0, 2, 0xffff] {
        driver.write16(reg::QUEUE_RESET, value);
        assert_eq!(driver.read16(reg::QUEUE_ENABLE), 1, "{value}");
    }
    assert_eq!(driver.echo(0, 16, b"ab", 2), b"ba");
}
