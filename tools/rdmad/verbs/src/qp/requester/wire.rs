// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The wire path in a turn: the requester sends packets.

use std::ops::ControlFlow::{Break, Continue};

use roce::work::SendOp;
use roce::Pause;
use virtio_rdma_abi::ib::QpState;

use super::turn::Next;
use super::{Progress, Requester, RequesterTurn};
use crate::runtime::Watch;
use crate::wire::RequesterEnv;

impl RequesterTurn<'_> {
    /// Passes WQEs to the requester, which sends packets.
    #[inline(never)] // It makes a burst.
    pub(super) fn send_wire(
        &self,
        requester: &mut Requester,
        state: QpState,
        watch: &Watch,
    ) -> Progress {
        let spent = self.budget.spent();
        let Requester {
            attr,
            io,
            machine: Some(machine),
            route,
            ..
        } = requester
        else {
            return Break(self.park_idle(requester, state, watch));
        };
        let mut drained = false;
        let mut broken = false;
        let mut held = false;
        // If the connection has changed to the direct path, no more WQEs are fetched: the requester
        // first completes those that it has.
        while state == QpState::Rts
            && route.is_none()
            && machine.has_room()
            && !io.snapshots.has_strongly_ordered()
            && !self.is_over()
        {
            match self.fetch(io, attr) {
                Ok(Next::Fetched(fetched)) => {
                    if let SendOp::Read { .. } = fetched.wr.op {
                        // This port's limit is charged for the data of a READ.
                        let length = fetched.wr.length.into();
                        self.hca.pacer.owe_bytes(&mut io.port, length);
                    }
                    machine.post(fetched);
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
        machine.hold(state == QpState::Sqd);
        let limit = self.budget.left_for_frames();
        let sent = machine.transmit(limit, self.now, &mut RequesterEnv::new(self, io));
        let outstanding = machine.outstanding();
        self.hca
            .frames
            .update_load(&self.hca.flows, &mut io.load, self.now, outstanding);
        // Work requests that prevented further fetching may have completed.
        let goes_on = state == QpState::Rts
            && !held
            && match route {
                Some(_) => machine.is_empty(),
                None => !drained && machine.has_room() && !io.snapshots.has_strongly_ordered(),
            };
        if broken {
            return self.break_queue(requester);
        }
        let Ok(sent) = sent else {
            // A completion reports the error.
            self.qp.fail_send(self.hca);
            return Continue(self.budget.charged_since(spent));
        };
        match sent.pause {
            Pause::Budget => Continue(self.budget.charged_since(spent)),
            Pause::NoFrame => Break(self.await_room(requester)),
            Pause::Idle if goes_on => Continue(self.budget.charged_since(spent)),
            Pause::Idle if drained || state != QpState::Rts => {
                Break(self.park_idle(requester, state, watch))
            }
            Pause::Idle => Break(self.park(requester, None)),
        }
    }
}
