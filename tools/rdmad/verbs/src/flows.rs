// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The flows of an HCA: the QPs, CQs and event queues that are ready for a turn.

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use scheduler::{Flow, IdleGap, PortFlows, ReadySet};
use virtio_rdma_abi::event::FIRST_EVENT_QUEUE;
use virtio_rdma_abi::number::{Cqn, PortId, Qpn};

use crate::config::Limits;
use crate::event::EventQueue;
use crate::runtime::SharedRuntime;

/// The flows of an HCA, with the CQs and event queues that share the flow of notifications.
pub(crate) struct Flows {
    runtime: Arc<SharedRuntime>,
    /// The scheduler's state of the flows.
    pub port: PortFlows,
    pub doorbells: CachePadded<Doorbells>,
}

/// State that doorbells write. It has cache lines of its own: every turn reads the other words of
/// an HCA.
pub(crate) struct Doorbells {
    /// CQs whose doorbell was rung, or whose deadline has passed.
    pub ready_cqs: ReadySet<Cqn>,
    /// Event queues in which the driver placed buffers since their last turn.
    pub ready_events: ReadySet<EventQueue>,
    /// Detects idle gaps between doorbells.
    pub idle_gap: IdleGap,
}

impl Flows {
    /// Flows of port `port`, none of which is ready.
    pub(crate) fn new(runtime: Arc<SharedRuntime>, port: PortId, limits: &Limits) -> Self {
        let scheduler = &runtime.scheduler;
        Self {
            port: PortFlows::new(port, limits.max_qp + 1, scheduler.workers()),
            doorbells: CachePadded::new(Doorbells {
                ready_cqs: ReadySet::new(limits.max_cq),
                ready_events: ReadySet::new(u32::from(FIRST_EVENT_QUEUE) + limits.event_queues),
                idle_gap: IdleGap::new(scheduler.clock.now()),
            }),
            runtime,
        }
    }

    /// Requests a turn for `flow`.
    #[inline]
    fn make_ready(&self, flow: Flow) {
        self.runtime.scheduler.make_ready(&self.port, flow);
    }

    /// Requests a turn for QP `qpn`.
    #[inline]
    pub(crate) fn qp_ready(&self, qpn: Qpn) {
        self.make_ready(Flow::of(qpn));
    }

    /// Requests a turn for the port's frames.
    pub(crate) fn frames_ready(&self) {
        self.make_ready(Flow::FRAMES);
    }

    /// Like [`frames_ready`](Self::frames_ready), but if the port's worker sleeps, the current
    /// thread gives the turn, and other turns of the port. The thread must not be a worker or hold
    /// a lock.
    pub(crate) fn serve_frames_here(&self) {
        self.runtime.serve_here(&self.port, Flow::FRAMES);
    }

    /// Requests a turn for event queues and CQs.
    pub(crate) fn notifications_ready(&self) {
        self.make_ready(Flow::NOTIFICATIONS);
    }
}
