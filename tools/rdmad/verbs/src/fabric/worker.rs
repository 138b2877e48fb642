// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! What a worker thread does: turns of ready objects, one device after the other.

use std::cell::Cell;
use std::hint::spin_loop;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Instant;

use super::{Shared, Watch};
use crate::Device;

/// Expired deadlines that are looked at before other work goes on.
const TIMERS_A_ROUND: usize = 64;

thread_local! {
    /// Its number, counted from 1, or 0 if it is none.
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

/// Whether the current thread is a worker.
#[inline]
pub(super) fn is_worker() -> bool {
    WORKER.get() != 0
}

/// Where the current thread counts, so that no two workers of a fabric meet: the number of the worker counted from 1, or
/// 0 for all other threads.
#[inline]
pub(crate) fn shard() -> usize {
    WORKER.get()
}

/// One that serves: a thread, or the steps of one.
#[derive(Debug)]
pub(super) struct Worker {
    /// Counted from 0.
    number: usize,
    watch: Watch,
    /// The device that the next round begins with: workers start at different ones.
    first: usize,
    /// When the last round began, if there was work in it.
    began: Option<Instant>,
    /// Devices that had their turn in this round, if it has begun.
    visited: Option<usize>,
    /// Whether there was work in this round.
    worked: bool,
    /// It sleeps, perhaps until then. Of one that is stepped.
    asleep: Option<Option<Instant>>,
}

/// What comes after a round.
enum Next {
    /// Another one.
    Round,
    /// Another one, for what is watched.
    Watch,
    Sleep,
}

/// Serves until the fabric stops.
pub(super) fn run(shared: &Shared, number: usize) {
    WORKER.set(number + 1);
    let mut worker = Worker::new(shared, number);
    while !shared.stopped.load(Ordering::SeqCst) {
        match worker.round(shared) {
            Next::Round => {}
            Next::Watch => spin_loop(),
            Next::Sleep => shared.sleep.sleep(
                || shared.busy() || shared.stopped.load(Ordering::SeqCst),
                || shared.clock.alarm(shared.timers.next()?),
            ),
        }
    }
}

impl Worker {
    pub(super) fn new(shared: &Shared, number: usize) -> Self {
        Self {
            number,
            watch: Watch::new(shared.poll),
            first: number,
            began: None,
            visited: None,
            worked: false,
            asleep: None,
        }
    }

    /// Gives each device one turn.
    fn round(&mut self, shared: &Shared) -> Next {
        self.begin(shared);
        let devices = shared.devices.load();
        for index in 0..devices.len() {
            self.visit(shared, &devices, index);
        }
        self.end(shared)
    }

    fn begin(&mut self, shared: &Shared) {
        let now = shared.expire();
        if let Some(began) = self.began {
            let time = now.saturating_duration_since(began);
            shared.longest.note_round(shard(), time);
        }
        self.began = Some(now);
        self.worked = false;
    }

    /// The turn of one device.
    fn visit(&mut self, shared: &Shared, devices: &[Arc<Device>], index: usize) {
        let device = &devices[self.first.wrapping_add(index) % devices.len()];
        if device.is_ready() {
            let turn = shared.quiesce.begin(self.number);
            self.worked |= device.serve(&self.watch, || shared.sleep.wake());
            drop(turn);
            device.transport().send_interrupts();
        }
    }

    fn end(&mut self, shared: &Shared) -> Next {
        self.first = self.first.wrapping_add(1);
        // Also when there is other work, since nobody else may know of what is watched.
        let watching = shared.look(self.number, &self.watch);
        if self.worked {
            return Next::Round;
        }
        self.began = None;
        if watching {
            Next::Watch
        } else {
            Next::Sleep
        }
    }

    /// The next step of a round. Returns whether it is awake.
    pub(super) fn step(&mut self, shared: &Shared) -> bool {
        let before = WORKER.replace(self.number + 1);
        let awake = self.wake_up(shared) && self.go_on(shared);
        WORKER.set(before);
        awake
    }

    fn wake_up(&mut self, shared: &Shared) -> bool {
        let Some(deadline) = self.asleep else {
            return true;
        };
        let is_over = deadline.is_some_and(|deadline| deadline <= shared.clock.now());
        let awake = shared.sleep.wake_up(is_over);
        if awake {
            self.asleep = None;
        }
        awake
    }

    fn go_on(&mut self, shared: &Shared) -> bool {
        let devices = shared.devices.load();
        match self.visited {
            None => {
                self.begin(shared);
                self.visited = Some(0);
            }
            Some(index) if index < devices.len() => {
                self.visit(shared, &devices, index);
                self.visited = Some(index + 1);
            }
            Some(_) => {
                self.visited = None;
                if matches!(self.end(shared), Next::Sleep)
                    && shared.sleep.fall_asleep(|| shared.busy())
                {
                    self.asleep = Some(shared.timers.next());
                    return false;
                }
            }
        }
        true
    }
}

impl Shared {
    /// Looks at what is watched. Returns whether there was anything to look at.
    fn look(&self, worker: usize, watch: &Watch) -> bool {
        if watch.is_empty() {
            return false;
        }
        let devices = self.devices.load();
        let _turn = self.quiesce.begin(worker);
        watch.look(
            self.clock.now(),
            |(port, qpn)| find(&devices, port).is_none_or(|device| device.has_posted(qpn)),
            |(port, qpn)| {
                if let Some(device) = find(&devices, port) {
                    device.qp_ready(qpn);
                }
            },
        );
        true
    }

    /// Marks the QPs whose deadline is over. Returns the time.
    fn expire(&self) -> Instant {
        let now = self.clock.now();
        let devices = self.devices.load();
        for _ in 0..TIMERS_A_ROUND {
            let Some((port, qpn)) = self.timers.expired(now) else {
                break;
            };
            if let Some(device) = find(&devices, port) {
                device.timer_expired(qpn);
            }
        }
        now
    }

    pub(super) fn busy(&self) -> bool {
        self.devices.load().iter().any(|device| device.is_ready())
    }
}

/// The device at `port`, if it is still there.
fn find(devices: &[Arc<Device>], port: u32) -> Option<&Device> {
    let at = devices.binary_search_by_key(&port, |device| device.port());
    at.ok().map(|at| &*devices[at])
}
