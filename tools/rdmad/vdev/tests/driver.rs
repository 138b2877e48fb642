// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of the PCI function by a virtio driver.

mod common;

use std::sync::atomic::Ordering;
use std::thread;

use common::*;
use testkit::vfio::{reg, ring_at, Driver, AVAIL, DATA, MEMORY, MEMORY_AT, TRANSPORT, USED};
use testkit::{wait, wait_until};
use vfio_user::Command;

// abi
#[test]
fn identity_and_configuration() {
    let bench = Bench::new();
    let mut client = bench.client();
    assert_eq!(client.read(7, 0, 4).unwrap(), [0xf4, 0x1a, 0x6a, 0x10]);
    // A single access across the end of the device configuration.
    assert_eq!(
        client.read(2, reg::CONFIG + 3, 8).unwrap(),
        b"fig\0\0\0\0\0"
    );
    assert_eq!(client.read(2, 0x12, 2).unwrap(), [2, 0], "two queues");
    // An independent implementation of a vfio-user client can use the PCI function.
    drop(client);
    let other = vfio_user::Client::new(&bench.path).unwrap();
    for (region, size) in [
        (0, 0x1_0000),
        (2, 0x1_0000),
        (4, SHM_LEN),
        (7, 256),
        (1, 0),
        (6, 0),
    ] {
        let info = other.region(region).unwrap();
        assert_eq!((info.size, info.flags & 4), (size, 0), "region {region}");
    }
}

#[test]
fn requests_are_answered_on_every_queue() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    driver.start(FEATURES);
    for round in 0..40u8 {
        assert_eq!(driver.echo(0, 16, &[round, 2, 3], 100), [3, 2, round]);
        assert_eq!(
            driver.echo(1, 16, b"abc", 2),
            b"cb",
            "the answer is cut to its room"
        );
    }
    let (features, queues) = bench.device.active.lock().unwrap().clone().unwrap();
    assert_eq!(features, FEATURES);
    assert_eq!(queues.len(), 2);
    assert_eq!(driver.read8(reg::ISR), 1);
    assert_eq!(driver.read8(reg::ISR), 0, "reading clears");
    assert!(!driver.interrupted(0));
}

#[test]
fn an_interrupt_that_is_not_wanted_is_not_sent() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    driver.start(FEATURES);
    driver.put(ring_at(0) + AVAIL, &1u16.to_le_bytes());
    driver.descriptor(0, 0, DATA, 1, 0, 0);
    driver.submit(0, 16, 0);
    wait_until("an answer", || driver.used_index(0) != 0);
    driver.put(ring_at(0) + AVAIL, &0u16.to_le_bytes());
    driver.submit(0, 16, 0);
    driver.wait_interrupt(1);
    assert_eq!(driver.used_index(0), 2);
    assert!(!driver.interrupted(1));
}

#[test]
fn notifications_are_wanted_only_when_requests_ran_out() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    *bench.device.deaf.lock().unwrap() = true;
    driver.start(FEATURES);
    let (_, queues) = wait("a start", || bench.device.active.lock().unwrap().clone());
    let queue = &queues[0];
    driver.descriptor(0, 0, DATA, 1, 0, 0);
    for _ in 0..2 {
        driver.submit(0, 16, 0);
        driver.submit(0, 16, 0);
        let unwanted = || driver.get16(ring_at(0) + USED) == 1;
        assert!(!unwanted(), "before any was taken");
        for _ in 0..2 {
            let request = queue.pop(0).unwrap();
            queue.push(request, &[]);
            assert!(unwanted());
        }
        assert!(queue.pop(0).is_none());
        assert!(!unwanted());
    }
}

// abi
#[test]
fn features_must_be_offered_and_complete() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    for bad in [
        FEATURE,
        FEATURES & !(1 << 33),
        FEATURES & !(1 << 40),
        TRANSPORT & !(1 << 32),
        TRANSPORT | (1 << 4),
    ] {
        assert_eq!(driver.negotiate(bad), 3, "{bad:#x}");
        driver.write8(reg::STATUS, 7);
        assert_eq!(driver.read8(reg::STATUS), 3);
    }
    assert_eq!(driver.negotiate(TRANSPORT), 11);
    driver.write32(reg::DRIVER_SELECT, 0);
    driver.write32(reg::DRIVER_FEATURE, 1 << 4);
    driver.write8(reg::STATUS, 15);
    driver.enable_queue(0, 16);
    driver.echo(0, 16, b"x", 1);
    assert_eq!(
        bench.device.active.lock().unwrap().as_ref().unwrap().0,
        TRANSPORT
    );
}

#[test]
fn bad_register_writes_have_no_effect() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    assert_eq!(driver.negotiate(TRANSPORT), 11);
    for bad in [0, 3, 128, 0xffff] {
        driver.write16(reg::QUEUE_SIZE, bad);
        assert_eq!(driver.read16(reg::QUEUE_SIZE), 64);
    }
    for bad in [3, 0xfffe] {
        driver.write16(reg::QUEUE_VECTOR, bad);
        assert_eq!(driver.read16(reg::QUEUE_VECTOR), 0xffff);
        driver.write16(reg::CONFIG_VECTOR, bad);
        assert_eq!(driver.read16(reg::CONFIG_VECTOR), 0xffff);
    }
    driver.write64(reg::QUEUE_DESC, !15);
    driver.write16(reg::QUEUE_ENABLE, 1);
    assert_eq!(driver.read16(reg::QUEUE_ENABLE), 0);
    driver.write64(reg::QUEUE_DESC, 8);
    driver.write16(reg::QUEUE_ENABLE, 1);
    assert_eq!(driver.read16(reg::QUEUE_ENABLE), 0);

    driver.write16(reg::QUEUE_SELECT, 2);
    assert_eq!(driver.read16(reg::QUEUE_SIZE), 0);
    driver.write16(reg::QUEUE_SIZE, 16);
    driver.write16(reg::QUEUE_ENABLE, 1);
    driver.write16(reg::QUEUE_RESET, 1);
    driver.write64(reg::QUEUE_DESC, 0);
    driver.write16(reg::NOTIFY + 4 * 2, 2);
    driver
        .client
        .write(2, reg::NOTIFY + 0x7ffe, &[0; 2])
        .unwrap();
    for (offset, len) in [
        (0u64, 3),
        (0x14, 2),
        (0x15, 1),
        (1, 4),
        (0x38, 4),
        (0x3c, 4),
        (0, 8),
        (0xfff, 1),
    ] {
        driver.client.write(2, offset, &vec![0xff; len]).unwrap();
    }
    assert_eq!(driver.read8(reg::STATUS), 11);
    driver.start(FEATURES);
    assert_eq!(driver.echo(0, 16, b"ok", 2), b"ko");
}

#[test]
fn broken_rings_ask_for_a_reset_and_recover() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    let unmapped = MEMORY_AT + MEMORY;
    // Each entry writes invalid descriptors or an invalid ring, and returns the head of the chain
    // to submit.
    type Break = fn(&Driver, u64) -> u16;
    let breaks: [Break; 9] = [
        |_, _| 16,
        |_, _| 0xffff,
        |driver, _| {
            driver.descriptor(0, 0, DATA, 1, 1, 0);
            0
        },
        |driver, _| {
            driver.descriptor(0, 0, DATA, 1, 1, 16);
            0
        },
        |driver, _| {
            driver.descriptor(0, 0, DATA, 16, 4, 0);
            0
        },
        |driver, _| {
            driver.descriptor(0, 0, DATA, 1, 3, 1);
            driver.descriptor(0, 1, DATA, 1, 0, 0);
            0
        },
        |driver, unmapped| {
            driver.descriptor(0, 0, unmapped, 1, 0, 0);
            0
        },
        |driver, unmapped| {
            driver.descriptor(0, 0, DATA, 8, 1, 1);
            driver.descriptor(0, 1, unmapped - 4, u32::MAX, 2, 0);
            0
        },
        |driver, _| {
            driver.put(ring_at(0) + AVAIL + 2, &40u16.to_le_bytes());
            0
        },
    ];
    for (i, prepare) in breaks.iter().enumerate() {
        driver.start(FEATURES);
        let head = prepare(&driver, unmapped);
        driver.submit(0, 16, head);
        driver.wait_interrupt(0);
        assert_eq!(driver.read8(reg::STATUS), 15 | 64, "case {i}");
        assert_eq!(driver.read8(reg::ISR), 2);
        // The other queue has stopped too.
        assert!(bench.device.active.lock().unwrap().as_ref().unwrap().1[1]
            .split()
            .is_none());
    }
    driver.start(FEATURES);
    assert_eq!(driver.read8(reg::STATUS), 15);
    assert_eq!(driver.echo(0, 16, b"ab", 2), b"ba");
}

#[test]
fn long_input_is_read_up_to_the_limit() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    driver.start(FEATURES);
    // A chain of 16 descriptors of up to 64 KiB each. The device reads only 1000 bytes.
    for i in 0..15 {
        driver.descriptor(0, i, DATA, 0x1_0000, 1, i + 1);
    }
    driver.descriptor(0, 15, DATA, 4, 2, 0);
    driver.put(DATA + 996, b"wxyz");
    driver.submit(0, 16, 0);
    driver.wait_interrupt(1);
    assert_eq!(driver.get(DATA, 4), b"zyxw");
}

#[test]
fn a_queue_is_reset_and_comes_back_smaller() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    driver.start(FEATURES);
    driver.echo(0, 16, b"x", 1);
    let queue = bench.device.active.lock().unwrap().as_ref().unwrap().1[1].clone();
    // The device holds a request of queue 1 across the queue's reset.
    *bench.device.deaf.lock().unwrap() = true;
    driver.descriptor(1, 0, DATA, 4, 2, 0);
    let avail = ring_at(1) + AVAIL;
    driver.put(avail + 2, &1u16.to_le_bytes());
    let old = queue.pop(0).unwrap();
    *bench.device.deaf.lock().unwrap() = false;

    driver.write16(reg::QUEUE_SELECT, 1);
    driver.write16(reg::QUEUE_RESET, 1);
    while driver.read16(reg::QUEUE_RESET) != 0 {}
    assert_eq!(driver.read16(reg::QUEUE_ENABLE), 0);
    assert_eq!(driver.read16(reg::QUEUE_SIZE), 256);
    assert!(!queue.is_enabled());
    driver.enable_queue(1, 8);
    for _ in 0..20 {
        assert_eq!(driver.echo(1, 8, b"xy", 2), b"yx");
    }
    queue.push(old, b"late");
    assert_eq!(driver.used_index(1), 20);
    assert!(!driver.interrupted(2));
    assert_eq!(driver.echo(0, 16, b"xy", 2), b"yx");
}

/// A driver enables a queue and then makes a request, in another queue, that needs this queue. The
/// device must start the queue before it takes the request.
// abi: R-1159
#[test]
fn a_request_finds_the_queue_that_was_enabled_before() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    driver.negotiate(TRANSPORT);
    driver.enable_queue(0, 16);
    bench.device.hold_serve.set_closed(true);
    driver.write8(reg::STATUS, 15);
    bench.device.hold_serve.await_guest();
    driver.enable_queue(1, 8);
    driver.descriptor(0, 0, DATA, 4, 2, 0);
    driver.submit(0, 16, 0);
    bench.device.hold_serve.set_closed(false);
    driver.wait_interrupt(1);
    assert_eq!(*bench.device.enabled.lock().unwrap(), [2]);
    assert_eq!(driver.echo(1, 8, b"xy", 2), b"yx");
}

#[test]
fn a_slow_reset_holds_up_nobody() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    driver.start(FEATURES);
    driver.echo(0, 16, b"x", 1);
    bench.device.hold_reset.set_closed(true);
    driver.write8(reg::STATUS, 0);
    for _ in 0..100 {
        assert_eq!(
            driver.read8(reg::STATUS),
            15,
            "not done, and the read is answered"
        );
        driver.write8(reg::STATUS, 0);
        driver.write16(reg::QUEUE_SIZE, 2);
        driver.client.write(4, 0, &[1, 0, 0, 0]).unwrap();
    }
    assert_eq!(bench.device.doorbells.load(Ordering::SeqCst), 100);
    bench.device.hold_reset.set_closed(false);
    while driver.read8(reg::STATUS) != 0 {}
    assert_eq!(bench.device.resets.load(Ordering::SeqCst), 1);
    assert_eq!(driver.read16(reg::QUEUE_SIZE), 64);
    driver.start(FEATURES);
    driver.echo(0, 16, b"x", 1);
}

#[test]
fn a_function_reset_is_answered_when_it_is_done() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    driver.start(FEATURES);
    driver.echo(0, 16, b"x", 1);
    bench.device.hold_reset.set_closed(true);
    let reset = driver.client.post(Command::DeviceReset as u16, 0, &[], &[]);
    // Other messages are answered before the pending reset.
    assert_eq!(driver.read8(reg::STATUS), 15);
    let second = driver.client.call(Command::DeviceReset, &[], &[]);
    assert_eq!(second, Err(22));
    bench.device.hold_reset.set_closed(false);
    assert_eq!(driver.client.reply(), (reset, Ok(Vec::new())));
    assert_eq!(driver.read8(reg::STATUS), 0);
    driver.start(FEATURES);
    driver.echo(0, 16, b"x", 1);
}

#[test]
fn a_request_may_have_an_indirect_table() {
    const INDIRECT_DESC: u64 = 1 << 28;
    let bench = Bench::new();
    let mut driver = bench.driver();
    for indirect in [INDIRECT_DESC, 0] {
        assert_eq!(driver.negotiate(FEATURES | indirect), 11);
        driver.write16(reg::CONFIG_VECTOR, 0);
        driver.enable_queue(0, 16);
        driver.write8(reg::STATUS, 15);
        driver.put(DATA, b"abc");
        let table = DATA + 0x2000;
        let part = |index: u64, address: u64, flags: u16, next: u16| {
            driver.put(table + 16 * index, &address.to_le_bytes());
            driver.put(table + 16 * index + 8, &3u32.to_le_bytes());
            driver.put(table + 16 * index + 12, &flags.to_le_bytes());
            driver.put(table + 16 * index + 14, &next.to_le_bytes());
        };
        part(0, DATA, 1, 1);
        part(1, DATA + 0x1000, 2, 0);
        driver.put(DATA + 0x1000, &[0; 3]);
        driver.descriptor(0, 5, table, 32, 4, 0);
        driver.submit(0, 16, 5);
        driver.wait_interrupt(usize::from(indirect != 0));
        let answer = driver.get(DATA + 0x1000, 3);
        if indirect != 0 {
            assert_eq!(answer, b"cba");
        } else {
            assert_eq!(answer, [0; 3]);
            assert_eq!(driver.read8(reg::STATUS), 15 | 64, "it was not negotiated");
        }
    }
}

#[test]
fn a_device_may_leave_interrupts_for_later() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    driver.start(FEATURES);
    driver.echo(1, 16, b"x", 1);
    let queue = bench.device.active.lock().unwrap().clone().unwrap().1[1].clone();
    let count = |driver: &Driver| {
        let mut count = [0; 8];
        let read = rustix::io::read(&driver.interrupts[2], &mut count);
        read.map_or(0, |_| u64::from_ne_bytes(count))
    };
    queue.interrupt_later();
    queue.interrupt_later();
    assert_eq!(count(&driver), 0);
    thread::spawn(vdev::send_interrupts).join().unwrap();
    assert_eq!(count(&driver), 0, "that thread has none");
    vdev::send_interrupts();
    assert_eq!(count(&driver), 1, "one for both");
    vdev::send_interrupts();
    assert_eq!(count(&driver), 0);
}

#[test]
fn a_device_may_serve_a_queue_itself() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    driver.start(FEATURES);
    driver.echo(1, 16, b"x", 1);
    let queues = bench.device.active.lock().unwrap().clone().unwrap().1;
    let split = queues[1].split().unwrap();
    assert_eq!((split.size, split.indirect), (16, false));
    assert_eq!(split.descriptors, ring_at(1));
    assert_eq!(split.available, ring_at(1) + AVAIL);
    assert_eq!(split.used, ring_at(1) + USED);
    queues[1].interrupt();
    driver.wait_interrupt(2);
    driver.write16(reg::QUEUE_SELECT, 1);
    driver.write16(reg::QUEUE_RESET, 1);
    while driver.read16(reg::QUEUE_RESET) != 0 {}
    assert!(queues[1].split().is_none());
    driver.enable_queue(1, 4);
    driver.echo(1, 4, b"x", 1);
    assert_eq!(queues[1].split().unwrap().size, 4);
}

#[test]
fn a_function_that_nobody_set_up_hears_no_kicks() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    // The driver notifies the device without initializing it, as in a VM that was restored from a
    // snapshot.
    driver.put(ring_at(0) + AVAIL + 2, &1u16.to_le_bytes());
    driver.write16(reg::NOTIFY, 0);
    assert_eq!(driver.read8(reg::STATUS), 0);
    driver.start(FEATURES);
    assert_eq!(driver.echo(0, 16, b"ab", 2), b"ba");
    assert_eq!(driver.used_index(0), 1);
}

#[test]
fn the_driver_learns_of_a_new_configuration() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    driver.start(FEATURES);
    let generation = driver.read8(0x15);
    bench.handle.as_ref().unwrap().config_changed();
    driver.wait_interrupt(0);
    assert_eq!(driver.read8(reg::ISR), 2);
    assert_ne!(driver.read8(0x15), generation);
    assert_eq!(driver.read8(reg::STATUS), 15);
}

#[test]
fn registers_are_reached_through_configuration_space() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    let window = capability(&mut driver, |id, cfg_type| (id, cfg_type) == (9, 5));
    driver.client.write(7, window + 4, &[2]).unwrap();
    driver
        .client
        .write(7, window + 8, &0x14u32.to_le_bytes())
        .unwrap();
    driver
        .client
        .write(7, window + 12, &1u32.to_le_bytes())
        .unwrap();
    driver.client.write(7, window + 16, &[3]).unwrap();
    assert_eq!(driver.read8(reg::STATUS), 3);
    assert_eq!(driver.client.read(7, window + 16, 1).unwrap(), [3]);
    // A BAR that does not exist.
    driver.client.write(7, window + 4, &[5]).unwrap();
    assert_eq!(driver.client.read(7, window + 16, 1).unwrap(), [0]);
}

/// Offset of the first capability for which `is_wanted` holds. The arguments are its identity, and
/// the type if it is one of virtio's.
fn capability(driver: &mut Driver, is_wanted: fn(u8, u8) -> bool) -> u64 {
    let mut at = driver.client.read(7, 0x34, 1).unwrap()[0];
    loop {
        assert_ne!(at, 0, "no such capability");
        let capability = driver.client.read(7, u64::from(at), 4).unwrap();
        if is_wanted(capability[0], capability[3]) {
            return u64::from(at);
        }
        at = capability[1];
    }
}

#[test]
fn the_driver_resets_the_function() {
    const INITIATE_RESET: [u8; 2] = 0x8000u16.to_le_bytes();
    let bench = Bench::new();
    let mut driver = bench.driver();
    let express = capability(&mut driver, |id, _| id == 0x10);
    driver.start(FEATURES);
    driver.echo(0, 16, b"x", 1);
    driver.client.write(7, 0x04, &[0x06, 0x04]).unwrap();
    bench.device.hold_reset.set_closed(true);
    for _ in 0..2 {
        driver
            .client
            .write(7, express + 8, &INITIATE_RESET)
            .unwrap();
        assert_eq!(driver.read8(reg::STATUS), 15, "not done");
        assert_eq!(driver.client.read(7, 0x04, 2).unwrap(), [0, 0]);
    }
    bench.device.hold_reset.set_closed(false);
    while driver.read8(reg::STATUS) != 0 {}
    assert_eq!(bench.device.resets.load(Ordering::SeqCst), 1);
    driver.start(FEATURES);
    driver.echo(0, 16, b"x", 1);
}
