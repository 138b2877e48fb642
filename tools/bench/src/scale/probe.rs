// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A sparse sender: one thread plays both guests of a connection, so that one clock times a
//! message from its post until it can be read.

use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::lane::{Guest, Lane};
use crate::device::harness::waiting::spin_until;
use crate::device::harness::{wait, Cq, Vm};

/// Bytes of a message.
const SIZE: u32 = 8;
/// Work requests of a QP: each is completed before the next.
const DEPTH: u32 = 2;
/// The least pause between two messages, and the most beside that: the sender is sparse and meets
/// no rhythm of the workers.
const PAUSE: Duration = Duration::from_micros(100);
const MORE: u64 = 100;

/// Both directions of a connection between two guests.
pub struct Probe<'vm> {
    sides: [Side<'vm>; 2],
    /// Messages so far.
    sent: u64,
}

/// One guest.
struct Side<'vm> {
    guest: Guest<'vm>,
    cq: Cq<'vm>,
    lane: Lane<'vm>,
}

impl<'vm> Probe<'vm> {
    /// Between these, which may be one.
    pub fn new(vms: [&'vm Vm; 2]) -> Self {
        let [one, two] = vms.map(|vm| (Guest::new(vm, SIZE), Cq::new(vm, DEPTH)));
        let lane = |from: &(Guest<'vm>, Cq<'vm>), to: &(Guest<'vm>, Cq<'vm>)| {
            Lane::new((&from.0, &to.0), (&from.1, &to.1), DEPTH, SIZE, (0, 0))
        };
        let lanes = [lane(&one, &two), lane(&two, &one)];
        let mut sides = [one, two].into_iter().zip(lanes);
        let mut side = || {
            let ((guest, cq), lane) = sides.next().expect("two sides");
            Side { guest, cq, lane }
        };
        Self {
            sides: [side(), side()],
            sent: 0,
        }
    }

    /// Sends back and forth for `time`. Returns the times of all messages in µs.
    pub fn run(&mut self, time: Duration) -> Vec<f64> {
        let mut random = fastrand::Rng::with_seed(1);
        let mut times = Vec::new();
        let began = Instant::now();
        while began.elapsed() < time {
            sleep(PAUSE + Duration::from_micros(random.u64(..MORE)));
            times.push(self.message().as_secs_f64() * 1e6);
        }
        times
    }

    /// Sends a message that differs from all before it, one way and the other in turn.
    fn message(&mut self) -> Duration {
        let [one, two] = &mut self.sides;
        let (from, to) = if self.sent % 2 == 0 {
            (one, two)
        } else {
            (two, one)
        };
        // The slot of this work request, and thereby its buffer. Both ways have had as many.
        let slot = (self.sent / 2 % u64::from(DEPTH)) as u32;
        self.sent += 1;
        let number = self.sent;
        let address = to.guest.address(slot, SIZE);
        from.guest
            .vm
            .write(from.guest.address(slot, SIZE), &number.to_ne_bytes());
        let view = to.guest.vm.space.enter();
        let word = view.slice(address, SIZE as usize).expect("memory");
        let posted = Instant::now();
        from.lane.post(1);
        spin_until("a message", || {
            word.load_u64(0, Ordering::Acquire) == Ok(number)
        });
        let time = posted.elapsed();
        wait("a completion", || from.cq.poll());
        from.lane.complete(1);
        time
    }
}
