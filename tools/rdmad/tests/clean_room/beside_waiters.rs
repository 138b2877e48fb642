// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A measurement: messages between two VMs, while another VM has interrupts that wake many waiters.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use testkit::Waiters;

use crate::daemon_with;
use crate::endpoint::{Endpoint, PLAIN, SEND_COOKIE};
use crate::rings::NEXT;
use crate::wire::*;

const TIME: Duration = Duration::from_secs(5);

/// Two connected endpoints at the ports with these names.
fn pair(dir: &Path, names: [&str; 2]) -> [Endpoint; 2] {
    let [mut a, mut b] = names.map(|name| Endpoint::new(&dir.join(name), PLAIN));
    b.connect(a.peer(), 1, 2);
    a.connect(b.peer(), 2, 1);
    [a, b]
}

/// Posts an RDMA WRITE of a byte.
fn write(from: &mut Endpoint, to: &Endpoint) {
    let write = Send::new(opcode::RDMA_WRITE, 1).to(to.region.address, to.region.rkey);
    let sge = from.region.sge(0, 1);
    from.post_send(&write.flags(SIGNALED).with(&[sge]));
    from.sq.done += 1;
}

/// Ports a and b exchange messages, and each completion interrupts a. Ports c and d exchange
/// messages without interrupts, which are measured. Documentation/testing.md has the command.
#[test]
#[ignore = "a measurement"]
fn messages_of_others_beside_waiters() {
    for (epolls, copies) in [(0, 0), (200, 100), (280, 280), (450, 450)] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let port = |name: &str, number| {
            let socket = dir.join(name);
            format!(
                "{name},vfio={},mac=52:54:00:09:00:0{number}",
                socket.display()
            )
        };
        let (c, d) = (port("c", 3), port("d", 4));
        let more = ["--workers", "1", "--port", &c, "--port", &d];
        let _daemon = daemon_with(dir, "direct", &more);
        let ends = AtomicBool::new(false);
        let is_ready = AtomicBool::new(false);
        let mut times = Vec::new();
        let interrupts = thread::scope(|scope| {
            let hostile = scope.spawn(|| {
                let [mut a, b] = pair(dir, ["a", "b"]);
                let _waiters = Waiters::new(a.driver.interrupt(), epolls, copies);
                is_ready.store(true, Ordering::SeqCst);
                let mut interrupts = 0;
                while !ends.load(Ordering::SeqCst) {
                    a.send_cq.arm(&mut a.driver, NEXT);
                    write(&mut a, &b);
                    assert_eq!(a.driver.sleep(), (COMPLETION, SEND_COOKIE));
                    a.send_cq.told();
                    while a.send_cq.poll().is_some() {}
                    interrupts += 1;
                }
                interrupts
            });
            let [mut c, d] = pair(dir, ["c", "d"]);
            while !is_ready.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(10));
            }
            let start = Instant::now();
            while start.elapsed() < TIME {
                let posted = Instant::now();
                write(&mut c, &d);
                while c.send_cq.poll().is_none() {
                    thread::yield_now();
                }
                times.push(posted.elapsed());
                thread::sleep(Duration::from_micros(300));
            }
            ends.store(true, Ordering::SeqCst);
            hostile.join().unwrap()
        });
        times.sort();
        let at = |percent| times[(times.len() - 1) * percent / 100];
        println!(
            "{} waiters, {interrupts} interrupts: {} messages, median {:?}, 90 % {:?}, 99 % {:?}, \
             longest {:?}",
            epolls * copies,
            times.len(),
            at(50),
            at(90),
            at(99),
            at(100)
        );
    }
}
