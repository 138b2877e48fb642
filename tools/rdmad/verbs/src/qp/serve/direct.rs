// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The direct path in a turn: data is copied to or from the peer's memory.
use std::ops::ControlFlow::{Break, Continue};

use dma::DmaView;
use virtio_rdma_abi::ib::{QpState, WcStatus};

use super::Progress;
use crate::direct::{DirectRoute, Receiver, Transfer, TransferStep};
use crate::qp::send::Next;
use crate::qp::{Qp, SendSide, SendTurn};
use crate::runtime::Watch;

impl Qp {
    /// Executes WQEs on the direct path. The peer's receive side stays locked until the QP parks or
    /// the turn ends.
    pub(super) fn send_direct(
        &self,
        turn: &SendTurn<'_>,
        side: &mut SendSide,
        state: QpState,
        watch: &Watch,
    ) -> Progress {
        let spent = turn.budget.spent();
        let end = side.route.as_ref().and_then(DirectRoute::end);
        let view = end.as_ref().map(|end| end.hca.space.enter());
        let mut receiver = match (&side.route, &end, &view) {
            (Some(route), Some(end), Some(view)) => {
                Receiver::new(self, route, end, view, turn.budget)
            }
            _ => None,
        };
        // If the peer's memory is lost, the peer answers no more.
        let answers = || !view.as_ref().is_some_and(DmaView::has_lost);
        while !turn.is_over() && answers() && self.state() == Some(state) {
            let mut transfer = match side.transfer.take() {
                Some(transfer) => transfer,
                None => {
                    let fetched = match state {
                        QpState::Rts => turn.fetch(&mut side.io, &side.attr),
                        _ => Ok(Next::Nothing),
                    };
                    match fetched {
                        Ok(Next::Fetched(fetched)) => Transfer::new(fetched, side.attr()),
                        Ok(Next::Held) => {
                            drop(receiver);
                            return Break(self.park(turn.hca, side, None));
                        }
                        Ok(Next::Nothing) => {
                            // Release the peer's receive side before parking.
                            drop(receiver);
                            return Break(self.park_idle(turn, side, state, watch));
                        }
                        Err(_) => return self.break_queue(turn, side),
                    }
                }
            };
            match transfer.step(turn, side, receiver.as_mut()) {
                TransferStep::Moved => side.transfer = Some(transfer),
                TransferStep::Waits => {
                    side.transfer = Some(transfer);
                    return Break(self.park(turn.hca, side, None));
                }
                TransferStep::Done(status) => {
                    turn.complete(&mut side.io, transfer.wr(), status);
                    if status != WcStatus::Success {
                        self.fail_send(turn.hca);
                    }
                }
            }
            if turn.queue.lost() {
                break;
            }
        }
        Continue(turn.budget.charged_since(spent))
    }
}
