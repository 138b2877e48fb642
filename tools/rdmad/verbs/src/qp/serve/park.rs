// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The end of a turn: parking a side after its next turn is arranged.
use std::mem;
use std::ops::ControlFlow::Continue;
use std::sync::atomic::Ordering;

use virtio_rdma_abi::ib::{AsyncEvent, QpState};

use super::Progress;
use crate::direct::Transfer;
use crate::qp::{Qp, Requester, SendSide, SendTurn};
use crate::runtime::Watch;
use crate::turn::Parked;
use crate::Hca;

/// If at most this number of WQEs is fetched between two requests for a doorbell, the QP counts as
/// a request-response QP, whose work is not a stream.
const REQUEST_RESPONSE: u32 = 8;

impl Qp {
    /// Parks the send side when the SQ is empty. Either the worker watches the SQ, or the HCA
    /// requests a doorbell.
    pub(super) fn park_idle(
        &self,
        turn: &SendTurn<'_>,
        side: &mut SendSide,
        state: QpState,
        watch: &Watch,
    ) -> Parked {
        turn.completions.deliver();
        let hca = turn.hca;
        if state != QpState::Rts {
            self.report_drained(hca, side, state);
            let resumed = side.is_drained().then(|| self.await_command());
            return self.park(hca, side, resumed);
        }
        let qp = hca.key(self.number);
        // A QP that had work in this turn is likely to get more soon.
        let posted = match watch.admit(qp, turn.now, turn.budget.spent() > 0) {
            Some(watched) => Some(watched.into()),
            None => {
                let request_response = mem::take(&mut side.io.fetched) <= REQUEST_RESPONSE;
                self.request_response
                    .store(request_response, Ordering::Relaxed);
                side.io.queue.await_doorbell(&turn.queue).map(Parked::from)
            }
        };
        match posted {
            Some(posted) => self.park(hca, side, Some(posted)),
            None => Parked::again(),
        }
    }

    /// Parks the send side, whose work must wait for a rate limit or for room in the frame port.
    pub(super) fn await_room(&self, hca: &Hca, side: &mut SendSide) -> Parked {
        let frames = match side.io.paced {
            Some(_) => None,
            None => Some(hca.await_frames(self.number, side.io.full).into()),
        };
        self.park(hca, side, frames)
    }

    /// Parks the send side. The next turn is caused by one of `callers`, or by an event or deadline
    /// for which work in progress waits.
    pub(super) fn park(&self, hca: &Hca, side: &mut SendSide, callers: Option<Parked>) -> Parked {
        let answer = side.requester.as_ref().and_then(Requester::await_answer);
        let peer = side.transfer.as_ref().and_then(Transfer::await_peer);
        let until = side.arm(hca, self);
        let under_way = [
            callers,
            answer.map(Parked::from),
            peer.map(Parked::from),
            until.map(Parked::from),
        ];
        let parked = under_way.into_iter().flatten().reduce(Parked::and);
        debug_assert!(parked.is_some(), "QP {} waits for nobody", self.number);
        // If there is no caller, request a turn at once: a useless turn is better than none.
        parked.unwrap_or(Parked::again())
    }

    /// Fails the QP because its ring is corrupt.
    pub(super) fn break_queue(&self, turn: &SendTurn<'_>, side: &mut SendSide) -> Progress {
        side.io.broken = true;
        self.fail(turn.hca, Some(AsyncEvent::QpFatal));
        Continue(turn.budget.charge_work_request())
    }

    /// Raises SQ_DRAINED, if it is enabled, when the SQ has drained for the first time in SQD.
    fn report_drained(&self, hca: &Hca, side: &mut SendSide, state: QpState) {
        if state == QpState::Sqd && !side.drained && side.is_drained() {
            side.drained = true;
            if side.attr.en_sqd_async_notify != 0 {
                self.raise(hca, AsyncEvent::SqDrained);
            }
        }
    }
}
