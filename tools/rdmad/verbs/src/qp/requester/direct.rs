// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The direct path in a turn: data is copied to or from the peer's memory.

use std::ops::ControlFlow::{Break, Continue};

use dma::DmaView;
use virtio_rdma_abi::ib::QpState;

use super::turn::Next;
use super::{Progress, Requester, RequesterTurn};
use crate::direct::{DirectRoute, Receiver, Transfer, TransferStep};
use crate::runtime::Watch;

impl RequesterTurn<'_> {
    /// Executes WQEs on the direct path. The peer's responder stays locked until the QP parks or
    /// the turn ends.
    pub(super) fn send_direct(
        &self,
        requester: &mut Requester,
        state: QpState,
        watch: &Watch,
    ) -> Progress {
        let spent = self.budget.spent();
        let end = requester.route.as_ref().and_then(DirectRoute::end);
        let view = end.as_ref().map(|end| end.hca.space.enter());
        let mut receiver = match (&requester.route, &end, &view) {
            (Some(route), Some(end), Some(view)) => {
                Receiver::new(self.qp, route, end, view, self.budget)
            }
            _ => None,
        };
        // If the peer's memory is lost, the peer answers no more.
        let answers = || !view.as_ref().is_some_and(DmaView::has_lost);
        while !self.is_over() && answers() && self.qp.state() == Some(state) {
            let mut transfer = match requester.transfer.take() {
                Some(transfer) => transfer,
                None => {
                    let fetched = match state {
                        QpState::Rts => self.fetch(&mut requester.io, &requester.attr),
                        _ => Ok(Next::Nothing),
                    };
                    match fetched {
                        Ok(Next::Fetched(fetched)) => Transfer::new(fetched, requester.attr()),
                        Ok(Next::Held) => {
                            drop(receiver);
                            return Break(self.park(requester, None));
                        }
                        Ok(Next::Nothing) => {
                            // Release the peer's responder before parking.
                            drop(receiver);
                            return Break(self.park_idle(requester, state, watch));
                        }
                        Err(_) => return self.break_queue(requester),
                    }
                }
            };
            match transfer.step(self, requester, receiver.as_mut()) {
                TransferStep::Moved => requester.transfer = Some(transfer),
                TransferStep::Waits => {
                    requester.transfer = Some(transfer);
                    return Break(self.park(requester, None));
                }
                TransferStep::Done(result) => {
                    self.complete(&mut requester.io, transfer.wr(), result);
                    if result.is_err() {
                        self.qp.fail_send(self.hca);
                    }
                }
            }
            if self.queue.lost() {
                break;
            }
        }
        Continue(self.budget.charged_since(spent))
    }
}
