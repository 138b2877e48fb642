// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The responder in a turn: it sends the answers that it owes its peer.

use dma::DmaView;
use roce::Pause;
use scheduler::TurnStart;
use virtio_rdma_abi::ib::QpState;

use super::{Responder, ResponderIo, ResponderMachine, ResponderTurn};
use crate::qp::Qp;
use crate::turn::Parked;
use crate::wire::ResponderEnv;
use crate::Hca;

/// Result of sending the responder's answers.
pub(in crate::qp) struct Answered {
    pub parked: Parked,
    /// Cost of the answers sent, in the unit of the turn budget.
    pub cost: usize,
}

impl Qp {
    /// Sends the responder's answers.
    pub(in crate::qp) fn answer(&self, hca: &Hca, view: &DmaView, start: TurnStart) -> Answered {
        let nothing = |parked| Answered { parked, cost: 0 };
        let Responder { io, machine, .. } = &mut *self.responder.lock();
        if !self.may_answer() {
            return nothing(self.await_command());
        }
        let Some(machine) = machine else {
            return nothing(self.await_command());
        };
        if let Some(request) = machine.await_request() {
            return nothing(request.into());
        }
        self.send_answers(hca, view, start, io, machine)
    }

    /// Sends the answers of a responder that has some.
    #[inline(never)] // It makes a burst.
    fn send_answers(
        &self,
        hca: &Hca,
        view: &DmaView,
        start: TurnStart,
        io: &mut ResponderIo,
        machine: &mut ResponderMachine,
    ) -> Answered {
        let budget = hca.budget_of(start);
        let turn = ResponderTurn::new(self, hca, view, &budget);
        let limit = budget.left_for_frames();
        let sent = machine.transmit(limit, &mut ResponderEnv::new(&turn, io));
        let request = machine.await_request();
        let parked = match sent {
            Ok(sent) => match (sent.pause, request) {
                (Pause::NoFrame, _) => hca.frames.await_room(self.number, io.full).into(),
                (Pause::Idle, Some(request)) => request.into(),
                (Pause::Idle | Pause::Budget, _) => Parked::again(),
            },
            Err(error) => {
                self.fail(hca, error.event);
                // The responder sends the NAK in the next turn.
                Parked::again()
            }
        };
        Answered {
            parked,
            cost: budget.spent(),
        }
    }

    /// Whether the state permits to send answers. In ERR the QP answers requests that it received
    /// before.
    fn may_answer(&self) -> bool {
        self.receives() || self.state() == Some(QpState::Err)
    }

    /// Sends the acknowledgement that the QP's next turn would send. A program may destroy or reset
    /// its QP as soon as it has the completion of the last message, but the peer waits for the
    /// acknowledgement of this message.
    pub(in crate::qp) fn acknowledge_last(
        &self,
        hca: &Hca,
        view: &DmaView,
        responder: &mut Responder,
    ) {
        /// Bytes of frames after which no further one is sent: a congestion notification may
        /// precede the acknowledgement.
        const LIMIT: usize = 128;
        let Responder { io, machine, .. } = responder;
        // The objects of a failed HCA may be half changed: nothing is sent for them.
        let may_send = self.may_answer() && !hca.has_failed();
        if let Some(machine) = machine.as_mut().filter(|_| may_send) {
            let budget = hca.turn_budget();
            let turn = ResponderTurn::new(self, hca, view, &budget);
            // Without a frame buffer the acknowledgement is lost, as on a bad network.
            let _ = machine.transmit(LIMIT, &mut ResponderEnv::new(&turn, io));
        }
    }
}
