// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A QP's turn.

use std::mem;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::atomic::Ordering;

use dma::DmaView;
use roce::Pause;
use virtio_rdma_abi::ib::{AsyncEvent, QpState, WcStatus};

use super::{Qp, RecvSide, RecvTurn, Requester, SendSide, SendTurn};
use crate::direct::{DirectRoute, Target, Transfer, TransferStep};
use crate::memory::QueueView;
use crate::runtime::Watch;
use crate::turn::{Charged, Parked};
use crate::wire::{RecvEnv, SendEnv};
use crate::Device;

/// A QP with at most so many WQEs between two requests for a doorbell has no stream of work.
const REQUEST_RESPONSE: u32 = 8;
/// Work requests that are flushed in a turn.
pub(super) const FLUSH_LIMIT: usize = 256;

/// The result of a step of the send half: either something was done and charged, and there may be
/// more; or why not.
pub(super) type Progress = ControlFlow<Parked, Charged>;

impl Qp {
    /// Gives the QP a turn, unless another worker is at it; then that one gives it another.
    pub(crate) fn serve(&self, device: &Device, watch: &Watch) {
        let Some((parked, again)) = self.serving.run(|| self.turn(device, watch)) else {
            return;
        };
        if again || parked.is_again() {
            device.qp_ready(self.number);
        }
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
            side.io.queue.available(&QueueView::new(&self.sq, &view)) > 0
        })
    }

    fn turn(&self, device: &Device, watch: &Watch) -> Parked {
        let view = device.space.enter();
        // Answers go first: the peer waits for them.
        let (answered, cost) = self.answer(device, &view);
        let mut side = self.send.lock();
        side.io.paced = None;
        if self.failure_requested.swap(false, Ordering::AcqRel) {
            self.fail(device, Some(AsyncEvent::QpFatal));
        }
        let turn = SendTurn::new(self, device, &view);
        let sent = self.send_half(&turn, &mut side, watch);
        device.runtime().note_turn(cost + turn.budget.spent());
        answered.and(sent)
    }

    /// Sends what the responder has to say. Returns what that cost, too.
    fn answer(&self, device: &Device, view: &DmaView) -> (Parked, usize) {
        let RecvSide { io, responder, .. } = &mut *self.recv.lock();
        if !self.receives() && self.state() != Some(QpState::Err) {
            return (self.await_command(), 0);
        }
        let Some(responder) = responder else {
            return (self.await_command(), 0);
        };
        if let Some(request) = responder.await_request() {
            return (request.into(), 0);
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
        (parked, turn.budget.spent())
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

    /// Executes WQEs whose data goes to the peer without packets, with the peer at hand until
    /// something is in the way.
    fn send_direct(
        &self,
        turn: &SendTurn<'_>,
        side: &mut SendSide,
        state: QpState,
        watch: &Watch,
    ) -> Progress {
        let spent = turn.budget.spent();
        let end = side.route.as_ref().and_then(DirectRoute::end);
        let view = end.as_ref().map(|(device, _)| device.space.enter());
        let mut target = match (&side.route, &end, &view) {
            (Some(route), Some((device, qp)), Some(view)) => {
                Target::new(self, route, device, qp, view)
            }
            _ => None,
        };
        while !turn.budget.is_spent() && self.state() == Some(state) {
            let mut transfer = match side.transfer.take() {
                Some(transfer) => transfer,
                None => {
                    let fetched = match state {
                        QpState::Rts => turn.fetch(&mut side.io, &side.attr),
                        _ => Ok(None),
                    };
                    match fetched {
                        Ok(Some(fetched)) => Transfer::new(fetched, side.attr()),
                        Ok(None) => {
                            // Others may have the peer meanwhile.
                            drop(target);
                            return Break(self.dry(turn, side, state, watch));
                        }
                        Err(_) => return self.break_queue(turn, side),
                    }
                }
            };
            match transfer.step(turn, side, target.as_mut()) {
                TransferStep::Moved => side.transfer = Some(transfer),
                TransferStep::Waits => {
                    side.transfer = Some(transfer);
                    return Break(self.park(turn.device, side, None));
                }
                TransferStep::Done(status) => {
                    turn.complete(&mut side.io, transfer.wr(), status);
                    if status != WcStatus::Success {
                        self.fail_send(turn.device);
                    }
                }
            }
            if turn.queue.lost() {
                break;
            }
        }
        Continue(turn.budget.charged_since(spent))
    }

    /// Gives WQEs to the requester and has it send packets.
    fn send_wire(
        &self,
        turn: &SendTurn<'_>,
        side: &mut SendSide,
        state: QpState,
        watch: &Watch,
    ) -> Progress {
        let spent = turn.budget.spent();
        let SendSide {
            attr,
            io,
            requester: Some(requester),
            route,
            ..
        } = side
        else {
            return Break(self.dry(turn, side, state, watch));
        };
        let mut drained = false;
        let mut broken = false;
        // A message on the wire ends there before data takes another way.
        while state == QpState::Rts
            && route.is_none()
            && requester.has_room()
            && !io.snapshots.has_barrier()
        {
            match turn.fetch(io, attr) {
                Ok(Some(fetched)) => requester.post(fetched),
                Ok(None) => {
                    drained = true;
                    break;
                }
                Err(_) => {
                    broken = true;
                    break;
                }
            }
        }
        requester.hold(state == QpState::Sqd);
        let mut env = SendEnv::new(turn, io);
        let sent = requester.transmit(turn.budget.left_for_frames(), turn.now, &mut env);
        // Work requests ended that kept others from being taken.
        let goes_on = state == QpState::Rts
            && match route {
                Some(_) => requester.is_empty(),
                None => !drained && requester.has_room() && !io.snapshots.has_barrier(),
            };
        if broken {
            return self.break_queue(turn, side);
        }
        let Ok(sent) = sent else {
            // A completion tells what happened.
            self.fail_send(turn.device);
            return Continue(turn.budget.charged_since(spent));
        };
        turn.budget.charge_frames(sent.bytes);
        match sent.pause {
            Pause::Budget => Continue(turn.budget.charged_since(spent)),
            Pause::NoFrame => Break(self.await_room(turn.device, side)),
            Pause::Idle if goes_on => Continue(turn.budget.charged_since(spent)),
            Pause::Idle if drained || state != QpState::Rts => {
                Break(self.dry(turn, side, state, watch))
            }
            Pause::Idle => Break(self.park(turn.device, side, None)),
        }
    }

    /// Parks without WQEs to take: asks for the doorbell, unless this worker goes on looking.
    pub(super) fn dry(
        &self,
        turn: &SendTurn<'_>,
        side: &mut SendSide,
        state: QpState,
        watch: &Watch,
    ) -> Parked {
        turn.completions.deliver();
        let device = turn.device;
        if state != QpState::Rts {
            self.report_drained(device, side, state);
            let resumed = side.is_drained().then(|| self.await_command());
            return self.park(device, side, resumed);
        }
        let qp = device.key(self.number);
        // A QP that had work is likely to have more soon.
        let posted = match watch.admit(qp, turn.now, turn.budget.spent() > 0) {
            Some(watched) => Some(watched.into()),
            None => {
                let is_request_response = mem::take(&mut side.io.fetched) <= REQUEST_RESPONSE;
                self.is_request_response
                    .store(is_request_response, Ordering::Relaxed);
                side.io.queue.await_doorbell(&turn.queue).map(Parked::from)
            }
        };
        match posted {
            Some(posted) => self.park(device, side, Some(posted)),
            None => Parked::again(),
        }
    }

    /// Parks with work that the frame port has no room for, or that the rate limit holds back.
    pub(super) fn await_room(&self, device: &Device, side: &mut SendSide) -> Parked {
        let frames = match side.io.paced {
            Some(_) => None,
            None => Some(device.await_frames(self.number).into()),
        };
        self.park(device, side, frames)
    }

    /// Parks: with `callers`, and those that work under way has.
    fn park(&self, device: &Device, side: &mut SendSide, callers: Option<Parked>) -> Parked {
        let answer = side.requester.as_ref().and_then(Requester::await_answer);
        let peer = side.transfer.as_ref().and_then(Transfer::await_peer);
        let until = side.arm(device, self);
        let under_way = [
            callers,
            answer.map(Parked::from),
            peer.map(Parked::from),
            until.map(Parked::from),
        ];
        let parked = under_way.into_iter().flatten().reduce(Parked::and);
        debug_assert!(parked.is_some(), "QP {} waits for nobody", self.number);
        // A turn for nothing is better than none for ever.
        parked.unwrap_or(Parked::again())
    }

    /// The ring makes no sense.
    pub(super) fn break_queue(&self, turn: &SendTurn<'_>, side: &mut SendSide) -> Progress {
        side.io.broken = true;
        self.fail(turn.device, Some(AsyncEvent::QpFatal));
        Continue(turn.budget.charge_work_request())
    }

    /// Raises SQ_DRAINED once, when a QP that is told to drain has done so.
    fn report_drained(&self, device: &Device, side: &mut SendSide, state: QpState) {
        if state == QpState::Sqd && !side.drained && side.is_drained() {
            side.drained = true;
            if side.attr.en_sqd_async_notify != 0 {
                self.raise(device, AsyncEvent::SqDrained);
            }
        }
    }
}
