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
//! alone, and only of flows that are not bulk.

use std::sync::Weak;

use virtio_rdma_abi::number::PortId;

use super::flow::{Flow, PortFlows};
use super::sync::Mutex;
use super::work::Work;
use super::worker::Worker;
use super::Scheduler;

/// The workers of a crew, as threads that stand in see them.
pub(crate) struct StandIns<W>(Box<[Weak<Mutex<Worker<W>>>]>);

impl<W: Work> StandIns<W> {
    /// The given workers, in the order of their numbers.
    pub(super) fn new(workers: impl Iterator<Item = Weak<Mutex<Worker<W>>>>) -> Self {
        Self(workers.collect())
    }

    /// Makes `flow` ready, and stands in for the flow's home if that sleeps. The current thread
    /// must not be a worker or hold a lock.
    pub(crate) fn serve_here(&self, scheduler: &Scheduler, flows: &PortFlows, flow: Flow) {
        if let Some(home) = scheduler.add(flows, flow) {
            if !self.stand_in(home, flows.port()) {
                scheduler.call(home);
            }
        }
    }

    /// Executes work of `worker` for `port` in the current thread, if the worker sleeps. Returns
    /// false if the worker is awake or has ended.
    fn stand_in(&self, worker: usize, port: PortId) -> bool {
        let Some(worker) = self.0.get(worker).and_then(Weak::upgrade) else {
            return false;
        };
        let held = worker.try_lock();
        held.is_some_and(|mut worker| worker.stand_in(port))
    }
}
