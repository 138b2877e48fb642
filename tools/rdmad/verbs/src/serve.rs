// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The turns of an HCA: what requests them, and what a worker does in them.
//!
//! Doorbells, notifications of virtqueues, arriving frames and deadlines make flows
//! [ready](crate::flows). A worker then calls [`serve`](Hca::serve) for each flow.

use std::sync::Arc;

use sandbox::contain;
use scheduler::{Flow, FlowKey, QpKey, TurnEnd, TurnStart};
use virtio_rdma_abi::event::FIRST_EVENT_QUEUE;
use virtio_rdma_abi::ib::QpState;
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::queues::Role;
use virtio_rdma_abi::ring::Doorbell;

use crate::counters::Counter;
use crate::event::EventQueue;
use crate::qp::Qp;
use crate::runtime::Watch;
use crate::turn::{done, TurnBudget, TURN};
use crate::wire;
use crate::Hca;

impl Hca {
    /// Handles a 32-bit store of `value` to doorbell page `page`. If the queue that `value` names
    /// belongs to that page, it is marked as ready; other values are ignored. Waits at most as long
    /// as one turn of a QP takes, whatever the guest writes, and however often.
    pub fn doorbell(&self, page: u32, value: u32) {
        self.counters.add(Counter::Doorbells, 1);
        let Some(doorbell) = Doorbell::from_u32(value) else {
            return;
        };
        match doorbell {
            Doorbell::Sq(qpn) => {
                let rung =
                    |qp: &Qp| (qp.init.doorbell_page == page).then(|| qp.is_request_response());
                if let Some(is_request_response) = self.objects.qps.with(qpn, rung).flatten() {
                    self.posted(qpn, is_request_response);
                }
            }
            Doorbell::Rq(qpn) => {
                if self
                    .objects
                    .qps
                    .with(qpn, |qp| qp.init.doorbell_page == page)
                    == Some(true)
                {
                    self.qp_ready(qpn);
                }
            }
            Doorbell::Cq(cqn) => {
                if self.objects.cqs.with(cqn, |cq| cq.doorbell_page == page) == Some(true)
                    && self.flows.doorbells.ready_cqs.insert(cqn)
                {
                    self.flows.notifications_ready();
                }
            }
            // Receives are fetched when messages arrive.
            Doorbell::Srq(_) => {}
        }
    }

    /// Handles the driver's notification of virtqueue `queue`: an event queue has buffers again, or
    /// a queue of virtqueue mode has work. Waits at most as long as one turn of a QP takes, however
    /// often the driver notifies.
    pub fn notified(&self, queue: u16) {
        self.counters.add(Counter::Doorbells, 1);
        if self.has_own_rings() {
            if queue >= FIRST_EVENT_QUEUE
                && self.flows.doorbells.ready_events.insert(EventQueue(queue))
            {
                self.flows.notifications_ready();
            }
            return;
        }
        match self.assigned_virtqueues().numbers().role(queue) {
            Role::Sq(qpn) => {
                if let Some(is_request_response) =
                    self.objects.qps.with(qpn, Qp::is_request_response)
                {
                    self.posted(qpn, is_request_response);
                }
            }
            Role::Rq(qpn) => {
                // Receives are fetched when messages arrive, but in ERR they are flushed now.
                let flushes = |qp: &Qp| qp.state() == Some(QpState::Err);
                if self.objects.qps.with(qpn, flushes) == Some(true) {
                    self.qp_ready(qpn);
                }
            }
            Role::Control | Role::Cq(_) => {}
        }
    }

    /// Called when the frame port has received frames, or has room again.
    pub fn frames_ready(&self) {
        self.frames.are_ready(&self.flows);
    }

    /// Like [`frames_ready`](Self::frames_ready), for a thread that has nothing else to do: if the
    /// worker of the port sleeps, the thread handles the frames itself. The thread must not be a
    /// worker or hold a lock that a turn or an interrupt needs.
    pub fn serve_frames_here(&self) {
        self.frames.are_ready_here(&self.flows);
    }

    /// Gives QP `qpn` a turn after a thread that is not a worker received its doorbell or
    /// notification. If `is_request_response` is true and all workers sleep, that thread itself may
    /// serve the QP.
    fn posted(&self, qpn: Qpn, is_request_response: bool) {
        let scheduler = &self.runtime().scheduler;
        let serve = |now| {
            let start = TurnStart { now, budget: TURN };
            self.contained(|| {
                done::begin();
                let end = self.serve_qp(qpn, start, &Watch::nothing());
                scheduler.end_turn(&self.flows.port, Flow::of(qpn), end);
            });
        };
        let idle_gap = &self.flows.doorbells.idle_gap;
        if is_request_response && scheduler.serve_at_once(idle_gap, serve) {
            self.virtqueues().send_interrupts();
        } else {
            self.qp_ready(qpn);
        }
    }

    /// The flow of the peer QP, if `flow` is a QP with a direct route.
    pub(crate) fn direct_peer_of(&self, flow: Flow) -> Option<FlowKey> {
        let qps = &self.objects.qps;
        let QpKey { port, qpn } = qps.with(flow.qpn()?, |qp| qp.summary.direct_peer())??;
        let flow = Flow::of(qpn);
        Some(FlowKey { port, flow })
    }

    /// Whether a thread is serving the flow now.
    pub(crate) fn is_served(&self, flow: Flow) -> bool {
        match flow.qpn() {
            Some(qpn) => self.objects.qps.with(qpn, Qp::is_served) == Some(true),
            None => flow == Flow::FRAMES && self.frames.arrivals.receiving.is_busy(),
        }
    }

    /// Requests a turn for `flow`, whose deadline has passed.
    pub(crate) fn timer_expired(&self, flow: Flow) {
        match flow.qpn() {
            Some(qpn) => {
                if self.objects.qps.with(qpn, Qp::timer_expired).is_some() {
                    self.qp_ready(qpn);
                }
            }
            None => {
                self.objects.deadlines.expired(self);
                self.flows.notifications_ready();
            }
        }
    }

    /// Whether work is posted to QP `qpn` that the HCA has not fetched yet. Also true if the QP
    /// or the HCA can't be used. Must be called within a turn.
    pub(crate) fn has_posted(&self, qpn: Qpn) -> bool {
        let posted = || {
            let qp = self.objects.qps.hold(qpn);
            qp.is_none_or(|qp| qp.get().is_none_or(|qp| qp.has_posted(self)))
        };
        self.contained(posted).unwrap_or(true)
    }

    /// Gives a flow a turn. `watch` holds the queues that the calling worker watches.
    pub(crate) fn serve(self: &Arc<Self>, flow: Flow, start: TurnStart, watch: &Watch) -> TurnEnd {
        done::begin();
        let turn = || match flow.qpn() {
            Some(qpn) => self.serve_qp(qpn, start, watch),
            None if flow == Flow::FRAMES => self.serve_frames(start),
            None => self.serve_notifications(start),
        };
        self.contained(turn).unwrap_or_else(|| {
            self.drop_frames();
            TurnEnd::default()
        })
    }

    /// Gives QP `qpn` a turn, if it exists.
    fn serve_qp(&self, qpn: Qpn, start: TurnStart, watch: &Watch) -> TurnEnd {
        let end = match self.objects.qps.get(qpn) {
            Some(qp) => qp.serve(self, start, watch),
            None => TurnEnd::default(),
        };
        self.frames.pass_room_on(&self.flows);
        end
    }

    /// Gives notifications a turn: sends events that wait for buffers, and handles doorbells and
    /// deadlines of CQs.
    fn serve_notifications(&self, start: TurnStart) -> TurnEnd {
        let budget = self.budget_of(start);
        if self.objects.deadlines.take_link_up() {
            self.raise_link();
        }
        let doorbells = &self.flows.doorbells;
        while let Some(queue) = doorbells.ready_events.take() {
            if self.events().resume(queue.0, &budget) {
                doorbells.ready_events.insert(queue);
            }
            if budget.is_spent() {
                break;
            }
        }
        while !budget.is_spent() {
            let Some(cqn) = doorbells.ready_cqs.take() else {
                break;
            };
            budget.charge_notification();
            if let Some(cq) = self.objects.cqs.get(cqn) {
                cq.doorbell(self, &self.space.enter());
            }
        }
        self.runtime().note_turn(budget.spent());
        TurnEnd {
            again: !doorbells.ready_events.is_empty() || !doorbells.ready_cqs.is_empty(),
            cost: budget.cost(),
        }
    }

    fn serve_frames(self: &Arc<Self>, start: TurnStart) -> TurnEnd {
        if !self.frames.take_ready() {
            return TurnEnd::default();
        }
        let taken = self.frames.arrivals.receiving.run(|| {
            let budget = self.budget_of(start);
            self.wake_blocked(&budget);
            wire::receive(self, &budget)
        });
        let Some(taken) = taken else {
            return TurnEnd::default();
        };
        let mut end = taken.result;
        end.again |= taken.again;
        if end.again {
            self.frames.note_left();
        }
        end
    }

    /// Requests turns for QPs that wait for room. If there is still room after their turns, the
    /// next QPs get turns.
    fn wake_blocked(&self, budget: &TurnBudget<'_>) {
        self.frames.wake(|qpn, for_responses| {
            budget.charge_notification();
            done::notified(1);
            if for_responses {
                self.objects.qps.with(qpn, Qp::comes_next);
            }
            self.qp_ready(qpn);
        });
    }

    /// Drops the frames that arrived for the failed HCA, so the frames' buffers return to the
    /// ports that sent them. The HCA may have failed while it handled these frames.
    #[cold]
    fn drop_frames(&self) {
        self.frames.take_ready();
        // The panic hook reports a panic. Frames that remain are dropped when the next one arrives.
        if contain(|| wire::drop_frames(self)) == Ok(true) {
            self.frames_ready();
        }
    }
}
