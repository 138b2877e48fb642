// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The wire path in a turn: the requester sends packets.
use std::ops::ControlFlow::{Break, Continue};

use roce::work::SendOp;
use roce::Pause;
use virtio_rdma_abi::ib::QpState;

use super::Progress;
use crate::qp::send::Next;
use crate::qp::{Qp, SendSide, SendTurn};
use crate::runtime::Watch;
use crate::wire::SendEnv;

impl Qp {
    /// Passes WQEs to the requester, which sends packets.
    #[inline(never)] // It makes a burst.
    pub(super) fn send_wire(
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
            return Break(self.park_idle(turn, side, state, watch));
        };
        let mut drained = false;
        let mut broken = false;
        let mut held = false;
        // If the connection has changed to the direct path, no more WQEs are fetched: the requester
        // first completes those that it has.
        while state == QpState::Rts
            && route.is_none()
            && requester.has_room()
            && !io.snapshots.has_strongly_ordered()
            && !turn.is_over()
        {
            match turn.fetch(io, attr) {
                Ok(Next::Fetched(fetched)) => {
                    if let SendOp::Read { .. } = fetched.wr.op {
                        // This port's limit is charged for the data of a READ.
                        let length = fetched.wr.length.into();
                        turn.hca.pacer.owe_bytes(&mut io.port, length);
                    }
                    requester.post(fetched);
                }
                Ok(Next::Held) => {
                    held = true;
                    break;
                }
                Ok(Next::Nothing) => {
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
        let limit = turn.budget.left_for_frames();
        let sent = requester.transmit(limit, turn.now, &mut SendEnv::new(turn, io));
        let outstanding = requester.outstanding();
        turn.hca.update_load(&mut io.load, turn.now, outstanding);
        // Work requests that prevented further fetching may have completed.
        let goes_on = state == QpState::Rts
            && !held
            && match route {
                Some(_) => requester.is_empty(),
                None => !drained && requester.has_room() && !io.snapshots.has_strongly_ordered(),
            };
        if broken {
            return self.break_queue(turn, side);
        }
        let Ok(sent) = sent else {
            // A completion reports the error.
            self.fail_send(turn.hca);
            return Continue(turn.budget.charged_since(spent));
        };
        match sent.pause {
            Pause::Budget => Continue(turn.budget.charged_since(spent)),
            Pause::NoFrame => Break(self.await_room(turn.hca, side)),
            Pause::Idle if goes_on => Continue(turn.budget.charged_since(spent)),
            Pause::Idle if drained || state != QpState::Rts => {
                Break(self.park_idle(turn, side, state, watch))
            }
            Pause::Idle => Break(self.park(turn.hca, side, None)),
        }
    }
}
