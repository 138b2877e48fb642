// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A device with DEVICE_NEEDS_RESET does nothing before its reset.

mod common;

use std::os::fd::OwnedFd;

use common::*;
use dma::testing::memfd;
use rustix::fs::{ftruncate, SealFlags};
use testkit::vfio::{reg, ring_at, Driver, AVAIL, DATA, MEMORY, MEMORY_AT};

const RUNNING: u8 = 15;
const NEEDS_RESET: u8 = 64;

/// Asserts that both queues are stopped and that the device's method `fail` was called once.
fn has_stopped(bench: &Bench) {
    let queues = bench.device.active.lock().unwrap().clone().unwrap().1;
    for queue in &queues {
        assert!(!queue.is_enabled(), "queue {}", queue.index());
    }
    assert_eq!(bench.device.take_failures().len(), 1);
}

// abi: R-1140, R-1141
#[test]
fn a_queue_that_breaks_the_rules_stops_the_device() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    for broken in [0, 1] {
        driver.start(FEATURES);
        assert_eq!(driver.echo(1 - broken, 16, b"ab", 2), b"ba");
        // The available index claims more requests than the queue has descriptors.
        driver.put(ring_at(broken) + AVAIL + 2, &99u16.to_le_bytes());
        driver.write16(reg::NOTIFY + 4 * u64::from(broken), broken);
        driver.wait_interrupt(0);
        assert_eq!(driver.read8(reg::STATUS), RUNNING | NEEDS_RESET);
        has_stopped(&bench);
    }
    driver.start(FEATURES);
    assert_eq!(driver.read8(reg::STATUS), RUNNING);
    assert_eq!(driver.echo(0, 16, b"ab", 2), b"ba");
    assert_eq!(bench.device.take_failures(), [""; 0]);
}

#[test]
fn a_device_that_rejects_a_request_is_stopped_by_its_own_thread() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    driver.start(FEATURES);
    assert_eq!(driver.echo(1, 16, b"ab", 2), b"ba");
    let queues = bench.device.active.lock().unwrap().clone().unwrap().1;
    queues[1].reject(format_args!("a bad request"));
    // Only the first reason is reported.
    queues[0].needs_reset("a second reason");
    driver.wait_interrupt(0);
    assert_eq!(driver.read8(reg::STATUS), RUNNING | NEEDS_RESET);
    let queues = bench.device.active.lock().unwrap().clone().unwrap().1;
    assert!(queues.iter().all(|queue| !queue.is_enabled()));
    assert_eq!(bench.device.take_failures(), ["queue 1: a bad request"]);
}

/// A driver whose memory can be truncated, and the file of that memory.
fn shrinkable(bench: &Bench) -> (Driver, OwnedFd) {
    let file = memfd(MEMORY, SealFlags::empty()).unwrap();
    let copy = file.try_clone().unwrap();
    (Driver::with_memory(bench.client(), copy), file)
}

/// Truncates the file, and makes the device read a request from the lost page.
fn lose(driver: &mut Driver, file: &OwnedFd) {
    driver.descriptor(0, 0, DATA, 8, 1, 1);
    driver.descriptor(0, 1, DATA + 0x1000, 8, 2, 0);
    ftruncate(file, DATA - MEMORY_AT).unwrap();
    driver.submit(0, 16, 0);
    driver.wait_interrupt(0);
    assert_eq!(driver.read8(reg::STATUS), RUNNING | NEEDS_RESET);
    // The device may have answered before it was stopped.
    driver.interrupted(1);
}

fn tells_of_the_loss(bench: &Bench) {
    let failures = bench.device.take_failures();
    assert_eq!(failures.len(), 1, "{failures:?}");
    let place = format!("{DATA:#x}, offset {:#x} of its file", DATA - MEMORY_AT);
    assert!(failures[0].contains(&place), "{failures:?}");
}

// abi: R-1140
#[test]
fn lost_memory_stops_its_port_alone_until_it_is_there_again() {
    let [bench, other] = [Bench::new(), Bench::new()];
    let (mut driver, file) = shrinkable(&bench);
    let mut neighbour = other.driver();
    driver.start(FEATURES);
    neighbour.start(FEATURES);
    assert_eq!(driver.echo(0, 16, b"ab", 2), b"ba");
    lose(&mut driver, &file);
    tells_of_the_loss(&bench);
    assert_eq!(neighbour.echo(0, 16, b"ab", 2), b"ba");
    assert_eq!(neighbour.read8(reg::STATUS), RUNNING);

    // After a reset the device fails again, since the memory is still missing.
    driver.start(FEATURES);
    driver.wait_interrupt(0);
    assert_eq!(driver.read8(reg::STATUS), RUNNING | NEEDS_RESET);
    tells_of_the_loss(&bench);
    ftruncate(&file, MEMORY).unwrap();
    driver.memory.restore().unwrap();
    driver.start(FEATURES);
    assert_eq!(driver.echo(0, 16, b"ab", 2), b"ba");
    assert_eq!(driver.read8(reg::STATUS), RUNNING);
    assert_eq!(neighbour.echo(1, 16, b"ab", 2), b"ba");
    assert_eq!(bench.device.take_failures(), [""; 0]);
    assert_eq!(other.device.take_failures(), [""; 0]);
}

#[test]
fn the_next_client_has_sound_memory() {
    let bench = Bench::new();
    let (mut driver, file) = shrinkable(&bench);
    driver.start(FEATURES);
    lose(&mut driver, &file);
    tells_of_the_loss(&bench);
    // Unmapping the region of the lost memory does not clear the failure.
    driver.client.unmap(MEMORY_AT, MEMORY).unwrap();
    assert_eq!(driver.read8(reg::STATUS), RUNNING | NEEDS_RESET);
    drop(driver);
    let mut driver = bench.driver();
    driver.start(FEATURES);
    assert_eq!(driver.echo(0, 16, b"ab", 2), b"ba");
    assert_eq!(bench.device.take_failures(), [""; 0]);
}
