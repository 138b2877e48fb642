// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! What a worker thread does: turns of ready objects, one device after the other.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Shared;

/// Expired deadlines that are looked at before other work goes on.
const TIMERS_A_ROUND: usize = 64;

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Whether the current thread is a worker.
#[inline]
pub(super) fn is_worker() -> bool {
    IS_WORKER.get()
}

/// Serves until the fabric stops.
pub(super) fn run(shared: &Shared, worker: usize) {
    IS_WORKER.set(true);
    // Workers start at different devices.
    let mut first = worker;
    while !shared.stopped.load(Ordering::SeqCst) {
        shared.expire();
        if !shared.round(worker, first) {
            shared.sleep.sleep(
                || shared.busy() || shared.stopped.load(Ordering::SeqCst),
                || shared.timers.next(),
            );
        }
        first = first.wrapping_add(1);
    }
}

impl Shared {
    /// Gives each device one turn, beginning with number `first`. Returns whether there was anything to do.
    fn round(&self, worker: usize, first: usize) -> bool {
        let devices = self.devices.load();
        let mut worked = false;
        for index in 0..devices.len() {
            let device = &devices[first.wrapping_add(index) % devices.len()];
            if device.is_ready() {
                let _turn = self.quiesce.begin(worker);
                worked |= device.serve(|| self.sleep.wake());
            }
        }
        worked
    }

    /// Marks the QPs whose deadline is over.
    fn expire(&self) {
        let now = Instant::now();
        let devices = self.devices.load();
        for _ in 0..TIMERS_A_ROUND {
            let Some((port, qpn)) = self.timers.expired(now) else {
                break;
            };
            if let Ok(index) = devices.binary_search_by_key(&port, |device| device.port()) {
                devices[index].timer_expired(qpn);
            }
        }
    }

    fn busy(&self) -> bool {
        self.devices.load().iter().any(|device| device.is_ready())
    }
}
