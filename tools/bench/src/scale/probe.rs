// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A sparse sender. One thread acts as both guests of a connection, so that one clock measures a
//! message from its post until its data is visible.

use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use testkit::engine::{wait, Cq, Vm};
use testkit::spin_until;

use super::lane::{Guest, Lane};

/// Slots of a QP's send queue. Only one work request is outstanding at a time.
const DEPTH: u32 = 2;
/// Minimum pause between two messages, and maximum random addition in µs: the sender is sparse and
/// not synchronized with the workers.
const PAUSE: Duration = Duration::from_micros(100);
const MORE: u64 = 100;

/// Both directions of a connection between two guests.
pub struct Probe<'vm> {
    sides: [Side<'vm>; 2],
    /// Number of messages so far.
    sent: u64,
}

/// One guest of the connection.
struct Side<'vm> {
    guest: Guest<'vm>,
    cq: Cq<'vm>,
    lane: Lane<'vm>,
}

impl<'vm> Probe<'vm> {
    /// Bytes of a message.
    pub const SIZE: u32 = 8;

    /// A connection between two VMs, which may be the same VM.
    pub fn new(vms: [&'vm Vm; 2]) -> Self {
        let [one, two] = vms.map(|vm| (Guest::new(vm, Self::SIZE), Cq::new(vm, DEPTH)));
        let lane = |from: &(Guest<'vm>, Cq<'vm>), to: &(Guest<'vm>, Cq<'vm>)| {
            Lane::new(
                (&from.0, &to.0),
                (&from.1, &to.1),
                DEPTH,
                Self::SIZE,
                (0, 0),
            )
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

    /// Sends back and forth for `time`, with pauses. Returns the times of all messages in µs.
    pub fn run(&mut self, time: Duration) -> Vec<f64> {
        let mut random = fastrand::Rng::with_seed(1);
        self.repeat(time, || {
            sleep(PAUSE + Duration::from_micros(random.u64(..MORE)))
        })
    }

    /// Like [`run`](Self::run), without pauses.
    pub fn run_without_pauses(&mut self, time: Duration) -> Vec<f64> {
        self.repeat(time, || ())
    }

    fn repeat(&mut self, time: Duration, mut pause: impl FnMut()) -> Vec<f64> {
        let mut times = Vec::new();
        let began = Instant::now();
        while began.elapsed() < time {
            pause();
            times.push(self.message().as_secs_f64() * 1e6);
        }
        times
    }

    /// Sends a message, alternately in both directions. Its content differs from that of all
    /// earlier messages.
    fn message(&mut self) -> Duration {
        let [one, two] = &mut self.sides;
        let (from, to) = if self.sent % 2 == 0 {
            (one, two)
        } else {
            (two, one)
        };
        // The slot of this work request, which determines its buffer. Both directions have sent
        // half of the messages.
        let slot = (self.sent / 2 % u64::from(DEPTH)) as u32;
        self.sent += 1;
        let number = self.sent;
        let address = to.guest.address(slot, Self::SIZE);
        from.guest
            .vm
            .write(from.guest.address(slot, Self::SIZE), &number.to_ne_bytes());
        let view = to.guest.vm.space.enter();
        let word = view.slice(address, Self::SIZE as usize).expect("memory");
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
