// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A QEMU with many waiters at its end of a network interface: each write of the switch wakes them
//! all.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use testkit::{wait, Waiters};
use vswitch::stats::Stats;

/// Port 0 has waiters. The switch leaves off writing to it, and serves the others.
#[test]
fn writes_that_wake_many_waiters_are_left_off() {
    let rig = Rig::new(4, 0);
    let _waiters = Waiters::new(&rig.nets[0], 200, 200);
    let mut number = 0;
    wait("frames beyond the share", || {
        rig.nets[1].send(&frame(mac(0), mac(1), "to port 0"));
        let text = number.to_string();
        rig.nets[2].send(&frame(mac(3), mac(2), &text));
        assert_eq!(rig.nets[3].receive(), frame(mac(3), mac(2), &text));
        number += 1;
        (rig.stats(0).over_share > 0).then_some(())
    });
    let slow = rig.stats(0).long_calls;
    assert!(
        slow.calls > 0 && slow.longest > Duration::from_micros(100),
        "{slow:?}"
    );
    for port in 1..4 {
        let Stats {
            dropped,
            over_share,
            ..
        } = rig.stats(port);
        assert_eq!((dropped, over_share), (0, 0));
    }
}

/// Measures how long frames between two VMs take, while a third VM sends frames to port 0, which
/// has waiters. Documentation/testing.md has the command.
#[test]
#[ignore = "a measurement"]
fn frames_of_others_beside_waiters() {
    const TIME: Duration = Duration::from_secs(5);
    for (epolls, copies) in [(0, 0), (200, 100), (280, 280), (450, 450)] {
        let rig = Rig::new(4, 0);
        let _waiters = Waiters::new(&rig.nets[0], epolls, copies);
        let ends = AtomicBool::new(false);
        let mut times = Vec::new();
        thread::scope(|scope| {
            let (nets, ends) = (&rig.nets, &ends);
            scope.spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    nets[1].send(&frame(mac(0), mac(1), "to port 0"));
                    thread::sleep(Duration::from_millis(1));
                }
            });
            scope.spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    nets[0].receive_within(Duration::from_millis(100));
                }
            });
            let start = Instant::now();
            while start.elapsed() < TIME {
                let sent = Instant::now();
                nets[2].send(&frame(mac(3), mac(2), "between others"));
                nets[3].receive();
                times.push(sent.elapsed());
                thread::sleep(Duration::from_millis(2));
            }
            ends.store(true, Ordering::Relaxed);
        });
        times.sort();
        let at = |percent| times[(times.len() - 1) * percent / 100];
        println!(
            "{} waiters: {} frames, median {:?}, 90 % {:?}, 99 % {:?}, longest {:?}; {:?}",
            epolls * copies,
            times.len(),
            at(50),
            at(90),
            at(99),
            at(100),
            rig.stats(0).long_calls
        );
    }
}
