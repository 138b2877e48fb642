// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The responder of a QP: it takes receives and executes the peer's requests.
//!
//! [`ResponderTurn`] does it for requests that arrive as packets or on the direct path. [`answer`]
//! sends the responses. [`machine`] wraps the state machines of the transport services.

mod answer;
mod machine;
mod turn;

use std::cell::Cell;

use budget::{Charge, ChargedList, Exhausted, MemoryBudget};
use roce::frame::Lane;
use roce::work::RecvWr;
use roce::Connection;

use super::{Qp, RemoteQp};
use crate::memory::{QueueMem, WorkConsumer};
use crate::status::DataPath;
use crate::wire::Arrived;
use crate::wqe::{PostedRecv, RecvOrigin};
use crate::Hca;

pub(crate) use machine::{ForRequest, ResponderMachine};
pub(crate) use turn::ResponderTurn;

/// The responder of a QP: its state, which a lock protects.
#[derive(Debug)]
pub(crate) struct Responder {
    pub(crate) io: ResponderIo,
    /// The state machine that receives; `Some` from RTR on.
    pub(crate) machine: Option<ResponderMachine>,
    /// Charge for the answers that an RC responder may owe its peer.
    pub(in crate::qp) answers: Option<Charge>,
    /// The peer of a connected QP, from RTR on.
    pub(in crate::qp) peer: Option<RemoteQp>,
    /// The path on which the peer's requests arrive.
    pub(in crate::qp) path: DataPath,
    /// The Q_Key that datagrams for this QP must carry.
    pub(crate) qkey: u32,
    /// Whether COMM_EST was raised or must not be raised any more.
    pub(in crate::qp) established: bool,
    /// Whether QP_LAST_WQE_REACHED was raised.
    pub(in crate::qp) last_wqe_reached: bool,
}

/// The part of the responder that the state machines borrow.
#[derive(Debug)]
pub(crate) struct ResponderIo {
    pub(in crate::qp) queue: WorkConsumer,
    /// Copy of the receive WQE that is being executed. At most one is executed at a time.
    pub(in crate::qp) buffer: ChargedList<u8>,
    /// The work request of the WQE in `buffer`, unless a state machine holds this work request.
    /// It receives a message on the direct path, or is left over from a message that did not fit
    /// or was not finished.
    pub(crate) incoming: Option<RecvWr<PostedRecv>>,
    /// Whether the ring is corrupt: it is not read again before RESET.
    pub(in crate::qp) broken: bool,
    /// Number of R_Key violations by the peer since the QP was connected.
    pub(in crate::qp) violations: Cell<u32>,
    /// The lane that had no room for the last frame that was refused.
    pub(crate) full: Lane,
}

impl Responder {
    pub(in crate::qp) fn new(queue: &QueueMem, buffer: ChargedList<u8>) -> Self {
        Self {
            io: ResponderIo {
                queue: WorkConsumer::new(queue),
                buffer,
                incoming: None,
                broken: false,
                violations: Cell::new(0),
                full: Lane::default(),
            },
            machine: None,
            answers: None,
            peer: None,
            path: DataPath::Wire,
            qkey: 0,
            established: false,
            last_wqe_reached: false,
        }
    }

    /// Charges `bytes` for the answers, unless as many are charged already: the queues of a
    /// responder never shrink.
    pub(in crate::qp) fn charge_answers(
        &mut self,
        budget: &MemoryBudget,
        bytes: u64,
    ) -> Result<(), Exhausted> {
        match &mut self.answers {
            Some(answers) => answers.grow(bytes),
            None => {
                self.answers = Some(budget.charge(bytes)?);
                Ok(())
            }
        }
    }

    /// Starts to receive with `responder`.
    pub(in crate::qp) fn start(&mut self, machine: ResponderMachine) {
        self.machine = Some(machine);
        self.established = false;
        self.io.violations.set(0);
    }

    /// Sets the peer, whose requests arrive by `path`.
    pub(in crate::qp) fn set_peer(&mut self, connection: &Connection, path: DataPath) {
        self.peer = Some(RemoteQp::of(connection));
        self.path = path;
    }

    /// Drops all work and the connection.
    pub(in crate::qp) fn stop(&mut self) {
        self.machine = None;
        self.answers = None;
        self.peer = None;
        self.io.incoming = None;
        self.io.broken = false;
        self.last_wqe_reached = false;
    }

    /// Returns incomplete receives to the SRQ, since the QP goes to RESET or is destroyed.
    pub(in crate::qp) fn put_back(&mut self, qp: &Qp) {
        let Some(srq) = &qp.init.srq else { return };
        let held = self.machine.as_mut().and_then(ResponderMachine::drain);
        for wr in held.into_iter().chain(self.io.incoming.take()) {
            if let RecvOrigin::Srq { slot } = wr.local.origin {
                srq.put_back(slot);
            }
        }
    }

    /// Suppresses COMM_EST, since the QP is in RTS.
    pub(in crate::qp) fn set_established(&mut self) {
        self.established = true;
    }

    /// Whether the responder serves a connection to `peer`.
    pub(crate) fn is_connected_to(&self, peer: &RemoteQp) -> bool {
        self.machine.is_some() && self.peer.as_ref() == Some(peer)
    }

    /// Whether a packet is a request of the peer. If the peer's requests arrive on the direct path,
    /// the packet is from another sender: both peers choose the path by the same rule.
    pub(crate) fn is_from_peer(&self, arrived: &Arrived<'_>, hca: &Hca) -> bool {
        self.path == DataPath::Wire
            && self
                .peer
                .as_ref()
                .is_some_and(|peer| peer.sent(arrived, hca.runtime()))
    }
}
