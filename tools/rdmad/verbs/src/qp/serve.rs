// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Turns of a QP.
//!
//! A QP becomes ready when its doorbell is rung, when the frame port has received frames for it or
//! has room for frames from it, when its peer answers or requests work, when a deadline passes, or
//! when a command changes it. Then a worker calls [`Qp::serve`]: the responder sends its answers,
//! then the requester executes the send queue. A turn ends when its budget is spent, or when both
//! have parked, each with the cause of its next turn arranged.

use std::ops::ControlFlow::{Break, Continue};
use std::sync::atomic::Ordering;

use scheduler::{TurnEnd, TurnStart};
use virtio_rdma_abi::ib::{AsyncEvent, QpState};

use super::requester::Stopped;
use super::{Qp, Requester, RequesterTurn, ResponderTurn};
use crate::memory::QueueView;
use crate::runtime::Watch;
use crate::turn::{Parked, TURN};
use crate::Hca;

/// Maximum number of work requests that are flushed in a turn.
pub(super) const FLUSH_LIMIT: usize = 256;

impl Qp {
    /// Gives the QP a turn. If another worker is serving the QP, that worker gives it another turn
    /// afterwards.
    pub(crate) fn serve(&self, hca: &Hca, start: TurnStart, watch: &Watch) -> TurnEnd {
        let Some(turn) = self.serving.run(|| self.turn(hca, start, watch)) else {
            return TurnEnd::default();
        };
        let mut end = turn.result;
        end.again |= turn.again;
        end
    }

    /// Whether a worker is serving the QP.
    pub(crate) fn is_served(&self) -> bool {
        self.serving.is_busy()
    }

    /// Sends the datagrams already posted to a QP that is being destroyed, as far as a turn's
    /// budget permits. Some programs destroy the QP right after they post a datagram, which is not
    /// acknowledged: hardware would have sent the datagram by then. Must not be called by a worker.
    pub(crate) fn send_last(&self, hca: &Hca) {
        if self.is_connected() {
            return;
        }
        // Turns end by the clock too. A turn that was short because the host is busy is continued.
        let mut spent = 0;
        while spent < TURN {
            let turn = || self.send_for_last_time(hca);
            let end = hca.runtime().scheduler.quiesce.outside(turn);
            spent += end.cost;
            if !end.again || end.cost == 0 {
                break;
            }
        }
    }

    fn send_for_last_time(&self, hca: &Hca) -> TurnEnd {
        let view = hca.space.enter();
        let mut requester = self.requester.lock();
        if self.state() != Some(QpState::Rts) {
            return TurnEnd::default();
        }
        let budget = hca.turn_budget();
        let turn = RequesterTurn::new(self, hca, &view, &budget);
        // The QP is being destroyed, so its next turn need not be arranged.
        let parked = self.serve_requester(&turn, &mut requester, &Watch::nothing());
        drop(turn);
        TurnEnd {
            again: parked.is_again(),
            cost: budget.spent(),
        }
    }

    /// Whether WQEs are posted that are not yet fetched. False while another thread holds the lock
    /// of the requester.
    pub(crate) fn has_posted(&self, hca: &Hca) -> bool {
        self.requester.try_lock().is_some_and(|requester| {
            let view = hca.space.enter();
            requester
                .io
                .queue
                .available(&QueueView::new(&self.init.sq, &view))
                > 0
        })
    }

    fn turn(&self, hca: &Hca, start: TurnStart, watch: &Watch) -> TurnEnd {
        let view = hca.space.enter();
        // Answers first, since the peer waits for them.
        let answered = self.answer(hca, &view, start);
        let mut requester = self.requester.lock();
        requester.io.paced = None;
        if self.failure_requested.swap(false, Ordering::AcqRel) {
            self.fail(hca, Some(AsyncEvent::QpFatal));
        }
        let budget = hca.budget_of(start);
        let turn = RequesterTurn::new(self, hca, &view, &budget);
        if let Some(Stopped {
            at,
            requester: parked,
            ..
        }) = requester.stopped
        {
            self.note_wait(hca, parked, at, turn.now);
        }
        let sent = self.serve_requester(&turn, &mut requester, watch);
        requester.stopped = Some(Stopped {
            at: turn.now,
            requester: sent,
            responder: answered.parked,
        });
        drop(turn);
        let spent = answered.cost + budget.spent();
        hca.runtime().note_turn(spent);
        let cost = spent.max(budget.cost());
        let again = answered.parked.and(sent).is_again();
        TurnEnd { again, cost }
    }

    /// Executes or flushes the SQ. In ERR the RQ is flushed after the SQ.
    fn serve_requester(
        &self,
        turn: &RequesterTurn<'_>,
        requester: &mut Requester,
        watch: &Watch,
    ) -> Parked {
        loop {
            let step = match self.state() {
                Some(state @ (QpState::Rts | QpState::Sqd)) => {
                    turn.execute(requester, state, watch)
                }
                Some(QpState::Err | QpState::Sqe) => return self.flush(turn, requester),
                _ => return self.await_command(),
            };
            match step {
                // The memory of the ring was unmapped. If the work request failed as well, the QP
                // is in ERR already.
                Continue(_) if turn.queue.lost() => {
                    requester.io.broken = true;
                    self.fail(turn.hca, Some(AsyncEvent::QpFatal));
                }
                Continue(_) if turn.is_over() => return Parked::again(),
                Continue(_) => {}
                Break(_) if turn.queue.lost() => {
                    requester.io.broken = true;
                    self.fail(turn.hca, Some(AsyncEvent::QpFatal));
                }
                Break(parked) => return parked,
            }
        }
    }

    /// Flushes the SQ and then the RQ.
    fn flush(&self, turn: &RequesterTurn<'_>, requester: &mut Requester) -> Parked {
        let sent = turn.flush(requester, FLUSH_LIMIT);
        if sent.is_again() || self.state() != Some(QpState::Err) {
            return sent;
        }
        turn.completions.deliver();
        let mut responder = self.responder.lock();
        let responder_turn = ResponderTurn::new(self, turn.hca, turn.view, turn.budget);
        let received = responder_turn.flush(&mut responder, FLUSH_LIMIT);
        sent.and(received)
    }
}
