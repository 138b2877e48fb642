// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A QP's turn, from what wakes it to why it stops.
//!
//! A doorbell wakes it, or frames for the QP, room for its own, an answer or a request of its peer,
//! a deadline or a command: each makes the QP ready, and a worker calls [`Qp::serve`]. Answers go
//! first, then the send queue, in one of three ways: [`direct`] copies, [`wire`] sends packets, and
//! [`datagram`] does either for one work request at a time. A turn stops as its budget is spent, or
//! as each half parks with those who call it again ([`park`]).

mod datagram;
mod direct;
mod park;
mod wire;

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::atomic::Ordering;

use dma::DmaView;
use roce::Pause;
use virtio_rdma_abi::ib::{AsyncEvent, QpState};

use super::{Qp, RecvSide, RecvTurn, SendSide, SendTurn};
use crate::memory::QueueView;
use crate::runtime::{TurnEnd, Watch};
use crate::turn::{Charged, Parked};
use crate::wire::RecvEnv;
use crate::Device;

/// Work requests that are flushed in a turn.
pub(super) const FLUSH_LIMIT: usize = 256;

/// The turn of a responder.
struct Answered {
    parked: Parked,
    /// Cost of what it sent.
    cost: usize,
}

/// The result of a step of the send half: either something was done and charged, and there may be
/// more; or why not.
type Progress = ControlFlow<Parked, Charged>;

impl Qp {
    /// Gives the QP a turn, unless another worker is at it; then that one gives it another.
    pub(crate) fn serve(&self, device: &Device, watch: &Watch) -> TurnEnd {
        let Some(turn) = self.serving.run(|| self.turn(device, watch)) else {
            return TurnEnd::default();
        };
        let mut end = turn.result;
        end.again |= turn.again;
        end
    }

    /// Whether a worker is at it.
    pub(crate) fn is_served(&self) -> bool {
        self.serving.is_busy()
    }

    /// Sends the datagrams that are posted to a QP which is about to be destroyed, as far as the
    /// budget of a turn allows. Datagrams are not acknowledged, so programs post them and destroy
    /// the QP at once: hardware has sent them by then. Workers must not call it.
    pub(crate) fn send_last(&self, device: &Device) {
        if self.is_connected() {
            return;
        }
        device.runtime().scheduler.quiesce.outside(|| {
            let view = device.space.enter();
            let mut side = self.send.lock();
            if self.state() == Some(QpState::Rts) {
                let turn = SendTurn::new(self, device, &view);
                // Nobody calls it again.
                let _ = self.send_half(&turn, &mut side, &Watch::nothing());
            }
        });
    }

    /// Whether there are WQEs that were not looked at yet. Not while another worker is at them.
    pub(crate) fn has_posted(&self, device: &Device) -> bool {
        self.send.try_lock().is_some_and(|side| {
            let view = device.space.enter();
            side.io
                .queue
                .available(&QueueView::new(&self.init.sq, &view))
                > 0
        })
    }

    fn turn(&self, device: &Device, watch: &Watch) -> TurnEnd {
        let view = device.space.enter();
        // Answers go first: the peer waits for them.
        let answered = self.answer(device, &view);
        let mut side = self.send.lock();
        side.io.paced = None;
        if self.failure_requested.swap(false, Ordering::AcqRel) {
            self.fail(device, Some(AsyncEvent::QpFatal));
        }
        let turn = SendTurn::new(self, device, &view);
        let sent = self.send_half(&turn, &mut side, watch);
        let cost = answered.cost + turn.budget.spent();
        device.runtime().note_turn(cost);
        let again = answered.parked.and(sent).is_again();
        TurnEnd { again, cost }
    }

    /// Sends what the responder has to say.
    fn answer(&self, device: &Device, view: &DmaView) -> Answered {
        let nothing = |parked| Answered { parked, cost: 0 };
        let RecvSide { io, responder, .. } = &mut *self.recv.lock();
        if !self.receives() && self.state() != Some(QpState::Err) {
            return nothing(self.await_command());
        }
        let Some(responder) = responder else {
            return nothing(self.await_command());
        };
        if let Some(request) = responder.await_request() {
            return nothing(request.into());
        }
        let turn = RecvTurn::new(self, device, view);
        let limit = turn.budget.left_for_frames();
        let sent = responder.transmit(limit, &mut RecvEnv::new(&turn, io));
        let request = responder.await_request();
        let parked = match sent {
            Ok(sent) => {
                turn.budget.charge_frames(sent.bytes);
                match (sent.pause, request) {
                    (Pause::NoFrame, _) => device.await_frames(self.number).into(),
                    (Pause::Idle, Some(request)) => request.into(),
                    (Pause::Idle | Pause::Budget, _) => Parked::again(),
                }
            }
            Err(error) => {
                self.fail(device, error.event);
                // The NAK is to be sent.
                Parked::again()
            }
        };
        Answered {
            parked,
            cost: turn.budget.spent(),
        }
    }

    /// Executes or flushes work of the SQ, and flushes that of the RQ behind it.
    fn send_half(&self, turn: &SendTurn<'_>, side: &mut SendSide, watch: &Watch) -> Parked {
        loop {
            let step = match self.state() {
                Some(state @ (QpState::Rts | QpState::Sqd)) => self.send(turn, side, state, watch),
                Some(QpState::Err | QpState::Sqe) => return self.flush(turn, side),
                _ => return self.await_command(),
            };
            match step {
                // A work request that failed took the QP to ERR.
                Continue(_) if turn.queue.lost() => {
                    side.io.broken = true;
                    self.fail(turn.device, Some(AsyncEvent::QpFatal));
                }
                Continue(_) if turn.budget.is_spent() => return Parked::again(),
                Continue(_) => {}
                Break(_) if turn.queue.lost() => {
                    side.io.broken = true;
                    self.fail(turn.device, Some(AsyncEvent::QpFatal));
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
        let recv_turn = RecvTurn::new(self, turn.device, turn.view);
        let received = recv_turn.flush(&mut recv, FLUSH_LIMIT);
        turn.budget.charge_bytes(recv_turn.budget.spent());
        sent.and(received)
    }

    /// Executes work of the SQ.
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
