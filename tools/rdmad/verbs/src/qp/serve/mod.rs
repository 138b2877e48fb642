// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Turns of a QP.
//!
//! A QP becomes ready when its doorbell is rung, when the frame port has received frames for it or
//! has room for frames from it, when its peer answers or requests work, when a deadline passes, or
//! when a command changes it. Then a worker calls [`Qp::serve`]. It sends the responder's answers
//! first, then executes the send queue, in one of three ways: [`direct`] copies, [`wire`] sends
//! packets, and [`datagram`] copies or sends a packet for each work request. A turn ends when its
//! budget is spent, or when both sides have parked, each with the cause of its next turn arranged
//! ([`park`]).

mod datagram;
mod direct;
mod park;
mod wire;

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::atomic::Ordering;

use dma::DmaView;
use roce::Pause;
use virtio_rdma_abi::ib::{AsyncEvent, QpState};

use super::send::Stopped;
use super::{Qp, RecvIo, RecvSide, RecvTurn, Responder, SendSide, SendTurn};
use crate::memory::QueueView;
use crate::runtime::{TurnEnd, TurnStart, Watch};
use crate::turn::{Charged, Parked, TURN};
use crate::wire::RecvEnv;
use crate::Hca;

/// Maximum number of work requests that are flushed in a turn.
pub(super) const FLUSH_LIMIT: usize = 256;

/// Result of sending the responder's answers.
struct Answered {
    parked: Parked,
    /// Cost of the answers sent, in the unit of the turn budget.
    cost: usize,
}

/// The result of a step of the send side: `Continue` if work was done and charged, and more may
/// follow; `Break` if the side parks.
type Progress = ControlFlow<Parked, Charged>;

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
        let mut side = self.send.lock();
        if self.state() != Some(QpState::Rts) {
            return TurnEnd::default();
        }
        let budget = hca.turn_budget();
        let turn = SendTurn::new(self, hca, &view, &budget);
        // The QP is being destroyed, so its next turn need not be arranged.
        let parked = self.serve_send_side(&turn, &mut side, &Watch::nothing());
        drop(turn);
        TurnEnd {
            again: parked.is_again(),
            cost: budget.spent(),
        }
    }

    /// Whether WQEs are posted that are not yet fetched. False while another thread holds the lock
    /// of the send side.
    pub(crate) fn has_posted(&self, hca: &Hca) -> bool {
        self.send.try_lock().is_some_and(|side| {
            let view = hca.space.enter();
            side.io
                .queue
                .available(&QueueView::new(&self.init.sq, &view))
                > 0
        })
    }

    fn turn(&self, hca: &Hca, start: TurnStart, watch: &Watch) -> TurnEnd {
        let view = hca.space.enter();
        // Answers first, since the peer waits for them.
        let answered = self.answer(hca, &view, start);
        let mut side = self.send.lock();
        side.io.paced = None;
        if self.failure_requested.swap(false, Ordering::AcqRel) {
            self.fail(hca, Some(AsyncEvent::QpFatal));
        }
        let budget = hca.budget_of(start);
        let turn = SendTurn::new(self, hca, &view, &budget);
        let sent = self.serve_send_side(&turn, &mut side, watch);
        side.stopped = Some(Stopped {
            at: turn.now,
            send: sent,
            recv: answered.parked,
        });
        drop(turn);
        let spent = answered.cost + budget.spent();
        hca.runtime().note_turn(spent);
        let cost = spent.max(budget.cost());
        let again = answered.parked.and(sent).is_again();
        TurnEnd { again, cost }
    }

    /// Sends the responder's answers.
    fn answer(&self, hca: &Hca, view: &DmaView, start: TurnStart) -> Answered {
        let nothing = |parked| Answered { parked, cost: 0 };
        let RecvSide { io, responder, .. } = &mut *self.recv.lock();
        if !self.may_answer() {
            return nothing(self.await_command());
        }
        let Some(responder) = responder else {
            return nothing(self.await_command());
        };
        if let Some(request) = responder.await_request() {
            return nothing(request.into());
        }
        self.send_answers(hca, view, start, io, responder)
    }

    /// Sends the answers of a responder that has some.
    #[inline(never)] // It makes a burst.
    fn send_answers(
        &self,
        hca: &Hca,
        view: &DmaView,
        start: TurnStart,
        io: &mut RecvIo,
        responder: &mut Responder,
    ) -> Answered {
        let budget = hca.budget_of(start);
        let turn = RecvTurn::new(self, hca, view, &budget);
        let limit = budget.left_for_frames();
        let sent = responder.transmit(limit, &mut RecvEnv::new(&turn, io));
        let request = responder.await_request();
        let parked = match sent {
            Ok(sent) => match (sent.pause, request) {
                (Pause::NoFrame, _) => hca.await_frames(self.number, io.full).into(),
                (Pause::Idle, Some(request)) => request.into(),
                (Pause::Idle | Pause::Budget, _) => Parked::again(),
            },
            Err(error) => {
                self.fail(hca, error.event);
                // The responder sends the NAK in the next turn.
                Parked::again()
            }
        };
        Answered {
            parked,
            cost: budget.spent(),
        }
    }

    /// Whether the state permits to send answers. In ERR the QP answers requests that it received
    /// before.
    fn may_answer(&self) -> bool {
        self.receives() || self.state() == Some(QpState::Err)
    }

    /// Sends the acknowledgement that the QP's next turn would send. A program may destroy or reset
    /// its QP as soon as it has the completion of the last message, but the peer waits for the
    /// acknowledgement of this message.
    pub(in crate::qp) fn acknowledge_last(&self, hca: &Hca, view: &DmaView, side: &mut RecvSide) {
        /// Bytes of frames after which no further one is sent: a congestion notification may
        /// precede the acknowledgement.
        const LIMIT: usize = 128;
        let RecvSide { io, responder, .. } = side;
        // The objects of a failed HCA may be half changed: nothing is sent for them.
        let may_send = self.may_answer() && !hca.has_failed();
        if let Some(responder) = responder.as_mut().filter(|_| may_send) {
            let budget = hca.turn_budget();
            let turn = RecvTurn::new(self, hca, view, &budget);
            // Without a frame buffer the acknowledgement is lost, as on a bad network.
            let _ = responder.transmit(LIMIT, &mut RecvEnv::new(&turn, io));
        }
    }

    /// Executes or flushes the SQ. In ERR the RQ is flushed after the SQ.
    fn serve_send_side(&self, turn: &SendTurn<'_>, side: &mut SendSide, watch: &Watch) -> Parked {
        loop {
            let step = match self.state() {
                Some(state @ (QpState::Rts | QpState::Sqd)) => self.send(turn, side, state, watch),
                Some(QpState::Err | QpState::Sqe) => return self.flush(turn, side),
                _ => return self.await_command(),
            };
            match step {
                // The memory of the ring was unmapped. If the work request failed as well, the QP
                // is in ERR already.
                Continue(_) if turn.queue.lost() => {
                    side.io.broken = true;
                    self.fail(turn.hca, Some(AsyncEvent::QpFatal));
                }
                Continue(_) if turn.is_over() => return Parked::again(),
                Continue(_) => {}
                Break(_) if turn.queue.lost() => {
                    side.io.broken = true;
                    self.fail(turn.hca, Some(AsyncEvent::QpFatal));
                }
                Break(parked) => return parked,
            }
        }
    }

    /// Flushes the SQ and then the RQ.
    fn flush(&self, turn: &SendTurn<'_>, side: &mut SendSide) -> Parked {
        let sent = turn.flush(side, FLUSH_LIMIT);
        if sent.is_again() || self.state() != Some(QpState::Err) {
            return sent;
        }
        turn.completions.deliver();
        let mut recv = self.recv.lock();
        let recv_turn = RecvTurn::new(self, turn.hca, turn.view, turn.budget);
        let received = recv_turn.flush(&mut recv, FLUSH_LIMIT);
        sent.and(received)
    }

    /// Executes work requests of the SQ.
    fn send(
        &self,
        turn: &SendTurn<'_>,
        side: &mut SendSide,
        state: QpState,
        watch: &Watch,
    ) -> Progress {
        if !self.is_connected() {
            self.send_datagram(turn, side, state, watch)
        } else if side.transfer.is_some() || side.is_empty() && side.route.is_some() {
            self.send_direct(turn, side, state, watch)
        } else {
            self.send_wire(turn, side, state, watch)
        }
    }
}
