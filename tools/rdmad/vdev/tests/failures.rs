// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A device that asks for a reset does nothing before it.

mod common;

use common::*;

const RUNNING: u8 = 15;
const NEEDS_RESET: u8 = 64;

/// Both queues of the device are stopped, and the device was told once.
fn has_stopped(bench: &Bench) {
    let queues = bench.device.active.lock().unwrap().clone().unwrap().1;
    for queue in &queues {
        assert!(!queue.is_enabled(), "queue {}", queue.index());
    }
    assert_eq!(bench.device.take_failures().len(), 1);
}

#[test]
fn a_queue_that_breaks_the_rules_stops_the_device() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    for broken in [0, 1] {
        driver.start();
        assert_eq!(driver.echo(1 - broken, 16, b"ab", 2), b"ba");
        // More requests than the queue has room for.
        driver.put(ring_at(broken) + AVAIL + 2, &99u16.to_le_bytes());
        driver.write16(reg::NOTIFY + 4 * u64::from(broken), broken);
        driver.wait_interrupt(0);
        assert_eq!(driver.read8(reg::STATUS), RUNNING | NEEDS_RESET);
        has_stopped(&bench);
    }
    driver.start();
    assert_eq!(driver.read8(reg::STATUS), RUNNING);
    assert_eq!(driver.echo(0, 16, b"ab", 2), b"ba");
    assert_eq!(bench.device.take_failures(), [""; 0]);
}

#[test]
fn a_device_that_rejects_a_request_is_stopped_by_its_own_thread() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    driver.start();
    assert_eq!(driver.echo(1, 16, b"ab", 2), b"ba");
    let queues = bench.device.active.lock().unwrap().clone().unwrap().1;
    queues[1].reject(format_args!("a bad request"));
    // The first reason counts.
    queues[0].needs_reset("a second reason");
    driver.wait_interrupt(0);
    assert_eq!(driver.read8(reg::STATUS), RUNNING | NEEDS_RESET);
    let queues = bench.device.active.lock().unwrap().clone().unwrap().1;
    assert!(queues.iter().all(|queue| !queue.is_enabled()));
    assert_eq!(bench.device.take_failures(), ["queue 1: a bad request"]);
}
