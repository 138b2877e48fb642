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

/// Serves until the fabric stops.
pub(super) fn run(shared: &Shared, worker: usize) {
    WORKER.set(worker + 1);
    let watch = Watch::new(shared.poll);
    // Workers start at different devices.
    let mut first = worker;
    // When the last round began, if there was work in it.
    let mut began = None;
    while !shared.stopped.load(Ordering::SeqCst) {
        let now = shared.expire();
        if let Some(began) = began {
            let time = now.saturating_duration_since(began);
            shared.longest.note_round(shard(), time);
        }
        let worked = shared.round(worker, first, &watch);
        began = worked.then_some(now);
        // Also when there is other work, since nobody else may know of what is watched.
        let watching = shared.look(worker, &watch);
        if !worked && !watching {
            shared.sleep.sleep(
                || shared.busy() || shared.stopped.load(Ordering::SeqCst),
                || shared.clock.alarm(shared.timers.next()?),
            );
        } else if !worked {
            spin_loop();
        }
        first = first.wrapping_add(1);
    }
}

impl Shared {
    /// Gives each device one turn, beginning with number `first`. Returns whether there was anything to do.
    fn round(&self, worker: usize, first: usize, watch: &Watch) -> bool {
        let devices = self.devices.load();
        let mut worked = false;
        for index in 0..devices.len() {
            let device = &devices[first.wrapping_add(index) % devices.len()];
            if device.is_ready() {
                let turn = self.quiesce.begin(worker);
                worked |= device.serve(watch, || self.sleep.wake());
                drop(turn);
                device.transport().send_interrupts();
            }
        }
        worked
    }

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
