// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of a daemon with two ports by drivers that were written only from `Documentation/abi.md`
//! and its parts. On purpose these drivers share no code with `rust/shared/abi`, `rust/shared/ring`
//! and the drivers of other tests: `wire.rs` has a second copy of all numbers and layouts. So these
//! tests find mistakes that the device and the project's own driver have in common. Do not import
//! those crates here, and of `testkit` only what is no driver.

mod beside_waiters;
mod connection;
#[path = "../ctl/mod.rs"]
mod ctl;
mod datagrams;
mod driver;
mod endpoint;
mod engines;
mod events;
mod keys;
mod lost;
mod many;
mod memory;
mod modify;
mod operations;
mod pci;
mod port;
#[path = "../process/mod.rs"]
mod process;
mod queues;
mod region;
mod rings;
mod store;
mod tenants;
mod virtqueue;
mod virtqueue_mode;
mod why;
mod wire;
mod wqes;

use std::path::Path;
use std::process::Command;

use endpoint::Endpoint;
use endpoint::Options;
use endpoint::PLAIN;
use process::Daemon;
use wire::*;

/// MAC addresses of the ports.
const MACS: [[u8; 6]; 2] = [[0x52, 0x54, 0, 9, 0, 1], [0x52, 0x54, 0, 9, 0, 2]];

const PROGRAM: &str = env!("CARGO_BIN_EXE_virtio-rdmad");

/// Starts a daemon with the ports a and b, whose sockets are in `dir`. Port a has a configured IP
/// address, so it may use only this address and its link-local address. Its driver uses the
/// link-local address.
fn daemon(dir: &Path, path: &str) -> Daemon {
    daemon_with(dir, path, &[])
}

/// Like [`daemon`], with more arguments.
fn daemon_with(dir: &Path, path: &str, more: &[&str]) -> Daemon {
    daemon_of(Path::new(PROGRAM), dir, path, more)
}

/// Like [`daemon_with`], with another program.
fn daemon_of(program: &Path, dir: &Path, path: &str, more: &[&str]) -> Daemon {
    Daemon::start(command_of(program, dir, path, more))
}

/// The command of a daemon, whose `--ready-fd` is its standard output.
fn command_of(program: &Path, dir: &Path, path: &str, more: &[&str]) -> Command {
    let mut command = Command::new(program);
    for ((name, more), mac) in [("a", ",ip=192.0.2.1"), ("b", "")].into_iter().zip(MACS) {
        let socket = dir.join(name);
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        let port = format!("{name},vfio={},mac={mac}{more}", socket.display());
        command.args(["--port", &port]);
    }
    command.args(["--ready-fd", "1", "--path", path]).args(more);
    command
}

/// Runs a test with two sides that are not connected, once with the direct path and once with
/// packets.
fn apart(a: Options, b: Options, test: impl Fn(Endpoint, Endpoint)) {
    for path in ["direct", "wire"] {
        let dir = tempfile::tempdir().unwrap();
        let _daemon = daemon(dir.path(), path);
        let a = Endpoint::new(&dir.path().join("a"), a);
        let b = Endpoint::new(&dir.path().join("b"), b);
        assert_eq!((a.mac, b.mac), (MACS[0], MACS[1]));
        test(a, b);
    }
}

/// Like [`apart`], but the sides are connected.
fn connected(a: Options, b: Options, test: impl Fn(Endpoint, Endpoint)) {
    apart(a, b, |mut a, mut b| {
        let (a_psn, b_psn) = (0xff_fffe, 0x12_3456);
        b.connect(a.peer(), b_psn, a_psn);
        a.connect(b.peer(), a_psn, b_psn);
        test(a, b);
    });
}

/// Like [`connected`], with fixed options: one driver uses only own rings. The other also uses page
/// sizes, VLANs, and rings whose page lists have directories.
fn between(test: impl Fn(Endpoint, Endpoint)) {
    let more = Options {
        features: MR_PAGES | GID_VLAN,
        depth: 1,
        ..PLAIN
    };
    connected(PLAIN, more, test);
}

/// `len` bytes of a pattern with a period of 251.
fn pattern(len: u32) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8 + 1).collect()
}

/// Waits for a completion, asserts that it is the only one of the CQ, and returns it.
fn only(cq: &mut rings::CompletionQueue) -> Cqe {
    let cqe = cq.wait();
    assert_eq!(cq.poll(), None, "after {cqe:?}");
    cqe
}
