// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Ports that are added and removed while other ports are in use.

use std::fs;
use std::path::Path;

use crate::ctl::done;
use crate::daemon_with;
use crate::endpoint::Endpoint;
use crate::endpoint::PLAIN;
use crate::only;
use crate::pattern;
use crate::process::Daemon;
use crate::wire::*;
use crate::MACS;

/// Number of times that a port is added and removed.
const ROUNDS: u32 = 100;
/// Memory for the tables and frames of a port, in KiB.
const OF_A_PORT: u64 = 27 << 10;

/// Runs a test with a daemon whose control socket is `dir`/ctl, once with the direct path and once
/// with packets.
fn on_both_paths(test: impl Fn(&Path, &Daemon)) {
    for path in ["direct", "wire"] {
        let dir = tempfile::tempdir().unwrap();
        let ctl = dir.path().join("ctl").display().to_string();
        let daemon = daemon_with(dir.path(), path, &["--ctl", &ctl]);
        test(dir.path(), &daemon);
    }
}

/// Adds port c and initializes its device.
fn arrive(dir: &Path) -> Endpoint {
    let socket = dir.join("c");
    let port = format!("c,vfio={},mac=52:54:00:09:00:03", socket.display());
    done(dir, &["add-port", &port]);
    Endpoint::new(&socket, PLAIN)
}

fn connect(a: &mut Endpoint, b: &mut Endpoint) {
    b.connect(a.peer(), 1, 2);
    a.connect(b.peer(), 2, 1);
}

/// Executes a WRITE from `a` to `b`, and returns the status of its completion.
fn write(a: &mut Endpoint, b: &Endpoint, number: u32) -> u8 {
    let (there, rkey) = (b.region.address, b.region.rkey);
    let len = 1000 + number;
    a.region.write(0, &pattern(len));
    let write = Send::new(opcode::RDMA_WRITE, number.into()).to(there, rkey);
    a.post_send(&write.flags(SIGNALED).with(&[a.region.sge(0, len)]));
    let done = only(&mut a.send_cq);
    a.sq.done += 1;
    assert_eq!(done.wr_id, u64::from(number));
    done.status
}

/// Number of threads and open files of a daemon, and its private memory in KiB.
fn usage(daemon: &Daemon) -> (usize, usize, u64) {
    let of = |name: &str| format!("/proc/{}/{name}", daemon.engine());
    let count = |name: &str| fs::read_dir(of(name)).unwrap().count();
    let status = fs::read_to_string(of("status")).unwrap();
    let data = status
        .lines()
        .find_map(|line| line.strip_prefix("VmData:"))
        .and_then(|text| text.split_whitespace().next());
    (count("task"), count("fd"), data.unwrap().parse().unwrap())
}

/// Two ports exchange data while a third one is added, initialized and removed.
#[test]
fn ports_come_and_go_and_nothing_grows() {
    on_both_paths(|dir, daemon| {
        let mut a = Endpoint::new(&dir.join("a"), PLAIN);
        let mut b = Endpoint::new(&dir.join("b"), PLAIN);
        connect(&mut a, &mut b);
        let mut before = usage(daemon);
        for round in 0..ROUNDS {
            let c = arrive(dir);
            assert_eq!(write(&mut a, &b, 2 * round), SUCCESS);
            done(dir, &["remove-port", "c"]);
            assert_eq!(write(&mut a, &b, 2 * round + 1), SUCCESS);
            drop(c);
            if round == ROUNDS / 10 {
                before.2 = usage(daemon).2;
            }
        }
        let after = usage(daemon);
        assert_eq!((after.0, after.1), (before.0, before.1), "threads, files");
        assert!(after.2 < before.2 + OF_A_PORT, "{before:?} {after:?}");
        b.region.expect(&[(0, &pattern(1000 + 2 * ROUNDS - 1))]);
        a.end();
        b.end();
    });
}

/// Peers of a removed port get errors, as after the end of its VM. A port that is added again under
/// the same name is another peer.
#[test]
fn peers_of_a_port_that_goes_get_errors() {
    const RETRY_EXC_ERR: u8 = 12;
    on_both_paths(|dir, _| {
        let mut a = Endpoint::new(&dir.join("a"), PLAIN);
        assert_eq!(a.mac, MACS[0]);
        let mut c = arrive(dir);
        connect(&mut a, &mut c);
        assert_eq!(write(&mut a, &c, 1), SUCCESS);
        done(dir, &["remove-port", "c"]);
        let mut again = arrive(dir);
        assert_eq!(write(&mut a, &c, 2), RETRY_EXC_ERR);
        again.region.expect(&[]);
        let mut other = Endpoint::new(&dir.join("b"), PLAIN);
        connect(&mut other, &mut again);
        assert_eq!(write(&mut other, &again, 3), SUCCESS);
    });
}
