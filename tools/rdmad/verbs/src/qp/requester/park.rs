// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Parking: the requester stops after its next turn is arranged.

use std::mem;
use std::ops::ControlFlow::Continue;
use std::sync::atomic::Ordering;

use virtio_rdma_abi::ib::{AsyncEvent, QpState};

use super::machine::RequesterMachine;
use super::{Progress, Requester, RequesterTurn};
use crate::direct::Transfer;
use crate::runtime::Watch;
use crate::turn::Parked;

/// If at most this number of WQEs is fetched between two requests for a doorbell, the QP counts as
/// a request-response QP, whose work is not a stream.
const REQUEST_RESPONSE: u32 = 8;

impl RequesterTurn<'_> {
    /// Parks the requester when the SQ is empty. Either the worker watches the SQ, or the HCA
    /// requests a doorbell.
    pub(super) fn park_idle(
        &self,
        requester: &mut Requester,
        state: QpState,
        watch: &Watch,
    ) -> Parked {
        self.completions.deliver();
        let hca = self.hca;
        if state != QpState::Rts {
            self.report_drained(requester, state);
            let resumed = requester.is_drained().then(|| self.qp.await_command());
            return self.park(requester, resumed);
        }
        let qp = hca.key(self.qp.number);
        // A QP that had work in this turn is likely to get more soon.
        let posted = match watch.admit(qp, self.now, self.budget.spent() > 0) {
            Some(watched) => Some(watched.into()),
            None => {
                let request_response = mem::take(&mut requester.io.fetched) <= REQUEST_RESPONSE;
                self.qp
                    .request_response
                    .store(request_response, Ordering::Relaxed);
                requester
                    .io
                    .queue
                    .await_doorbell(&self.queue)
                    .map(Parked::from)
            }
        };
        match posted {
            Some(posted) => self.park(requester, Some(posted)),
            None => Parked::again(),
        }
    }

    /// Parks the requester, whose work must wait for a rate limit or for room in the frame port.
    pub(super) fn await_room(&self, requester: &mut Requester) -> Parked {
        let frames = match requester.io.paced {
            Some(_) => None,
            None => Some(
                self.hca
                    .frames
                    .await_room(self.qp.number, requester.io.full)
                    .into(),
            ),
        };
        self.park(requester, frames)
    }

    /// Parks the requester. The next turn is caused by one of `causes`, or by an event or deadline
    /// for which work in progress waits.
    pub(super) fn park(&self, requester: &mut Requester, causes: Option<Parked>) -> Parked {
        let answer = requester
            .machine
            .as_ref()
            .and_then(RequesterMachine::await_answer);
        let peer = requester.transfer.as_ref().and_then(Transfer::await_peer);
        let until = requester.arm(self.hca, self.qp);
        let under_way = [
            causes,
            answer.map(Parked::from),
            peer.map(Parked::from),
            until.map(Parked::from),
        ];
        let parked = under_way.into_iter().flatten().reduce(Parked::and);
        debug_assert!(parked.is_some(), "QP {} waits for nobody", self.qp.number);
        // If there is no cause, request a turn at once: a useless turn is better than none.
        parked.unwrap_or(Parked::again())
    }

    /// Fails the QP because its ring is corrupt.
    pub(super) fn break_queue(&self, requester: &mut Requester) -> Progress {
        requester.io.broken = true;
        self.qp.fail(self.hca, Some(AsyncEvent::QpFatal));
        Continue(self.budget.charge_work_request())
    }

    /// Raises SQ_DRAINED, if it is enabled, when the SQ has drained for the first time in SQD.
    fn report_drained(&self, requester: &mut Requester, state: QpState) {
        if state == QpState::Sqd && !requester.drained && requester.is_drained() {
            requester.drained = true;
            if requester.attr.en_sqd_async_notify != 0 {
                self.qp.raise(self.hca, AsyncEvent::SqDrained);
            }
        }
    }
}
