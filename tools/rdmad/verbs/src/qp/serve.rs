// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A QP's turn.

use std::mem;
use std::sync::atomic::Ordering;

use dma::DmaView;
use roce::Pause;
use virtio_rdma_abi::ib::{AsyncEvent, QpState, WcStatus};

use super::{Qp, RecvTurn, Responder, SendSide, SendTurn};
use crate::direct::{Route, Step, Target, Transfer};
use crate::fabric::Watch;
use crate::memory::RingView;
use crate::turn::{Budget, Charged};
use crate::wire::{RecvEnv, SendEnv};
use crate::Device;

/// WQEs from one doorbell to when the next is asked for that are no stream.
const FEW: u32 = 8;
/// Work requests that are flushed in a turn.
const FLUSH_LIMIT: usize = 256;

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// There is more to do.
    More,
    /// The frame port is full.
    Blocked,
    /// Something has to happen first.
    Idle,
}

impl Outcome {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::More, _) | (_, Self::More) => Self::More,
            (Self::Blocked, _) | (_, Self::Blocked) => Self::Blocked,
            (Self::Idle, Self::Idle) => Self::Idle,
        }
    }

    fn more(more: bool) -> Self {
        if more {
            Self::More
        } else {
            Self::Idle
        }
    }
}

impl Qp {
    /// Gives the QP a turn, unless another worker is at it; then that one gives it another.
    pub(crate) fn serve(&self, device: &Device, watch: &Watch) {
        let Some((outcome, again)) = self.serving.run(|| self.turn(device, watch)) else {
            return;
        };
        match outcome {
            Outcome::More => device.qp_ready(self.number),
            _ if again => device.qp_ready(self.number),
            Outcome::Blocked => device.qp_blocked(self.number),
            Outcome::Idle => {}
        }
    }

    /// Sends what was posted to a QP of datagrams that is about to be destroyed, as far as a turn goes. Programs destroy
    /// theirs right after posting what nobody acknowledges, since hardware has it sent by then. Not to be called by a
    /// worker.
    pub(crate) fn send_last(&self, device: &Device) {
        if self.is_connected() {
            return;
        }
        device.fabric().quiesce.outside(|| {
            let view = device.space.enter();
            let mut side = self.send.lock();
            if self.state() == Some(QpState::Rts) {
                self.send(device, &view, &mut side, &Watch::nothing());
            }
        });
    }

    /// Whether there are WQEs that were not looked at yet. Not while another worker is at them.
    pub(crate) fn has_posted(&self, device: &Device) -> bool {
        self.send.try_lock().is_some_and(|side| {
            let view = device.space.enter();
            side.queue.available(&RingView::new(&self.sq, &view)) > 0
        })
    }

    fn turn(&self, device: &Device, watch: &Watch) -> Outcome {
        let view = device.space.enter();
        // Answers go first: the peer waits for them.
        let mut outcome = self.answer(device, &view);
        let mut side = self.send.lock();
        side.paced = None;
        if self.failure_requested.swap(false, Ordering::AcqRel) {
            self.fail(device, Some(AsyncEvent::QpFatal));
        }
        match self.state() {
            Some(QpState::Rts | QpState::Sqd) => {
                outcome = outcome.and(self.send(device, &view, &mut side, watch))
            }
            Some(QpState::Err | QpState::Sqe) => {}
            _ => return outcome,
        }
        // Sending may have failed just now.
        if let Some(state @ (QpState::Err | QpState::Sqe)) = self.state() {
            let more = SendTurn::new(self, device, &view).flush(&mut side, FLUSH_LIMIT);
            let more = more
                || state == QpState::Err && {
                    let mut recv = self.recv.lock();
                    RecvTurn::new(self, device, &view).flush(&mut recv, FLUSH_LIMIT)
                };
            outcome = outcome.and(Outcome::more(more));
        }
        side.arm(device, self);
        outcome
    }

    /// Sends what the responder has to say.
    fn answer(&self, device: &Device, view: &DmaView) -> Outcome {
        let mut side = self.recv.lock();
        if !self.receives() && self.state() != Some(QpState::Err) {
            return Outcome::Idle;
        }
        if !side.responder.as_ref().is_some_and(Responder::has_output) {
            return Outcome::Idle;
        }
        let Some(mut responder) = side.responder.take() else {
            return Outcome::Idle;
        };
        let turn = RecvTurn::new(self, device, view);
        let sent = responder
            .transmit(
                Budget::default().left_for_frames(),
                &mut RecvEnv::new(&turn, &mut side),
            )
            .map(|sent| sent.pause);
        side.responder = Some(responder);
        match sent {
            Ok(Pause::Idle) => Outcome::Idle,
            Ok(Pause::Budget) => Outcome::More,
            Ok(Pause::NoFrame) => Outcome::Blocked,
            Err(error) => {
                self.fail(device, error.event);
                // The NAK is to be sent.
                Outcome::More
            }
        }
    }

    /// Executes work of the SQ.
    fn send(&self, device: &Device, view: &DmaView, side: &mut SendSide, watch: &Watch) -> Outcome {
        let turn = SendTurn::new(self, device, view);
        loop {
            // A work request that failed took the QP to ERR.
            let Some(state @ (QpState::Rts | QpState::Sqd)) = self.state() else {
                return Outcome::Idle;
            };
            let progress = if !self.is_connected() {
                self.send_datagram(&turn, side, state)
            } else if side.transfer.is_some() || side.is_drained() && side.route.is_some() {
                self.send_direct(&turn, side, state)
            } else {
                self.send_wire(&turn, side, state)
            };
            if turn.ring.lost() {
                side.broken = true;
                self.fail(device, Some(AsyncEvent::QpFatal));
                return Outcome::Idle;
            }
            match progress {
                Progress::Moved(_) if turn.budget.is_spent() => return Outcome::More,
                Progress::Moved(_) => {}
                Progress::Blocked => return Outcome::Blocked,
                Progress::Waits => return Outcome::Idle,
                Progress::Empty => {
                    turn.completions.deliver();
                    self.report_drained(device, side, state);
                    if state != QpState::Rts {
                        return Outcome::Idle;
                    }
                    let qp = (device.port(), self.number);
                    // Who had work is likely to have more soon.
                    if watch.admit(qp, turn.now, turn.budget.spent() > 0) {
                        return Outcome::Idle;
                    }
                    let few = mem::take(&mut side.fetched) <= FEW;
                    self.has_few.store(few, Ordering::Relaxed);
                    return Outcome::more(side.queue.enable_doorbell(&turn.ring));
                }
                Progress::Broken => {
                    side.broken = true;
                    self.fail(device, Some(AsyncEvent::QpFatal));
                    return Outcome::Idle;
                }
            }
        }
    }

    /// Executes WQEs whose data goes to the peer without packets, with the peer at hand until something is in the way.
    fn send_direct(&self, turn: &SendTurn<'_>, side: &mut SendSide, state: QpState) -> Progress {
        let spent = turn.budget.spent();
        let end = side.route.as_ref().and_then(Route::end);
        let view = end.as_ref().map(|(device, _)| device.space.enter());
        let mut target = match (&side.route, &end, &view) {
            (Some(route), Some((device, qp)), Some(view)) => Target::new(route, device, qp, view),
            _ => None,
        };
        while !turn.budget.is_spent() && self.state() == Some(state) {
            let mut transfer = match side.transfer.take() {
                Some(transfer) => transfer,
                None if state != QpState::Rts => return Progress::Empty,
                None => match turn.fetch(side) {
                    Ok(Some(fetched)) => Transfer::new(fetched, side.attr()),
                    Ok(None) => return Progress::Empty,
                    Err(_) => return Progress::Broken,
                },
            };
            match transfer.step(turn, side, target.as_mut()) {
                Step::Moved => side.transfer = Some(transfer),
                Step::Waits => {
                    side.transfer = Some(transfer);
                    return Progress::Waits;
                }
                Step::Done(status) => {
                    turn.complete(&mut side.queue, &mut side.snapshots, transfer.wr(), status);
                    if status != WcStatus::Success {
                        self.fail_send(turn.device);
                    }
                }
            }
            if turn.ring.lost() {
                break;
            }
        }
        Progress::Moved(turn.budget.charged_since(spent))
    }

    /// Gives WQEs to the requester and has it send packets.
    fn send_wire(&self, turn: &SendTurn<'_>, side: &mut SendSide, state: QpState) -> Progress {
        let spent = turn.budget.spent();
        let Some(mut requester) = side.requester.take() else {
            return Progress::Empty;
        };
        let mut drained = false;
        let mut broken = false;
        // What is on the wire ends there before data takes another way.
        while state == QpState::Rts
            && side.route.is_none()
            && requester.has_room()
            && !side.snapshots.are_held()
        {
            match turn.fetch(side) {
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
        let mut env = SendEnv::new(turn, side);
        let sent = requester.transmit(turn.budget.left_for_frames(), turn.now, &mut env);
        let idle = requester.is_empty();
        // Work requests ended that kept others from being taken.
        let goes_on = state == QpState::Rts
            && match side.route {
                Some(_) => idle,
                None => !drained && requester.has_room() && !side.snapshots.are_held(),
            };
        side.requester = Some(requester);
        if broken {
            return Progress::Broken;
        }
        match sent {
            Err(_) => {
                // A completion tells what happened.
                self.fail_send(turn.device);
                Progress::Moved(turn.budget.charged_since(spent))
            }
            Ok(sent) => {
                turn.budget.charge_frames(sent.bytes);
                match sent.pause {
                    Pause::Budget => Progress::Moved(turn.budget.charged_since(spent)),
                    Pause::NoFrame if side.paced.is_some() => Progress::Waits,
                    Pause::NoFrame => Progress::Blocked,
                    Pause::Idle if goes_on => Progress::Moved(turn.budget.charged_since(spent)),
                    Pause::Idle if drained || state != QpState::Rts => {
                        if idle || state == QpState::Rts {
                            Progress::Empty
                        } else {
                            Progress::Waits
                        }
                    }
                    Pause::Idle => Progress::Waits,
                }
            }
        }
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

/// What a step of sending came to.
pub(super) enum Progress {
    /// Something was done; there may be more.
    Moved(Charged),
    /// The frame port is full.
    Blocked,
    /// Work is under way that something has to happen to.
    Waits,
    /// No work is left in the ring.
    Empty,
    /// The ring makes no sense.
    Broken,
}
