// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The end of a turn: parking a half, registered for its next turn.
use std::mem;
use std::ops::ControlFlow::Continue;
use std::sync::atomic::Ordering;

use virtio_rdma_abi::ib::{AsyncEvent, QpState};

use super::Progress;
use crate::direct::Transfer;
use crate::qp::{Qp, Requester, SendSide, SendTurn};
use crate::runtime::Watch;
use crate::turn::Parked;
use crate::Device;

/// Maximum number of WQEs between two requests for a doorbell of a QP that has no stream of work.
const REQUEST_RESPONSE: u32 = 8;

impl Qp {
    /// Parks with an empty SQ. The worker watches the queue, or else the QP requests a doorbell.
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
        // A QP that had work in this turn is likely to get more soon.
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

    /// Parks work that must wait for room in the frame port or for the rate limit.
    pub(super) fn await_room(&self, device: &Device, side: &mut SendSide) -> Parked {
        let frames = match side.io.paced {
            Some(_) => None,
            None => Some(device.await_frames(self.number).into()),
        };
        self.park(device, side, frames)
    }

    /// Parks with `callers`, and with the callers that work in progress has.
    pub(super) fn park(
        &self,
        device: &Device,
        side: &mut SendSide,
        callers: Option<Parked>,
    ) -> Parked {
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
        // A useless turn is better than a QP that never gets one.
        parked.unwrap_or(Parked::again())
    }

    /// Fails the QP because its ring is corrupt.
    pub(super) fn break_queue(&self, turn: &SendTurn<'_>, side: &mut SendSide) -> Progress {
        side.io.broken = true;
        self.fail(turn.device, Some(AsyncEvent::QpFatal));
        Continue(turn.budget.charge_work_request())
    }

    /// Raises SQ_DRAINED once, after a QP in SQD has drained.
    fn report_drained(&self, device: &Device, side: &mut SendSide, state: QpState) {
        if state == QpState::Sqd && !side.drained && side.is_drained() {
            side.drained = true;
            if side.attr.en_sqd_async_notify != 0 {
                self.raise(device, AsyncEvent::SqDrained);
            }
        }
    }
}
