// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The work of workers: ready objects of devices, one device after the other.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::Guard;
use virtio_rdma_abi::number::PortId;

use super::scheduler::{shard, Next, Scheduler, Work};
use super::{QpKey, SharedRuntime, Watch};
use crate::Device;

/// The work of one worker.
pub(super) struct Server {
    shared: Arc<SharedRuntime>,
    /// Its worker, counted from 0.
    worker: usize,
    watch: Watch,
    /// The device that the next round begins with: workers start at different ones.
    first: usize,
    /// When the last round began, if there was work in it.
    began: Option<Instant>,
    /// Whether there was work in this round.
    worked: bool,
}

impl Server {
    /// For this worker.
    pub(super) fn new(shared: Arc<SharedRuntime>, worker: usize) -> Self {
        Self {
            worker,
            watch: Watch::new(shared.poll),
            first: worker,
            began: None,
            worked: false,
            shared,
        }
    }

    /// Looks at what is watched. Returns whether there was anything to look at.
    fn look(&self) -> bool {
        if self.watch.is_empty() {
            return false;
        }
        let scheduler = &self.shared.scheduler;
        let devices = self.shared.devices.load();
        let _turn = scheduler.quiesce.begin(self.worker);
        self.watch.look(
            scheduler.clock.now(),
            |qp| find(&devices, qp.port).is_none_or(|device| device.has_posted(qp.qpn)),
            |qp| {
                if let Some(device) = find(&devices, qp.port) {
                    device.qp_ready(qp.qpn);
                }
            },
        );
        true
    }
}

impl Work for Server {
    type Places = Guard<Arc<Vec<Arc<Device>>>>;

    fn scheduler(&self) -> &Scheduler {
        &self.shared.scheduler
    }

    fn is_busy(&self) -> bool {
        self.shared.is_busy()
    }

    fn places(&self) -> Self::Places {
        self.shared.devices.load()
    }

    fn expired(&self, QpKey { port, qpn }: QpKey) {
        // The devices are those of now: the device may have come since the places were looked at.
        if let Some(device) = find(&self.shared.devices.load(), port) {
            device.timer_expired(qpn);
        }
    }

    fn begin(&mut self, now: Instant) {
        if let Some(began) = self.began {
            let time = now.saturating_duration_since(began);
            self.shared.loads.note_round(shard(), time);
        }
        self.began = Some(now);
        self.worked = false;
    }

    /// The turn of one device.
    #[inline]
    fn visit(&mut self, devices: &Self::Places, index: usize) -> bool {
        if index >= devices.len() {
            return false;
        }
        let device = &devices[self.first.wrapping_add(index) % devices.len()];
        if device.is_ready() {
            let scheduler = &self.shared.scheduler;
            let turn = scheduler.quiesce.begin(self.worker);
            self.worked |= device.serve(&self.watch, || scheduler.wake_another());
            drop(turn);
            device.virtqueues().send_interrupts();
        }
        true
    }

    fn end(&mut self) -> Next {
        self.first = self.first.wrapping_add(1);
        // Also when there is other work, since nobody else may know of what is watched.
        let watching = self.look();
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
}

/// The device at `port`, if it is still there.
fn find(devices: &[Arc<Device>], port: PortId) -> Option<&Device> {
    let at = devices.binary_search_by_key(&port, |device| device.port());
    at.ok().map(|at| &*devices[at])
}
