// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Invalid SET_IRQS commands of a client: a refused command changes no vector.

mod common;

use std::os::fd::{AsFd, OwnedFd};

use common::*;
use rustix::event::{eventfd, EventfdFlags};
use testkit::vfio::message::words;
use testkit::vfio::Client;
use testkit::{wait, wait_until, Waiters};
use vfio_user::Command;

const EINVAL: u32 = 22;

/// Data types and actions of `struct vfio_irq_set`.
const NONE: u32 = 1 << 0;
const BOOL: u32 = 1 << 1;
const EVENTFD: u32 = 1 << 2;
const MASK: u32 = 1 << 3;
const TRIGGER: u32 = 1 << 5;

const MSI_X: u32 = 2;

fn events() -> [OwnedFd; 3] {
    [(); 3].map(|()| eventfd(0, EventfdFlags::NONBLOCK).unwrap())
}

/// How often an eventfd was signalled since the last call.
fn count(fd: &OwnedFd) -> u64 {
    let mut value = [0; 8];
    match rustix::io::read(fd, &mut value) {
        Ok(_) => u64::from_ne_bytes(value),
        Err(_) => 0,
    }
}

/// Connects the vectors to `fds`.
fn connect(client: &mut Client, fds: &[OwnedFd; 3]) {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    client.set_irqs(TRIGGER | EVENTFD, 0, 3, &fds).unwrap();
}

#[test]
fn a_file_that_is_no_eventfd_connects_no_vector() {
    let bench = Bench::new();
    let mut client = bench.client();
    let (old, new) = (events(), events());
    connect(&mut client, &old);
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let fds = [new[0].as_fd(), new[1].as_fd(), file.as_fd()];
    assert_eq!(client.set_irqs(TRIGGER | EVENTFD, 0, 3, &fds), Err(EINVAL));
    client.set_irqs(TRIGGER | NONE, 0, 3, &[]).unwrap();
    assert_eq!(
        (old.each_ref().map(count), new.each_ref().map(count)),
        ([1; 3], [0; 3])
    );
}

#[test]
fn a_set_that_makes_no_sense_is_refused() {
    let bench = Bench::new();
    let mut client = bench.client();
    let fds = events();
    connect(&mut client, &fds);
    let one = [fds[0].as_fd()];
    for (what, words_of, fds) in [
        (
            "a length without its fields",
            [19, TRIGGER | NONE, MSI_X, 0, 1],
            &[][..],
        ),
        (
            "an unknown flag",
            [20, (1 << 6) | TRIGGER | NONE, MSI_X, 0, 1],
            &[],
        ),
        ("two actions", [20, TRIGGER | MASK | NONE, MSI_X, 0, 1], &[]),
        ("no action", [20, NONE, MSI_X, 0, 0], &[]),
        (
            "two types of data",
            [20, TRIGGER | NONE | BOOL, MSI_X, 0, 1],
            &[],
        ),
        ("no type of data", [20, TRIGGER, MSI_X, 0, 0], &[]),
        (
            "descriptors that are not announced",
            [20, TRIGGER | NONE, MSI_X, 0, 1],
            &one,
        ),
        (
            "descriptors and the end of all",
            [20, TRIGGER | NONE, MSI_X, 0, 0],
            &one,
        ),
        ("no vectors", [20, TRIGGER | EVENTFD, MSI_X, 0, 0], &[]),
        (
            "all vectors but the first",
            [20, TRIGGER | NONE, MSI_X, 1, 0],
            &[],
        ),
        (
            "an interrupt that does not exist",
            [20, TRIGGER | NONE, 5, 0, 0],
            &[],
        ),
        (
            "an interrupt that the function lacks",
            [20, TRIGGER | NONE, 3, 0, 0],
            &[],
        ),
        ("a vector of INTx", [20, TRIGGER | NONE, 0, 0, 1], &[]),
    ] {
        let reply = client.call(Command::SetIrqs, &words(&words_of), fds);
        assert_eq!(reply, Err(EINVAL), "{what}");
    }
    // INTx and MSI have no vectors, so disabling them succeeds and changes nothing.
    for index in [0, 1] {
        let disable = words(&[20, TRIGGER | NONE, index, 0, 0]);
        assert_eq!(client.call(Command::SetIrqs, &disable, &[]), Ok(vec![]));
    }
    assert_eq!(fds.each_ref().map(count), [0; 3], "none was triggered");
    client.set_irqs(TRIGGER | NONE, 0, 3, &[]).unwrap();
    assert_eq!(fds.each_ref().map(count), [1; 3], "all are connected");
}

/// Each signal of the first vector wakes many waiters, so the service thread signals instead of
/// threads that serve all functions. No interrupt is lost.
#[test]
fn signals_that_wake_many_waiters_are_left_to_the_service_thread() {
    let bench = Bench::new();
    let mut client = bench.client();
    let fds = events();
    connect(&mut client, &fds);
    let _waiters = Waiters::new(&fds[0], 200, 200);
    let handle = bench.handle.as_ref().unwrap();
    wait("an interrupt by the service thread", || {
        client.set_irqs(TRIGGER | NONE, 0, 1, &[]).unwrap();
        (handle.interrupts().deferred > 0).then_some(())
    });
    let slow = handle.interrupts().long_calls;
    assert!(slow.calls > 0 && slow.longest.as_micros() > 100, "{slow:?}");
    for fd in &fds {
        count(fd);
        client.set_irqs(TRIGGER | NONE, 0, 3, &[]).unwrap();
        wait_until("an interrupt", || count(fd) > 0);
    }
}
