// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A panic in the service thread stops its device until the next reset. A panic in the socket
//! thread disconnects its client. Other functions are not affected.

mod common;

use std::io::Read;

use common::*;
use testkit::vfio::message::access;
use testkit::vfio::{reg, DATA};
use vfio_user::Command;

const STATUS_RUNNING: u8 = 15;
const NEEDS_RESET: u8 = 64;
const PANICKED: &str = "panicked: planted";

#[test]
fn in_the_service_thread() {
    let [bench, other] = [Bench::new(), Bench::new()];
    let mut driver = bench.driver();
    driver.start(FEATURES);
    assert_eq!(driver.echo(0, 16, b"ab", 2), b"ba");
    driver.start(FEATURES);
    bench.device.plant("serve");
    driver.descriptor(0, 0, DATA, 1, 0, 0);
    driver.submit(0, 16, 0);
    driver.wait_interrupt(0);
    assert_eq!(driver.read8(reg::STATUS), STATUS_RUNNING | NEEDS_RESET);
    assert_eq!(bench.device.take_failures(), [PANICKED]);
    driver.start(FEATURES);
    assert_eq!(driver.read8(reg::STATUS), STATUS_RUNNING);
    assert_eq!(driver.echo(0, 16, b"ab", 2), b"ba");
    // The threads of another function are not affected.
    let mut driver = other.driver();
    driver.start(FEATURES);
    assert_eq!(driver.echo(1, 16, b"ab", 2), b"ba");
}

#[test]
fn in_a_reset() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    driver.start(FEATURES);
    bench.device.plant("reset");
    // The reset panics, but it ends, and the device's method `fail` was called.
    driver.start(FEATURES);
    assert_eq!(bench.device.take_failures(), [PANICKED]);
    assert_eq!(driver.echo(0, 16, b"ab", 2), b"ba");
    bench.device.plant("reset");
    drop(driver);
    let mut driver = bench.driver();
    driver.start(FEATURES);
    assert_eq!(driver.echo(0, 16, b"ab", 2), b"ba");
    assert_eq!(bench.device.take_failures(), [PANICKED]);
}

#[test]
fn in_the_socket_thread() {
    let bench = Bench::new();
    let mut client = bench.client();
    bench.device.plant("config");
    client.post(
        Command::RegionRead as u16,
        0,
        &access(2, reg::CONFIG, 4),
        &[],
    );
    assert_eq!(client.stream.read(&mut [0]).unwrap_or(0), 0, "dropped");
    let mut driver = bench.driver();
    driver.start(FEATURES);
    assert_eq!(driver.echo(0, 16, b"ab", 2), b"ba");
}
