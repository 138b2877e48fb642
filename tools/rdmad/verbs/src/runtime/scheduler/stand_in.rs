// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Threads that stand in for sleeping workers.
//!
//! Waking a worker takes longer than the work for most batches of frames, and the worker's CPU has
//! neither the frames nor, afterwards, the receiver of the answers in its cache. So a thread that
//! has frames for a port and has nothing else to do executes the work itself if the worker sleeps:
//! it *stands in* for the worker. To all others the worker is awake meanwhile. The worker's own
//! thread sleeps on, unless work is left, or the work needs the worker for other reasons: a
//! deadline, or queues to poll.
//!
//! The thread has work of other VMs to do afterwards, so it does little: turns of the frames' port
//! alone, and only of flows that are not bulk. Nobody knows whether the host has to provide the
//! memory that they access, for example from a disk. A single access may then take long. So after a
//! slow stand-in, the workers do all work for nine times as long: the host delays the thread for a
//! tenth of its time at most.

use std::sync::Weak;
use std::time::{Duration, Instant};

use budget::TimeShare;
use virtio_rdma_abi::number::PortId;

use super::flow::{Flow, PortFlows};
use super::sync::Mutex;
use super::work::Work;
use super::worker::Worker;
use super::Scheduler;

/// Slow stand-ins take one part of this many parts of the time at most.
const PARTS: u32 = 10;

/// The workers of a crew, as threads that stand in see them.
pub(crate) struct StandIns<W> {
    workers: Box<[Weak<Mutex<Worker<W>>>]>,
    /// The time of slow stand-ins.
    share: TimeShare,
}

impl<W: Work> StandIns<W> {
    /// The given workers, in the order of their numbers. Threads may stand in from `now` on.
    pub(super) fn new(now: Instant, workers: impl Iterator<Item = Weak<Mutex<Worker<W>>>>) -> Self {
        Self {
            workers: workers.collect(),
            share: TimeShare::new(PARTS, Duration::ZERO, now),
        }
    }

    /// Makes `flow` ready, and stands in for the flow's home if that sleeps. The current thread
    /// must not be a worker or hold a lock.
    pub(crate) fn serve_here(&self, scheduler: &Scheduler, flows: &PortFlows, flow: Flow) {
        if let Some(home) = scheduler.add(flows, flow) {
            if !self.stand_in(scheduler, home, flows.port()) {
                scheduler.call(home);
            }
        }
    }

    /// Executes work of `worker` for `port` in the current thread, if the worker sleeps. Returns
    /// false if the worker is awake or has ended, or if the last stand-in was slow.
    fn stand_in(&self, scheduler: &Scheduler, worker: usize, port: PortId) -> bool {
        let start = scheduler.clock.now();
        if !self.share.pause(start).is_zero() {
            return false;
        }
        let Some(worker) = self.workers.get(worker).and_then(Weak::upgrade) else {
            return false;
        };
        let held = worker.try_lock();
        let done = held.is_some_and(|mut worker| worker.stand_in(port));
        let end = scheduler.clock.now();
        let time = end.saturating_duration_since(start);
        if time > scheduler.turn_time {
            self.share.charge(time, end);
        }
        done
    }
}
