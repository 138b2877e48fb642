// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of the PCI function by a vfio-user client, which may break the protocol.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use dma::testing::guest_memory;
use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::OFlags;
use testkit::vfio::message::{access, longs, unmap_payload, words};
use testkit::vfio::reg;
use testkit::wait_until;
use vfio_user::Command;

const EINVAL: u32 = 22;
const EOPNOTSUPP: u32 = 95;
const ENOMEM: u32 = 12;
const EEXIST: u32 = 17;
/// Time limit of a wait, which only a broken device exceeds.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn memory_is_mapped_only_if_it_is_safe() {
    let bench = Bench::new();
    let mut client = bench.client();
    let memory = guest_memory(0x10000).unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    for at in [0, 0x1000] {
        assert_eq!(client.map(Some(file.as_fd()), 0, at, 0x1000), Err(EINVAL));
    }
    assert_eq!(client.map(None, 0, 0, 0x1000), Err(EINVAL), "not shared");
    assert_eq!(
        client.map(Some(memory.as_fd()), 0x1000, 0, 0x10000),
        Err(EINVAL)
    );
    assert_eq!(client.map(Some(memory.as_fd()), 0, 0, 0), Err(EINVAL));
    assert_eq!(client.map(Some(memory.as_fd()), 0, 0x1000, 0x1000), Ok(()));
    assert_eq!(client.map(Some(memory.as_fd()), 0, 0, 0x2000), Err(EEXIST));
    assert_eq!(
        client.map(None, 0, 0xc0000, 0x1000),
        Ok(()),
        "a ROM is ignored"
    );
    assert_eq!(client.unmap(0xc0000, 0x1000), Ok(()));
    assert!(bench.space.enter().slice(0x1000, 0x1000).is_ok());
    assert!(bench.space.enter().slice(0xc0000, 1).is_err());
    assert_eq!(client.unmap(0x1000, 0x1000), Ok(()));
    assert!(bench.space.enter().is_empty());
    client.map(Some(memory.as_fd()), 0, 0x1000, 0x1000).unwrap();
    let all = [words(&[24, 4]), longs(&[0, 0])].concat();
    client.call(Command::DmaUnmap, &all, &[]).unwrap();
    assert!(bench.space.enter().is_empty());
}

#[test]
fn a_client_maps_no_more_than_its_share() {
    const REGION: u64 = 1 << 34;
    let (bench, other) = (Bench::new(), Bench::new());
    let mut client = bench.client();
    let sparse = guest_memory(REGION).unwrap();
    let share = GUEST_MEMORY / REGION;
    for n in 0..80 {
        let expected = if n < share { Ok(()) } else { Err(ENOMEM) };
        let mapped = client.map(Some(sparse.as_fd()), 0, n * REGION, REGION);
        assert_eq!(mapped, expected, "region {n}");
    }
    assert_eq!(bench.space.mapped(), (GUEST_MEMORY, GUEST_MEMORY));
    // The next client may map memory again.
    let memory = guest_memory(0x1000).unwrap();
    assert_eq!(
        other.client().map(Some(memory.as_fd()), 0, 0, 0x1000),
        Ok(())
    );
    assert_eq!(client.unmap(0, REGION), Ok(()));
    assert_eq!(client.map(Some(memory.as_fd()), 0, 0, 0x1000), Ok(()));
}

#[test]
fn unmap_is_answered_when_the_old_map_is_out_of_use() {
    let bench = Bench::new();
    let mut client = bench.client();
    let memory = guest_memory(0x1000).unwrap();
    client.map(Some(memory.as_fd()), 0, 0, 0x1000).unwrap();
    let view = bench.space.enter();
    client.post(Command::DmaUnmap as u16, 0, &unmap_payload(0, 0x1000), &[]);
    client.stream.set_nonblocking(true).unwrap();
    wait_until("the unmapping", || bench.space.enter().is_empty());
    assert!(client.stream.read(&mut [0]).is_err());
    view.slice(0, 0x1000).unwrap();
    drop(view);
    client.stream.set_nonblocking(false).unwrap();
    assert!(client.reply().1.is_ok());
}

#[test]
fn descriptors_stay_with_their_message() {
    let bench = Bench::new();
    let mut client = bench.client();
    let memory = guest_memory(0x1000).unwrap();
    let payload = |iova| [words(&[32, 3]), longs(&[0, iova, 0x1000])].concat();
    // All commands are posted without waiting for replies; only every third has a file.
    for i in 0..60 {
        let fds = [memory.as_fd()];
        let fds = if i % 3 == 1 { &fds[..] } else { &[] };
        client.post(Command::DmaMap as u16, 0, &payload(0x1000 * (1 + i)), fds);
    }
    for _ in 0..60 {
        assert!(client.reply().1.is_ok());
    }
    let view = bench.space.enter();
    for i in 0..60 {
        assert_eq!(
            view.slice(0x1000 * (1 + i), 1).is_ok(),
            i % 3 == 1,
            "map {i}"
        );
    }
}

#[test]
fn interrupts_are_connected_and_checked() {
    let bench = Bench::new();
    let mut client = bench.client();
    let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let fd = fd.as_fd();
    let info = client
        .call(Command::GetIrqInfo, &words(&[16, 0, 2, 0]), &[])
        .unwrap();
    assert_eq!(
        info,
        words(&[16, 1, 2, 3]),
        "an eventfd per vector, and no NORESIZE"
    );
    assert_eq!(
        client.call(Command::GetIrqInfo, &words(&[16, 0, 3, 0]), &[]),
        Err(EINVAL)
    );
    assert_eq!(client.set_irqs(0x24, 2, 1, &[fd]), Ok(()));
    assert_eq!(client.set_irqs(0x21, 2, 1, &[]), Ok(()), "loopback");
    rustix::io::read(fd, &mut [0; 8]).unwrap();
    assert_eq!(client.set_irqs(0x24, 2, 1, &[]), Ok(()), "disconnected");
    assert_eq!(client.set_irqs(0x24, 2, 2, &[fd, fd]), Err(EINVAL));
    assert_eq!(client.set_irqs(0x24, u32::MAX, 2, &[]), Err(EINVAL));
    assert_eq!(client.set_irqs(0x24, 0, u32::MAX, &[]), Err(EINVAL));
    assert_eq!(client.set_irqs(0x24, 0, 2, &[fd]), Err(EINVAL));
    assert_eq!(client.set_irqs(0x22, 0, 1, &[]), Err(EOPNOTSUPP));
    assert_eq!(client.set_irqs(0x0c, 0, 1, &[]), Err(EOPNOTSUPP));
    assert_eq!(client.set_irqs(0x21, 0, 0, &[]), Ok(()));
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert_eq!(client.set_irqs(0x24, 0, 1, &[file.as_fd()]), Err(EINVAL));
}

#[test]
fn a_client_whose_descriptors_are_lost_is_dropped() {
    let bench = Bench::new();
    let mut client = bench.client();
    let memory = guest_memory(0x1000).unwrap();
    // More descriptors than the device accepts.
    let fds = [memory.as_fd(); 32];
    let payload = [words(&[32, 3]), longs(&[0, 0x1000, 0x1000])].concat();
    client.post(Command::DmaMap as u16, 0, &payload, &fds);
    // The message that was not executed is still in the socket, which resets the connection.
    let read = client.stream.read(&mut [0; 16]);
    assert!(
        read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset),
        "dropped"
    );
    bench.driver();
}

#[test]
fn a_thread_that_is_held_up_does_not_hold_up_the_end() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    bench.device.hold_config.set_closed(true);
    client.post(
        Command::RegionRead as u16,
        0,
        &access(2, reg::CONFIG, 4),
        &[],
    );
    bench.device.hold_config.await_guest();
    let handle = bench.handle.take();
    let ended = thread::spawn(move || drop(handle));
    let began = Instant::now();
    while !ended.is_finished() && began.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(10));
    }
    let in_time = ended.is_finished();
    bench.device.hold_config.set_closed(false);
    ended.join().unwrap();
    assert!(in_time, "the end waits for the thread");
}

/// An eventfd whose counter is full: a write blocks until this is dropped.
struct Full(OwnedFd);

impl Full {
    /// Fills the counter and makes the file blocking. The device is affected too: it shares the
    /// open file description, to which the flags belong.
    fn new(fd: &OwnedFd) -> Self {
        let flags = rustix::fs::fcntl_getfl(fd).unwrap();
        rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        rustix::fs::fcntl_setfl(fd, flags - OFlags::NONBLOCK).unwrap();
        Self(fd.try_clone().unwrap())
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

#[test]
fn an_eventfd_that_is_full_and_blocks_holds_up_nobody() {
    let bench = Bench::new();
    let mut client = bench.client();
    client
        .stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let full = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let other = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let connected = client.set_irqs(0x24, 0, 2, &[full.as_fd(), other.as_fd()]);
    assert_eq!(connected, Ok(()));
    let _full = Full::new(&full);
    for _ in 0..100 {
        assert_eq!(client.set_irqs(0x21, 0, 2, &[]), Ok(()), "triggered");
    }
    let mut count = [0; 8];
    rustix::io::read(&other, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 100, "the other vector");
    assert_eq!(client.call(Command::DeviceReset, &[], &[]), Ok(vec![]));
    assert_eq!(client.set_irqs(0x21, 0, 1, &[]), Ok(()));
    assert_eq!(client.set_irqs(0x24, 0, 1, &[]), Ok(()), "disconnected");
    drop(client);
    bench.driver();
}

#[test]
fn bad_commands_are_refused_and_the_next_is_served() {
    let bench = Bench::new();
    let mut client = bench.client();
    for command in [0, 6, 11, 12, 14, 15, 16, 1000, u16::MAX] {
        let sent = client.post(command, 0, &[0; 64], &[]);
        assert_eq!(client.reply(), (sent, Err(EOPNOTSUPP)), "command {command}");
    }
    for command in [1, 2, 3, 5, 7, 8, 9, 10] {
        let sent = client.post(command, 0, &[1], &[]);
        assert_eq!(client.reply(), (sent, Err(EINVAL)), "command {command}");
    }
    for (region, offset, len) in [
        (2, 0xffff, 2),
        (2, u64::MAX, 1),
        (2, 0, u32::MAX),
        (1, 0, 1),
        (9, 0, 1),
        (u32::MAX, 0, 1),
        (7, 256, 1),
        (4, 0, 0x1_0001),
    ] {
        let access = access(region, offset, len);
        assert_eq!(client.call(Command::RegionRead, &access, &[]), Err(EINVAL));
        assert_eq!(client.call(Command::RegionWrite, &access, &[]), Err(EINVAL));
    }
    let short = [access(2, 0, 8), vec![0; 7]].concat();
    assert_eq!(client.call(Command::RegionWrite, &short, &[]), Err(EINVAL));
    assert_eq!(
        client.call(Command::Version, &[1, 0, 0, 0], &[]),
        Err(EINVAL)
    );
    let regions = |index| words(&[32, 0, index, 0, 0, 0, 0, 0]);
    assert!(client
        .call(Command::DeviceGetRegionInfo, &regions(8), &[])
        .is_ok());
    assert_eq!(
        client.call(Command::DeviceGetRegionInfo, &regions(9), &[]),
        Err(EINVAL)
    );
    // A reply without a request is ignored.
    client.post(9, 1, &access(2, 0, 1), &[]);
    let stray: Vec<_> = (0..16)
        .map(|_| eventfd(0, EventfdFlags::empty()).unwrap())
        .collect();
    let stray: Vec<_> = stray.iter().map(AsFd::as_fd).collect();
    assert!(client
        .call(Command::RegionRead, &access(2, 0, 1), &stray)
        .is_ok());
}

#[test]
fn a_client_that_loses_its_place_is_dropped() {
    let bench = Bench::new();
    for size in [0u32, 15, 0x2_0000, u32::MAX] {
        let mut client = bench.client();
        let mut header = [0; 16];
        header[4..8].copy_from_slice(&size.to_ne_bytes());
        client.stream.write_all(&header).unwrap();
        assert_eq!(client.stream.read(&mut [0]).unwrap_or(0), 0, "size {size}");
    }
    let mut driver = bench.driver();
    driver.start(FEATURES);
    driver.echo(0, 16, b"x", 1);
}

#[test]
fn messages_may_come_in_pieces() {
    let bench = Bench::new();
    let mut client = bench.client();
    let mut message = words(&[(9 << 16) | 5, 32, 0, 0]);
    message.extend(access(7, 0, 2));
    for byte in message {
        client.stream.write_all(&[byte]).unwrap();
    }
    let (id, reply) = client.reply();
    assert_eq!(id, 5);
    assert_eq!(reply.unwrap()[16..], [0xf4, 0x1a]);
}

#[test]
fn a_client_that_goes_leaves_a_clean_function_for_the_next() {
    let bench = Bench::new();
    for round in 0..5 {
        let mut driver = bench.driver();
        assert_eq!(driver.read8(reg::STATUS), 0);
        driver.start(FEATURES);
        driver.echo(0, 16, b"x", 1);
        assert_eq!(bench.device.resets.load(Ordering::SeqCst), round);
        drop(driver);
        wait_until("a reset", || {
            bench.device.resets.load(Ordering::SeqCst) != round
        });
    }
    drop(bench.client());
}

#[test]
fn a_second_client_is_turned_away() {
    let bench = Bench::new();
    let mut first = bench.client();
    let mut second = UnixStream::connect(&bench.path).unwrap();
    assert_eq!(second.read(&mut [0]).unwrap_or(0), 0);
    assert!(first.read(7, 0, 4).is_ok());
}

// abi
#[test]
fn a_storm_of_doorbells_is_taken_and_reads_pass() {
    const WRITES: u64 = 200_000;
    let bench = Bench::new();
    let mut client = bench.client();
    for i in 0..WRITES {
        client.posted_write(4, 4096 * (i % 16), &(i as u32).to_le_bytes());
        if i % 10_000 == 0 {
            // The read is answered after the device has handled all writes that were posted before.
            client.read(2, reg::STATUS, 1).unwrap();
            assert_eq!(bench.device.doorbells.load(Ordering::SeqCst), i + 1);
        }
    }
    assert_eq!(client.read(4, 0, 4).unwrap(), [0; 4]);
    assert_eq!(bench.device.doorbells.load(Ordering::SeqCst), WRITES);
    assert_eq!(
        bench.device.last_doorbell.load(Ordering::SeqCst),
        ((4096 * ((WRITES - 1) % 16)) << 32) | (WRITES - 1)
    );
    // Writes to other addresses or of another size ring no doorbell.
    client.write(4, 2, &[0; 4]).unwrap();
    client.write(4, 0, &[0; 2]).unwrap();
    client.write(4, 0, &[0; 8]).unwrap();
    assert_eq!(bench.device.doorbells.load(Ordering::SeqCst), WRITES);
}

#[test]
fn a_storm_of_kicks_does_not_starve_a_reset() {
    let bench = Bench::new();
    let mut driver = bench.driver();
    driver.start(FEATURES);
    for _ in 0..50_000 {
        driver.client.posted_write(2, reg::NOTIFY, &[0, 0]);
        driver.client.posted_write(2, reg::NOTIFY + 4, &[1, 0]);
    }
    driver.reset();
    assert_eq!(bench.device.resets.load(Ordering::SeqCst), 1);
}

#[test]
fn a_client_that_does_not_read_can_be_left() {
    let mut bench = Bench::new();
    let mut client = bench.client();
    client.stream.set_nonblocking(true).unwrap();
    let mut message = words(&[9 << 16, 32, 0, 0]);
    message.extend(access(4, 0, 0x1_0000));
    while client.stream.write(&message).is_ok() {}
    // The server waits for room in the socket, now or soon. In both cases the drop must end the
    // server.
    bench.handle = None;
}

#[test]
fn the_socket_goes_with_the_server() {
    let mut bench = Bench::new();
    let driver = bench.driver();
    assert!(bench.path.exists());
    bench.handle = None;
    assert!(!bench.path.exists());
    assert!(bench.space.enter().is_empty());
    drop(driver);
}

#[test]
fn functions_of_one_process_are_independent() {
    let benches: Vec<_> = (0..4).map(|_| Arc::new(Bench::new())).collect();
    let threads: Vec<_> = benches
        .iter()
        .map(|bench| {
            let bench = bench.clone();
            thread::spawn(move || {
                for _ in 0..20 {
                    let mut driver = bench.driver();
                    driver.start(FEATURES);
                    for _ in 0..20 {
                        assert_eq!(driver.echo(1, 16, b"abc", 3), b"cba");
                    }
                }
            })
        })
        .collect();
    // A function whose reset does not end does not affect the other functions.
    let hung = Bench::new();
    hung.device.hold_reset.set_closed(true);
    let mut driver = hung.driver();
    driver.start(FEATURES);
    drop(driver);
    for thread in threads {
        thread.join().unwrap();
    }
    hung.device.hold_reset.set_closed(false);
}
