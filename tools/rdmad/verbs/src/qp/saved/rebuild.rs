// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Recreation of a QP from its saved state, for tests.

use std::mem;

use budget::ChargedList;
use dma::DmaView;
use roce::saved::Epoch;
use roce::work::RecvWr;
use roce::{rc, uc, ud};

use super::RECV_WQE;
use super::{
    Holder, Pacing, ReceiveState, RequesterMachineState, RequesterState, ResponderMachineState,
    ResponderState, UnderWay,
};
use crate::direct::Transfer;
use crate::memory::WorkConsumer;
use crate::qp::requester::Pacer;
use crate::qp::{
    attr, Qp, Requester, RequesterMachine, RequesterTurn, Responder, ResponderMachine,
};
use crate::wqe::{Fetched, PostedRecv, RecvOrigin};
use crate::Hca;

impl ReceiveState {
    fn work_request(&self) -> RecvWr<PostedRecv> {
        RecvWr {
            id: self.id,
            length: self.length,
            local: PostedRecv {
                num_sge: self.num_sge,
                origin: match u16::try_from(self.slot) {
                    Ok(slot) => RecvOrigin::Srq { slot },
                    Err(_) => RecvOrigin::Rq,
                },
            },
        }
    }
}

impl Qp {
    /// Drops requester and responder and recreates them from their saved state.
    pub(crate) fn rebuild(&self, hca: &Hca, epoch: Epoch) {
        let view = hca.space.enter();
        let mut requester = self.requester.lock();
        let mut responder = self.responder.lock();
        if self.state().is_none() || hca.has_failed() {
            return;
        }
        if self.init.sq.as_virtqueue().is_none() {
            let state = RequesterState::of(&requester, epoch);
            self.rebuild_requester(hca, &view, &mut requester, &state, epoch);
            assert_eq!(RequesterState::of(&requester, epoch), state);
        }
        if self.init.rq.as_virtqueue().is_none() {
            let state = ResponderState::of(&responder);
            self.rebuild_responder(hca, &requester, &mut responder, &state);
            assert_eq!(ResponderState::of(&responder), state);
        }
    }

    fn rebuild_requester(
        &self,
        hca: &Hca,
        view: &DmaView,
        requester: &mut Requester,
        state: &RequesterState,
        epoch: Epoch,
    ) {
        let snapshots = requester.io.snapshots.take_room(hca.budget());
        // These fields are kept: commands set the attributes, the connection and the route, and
        // the timers have an entry for the alarm.
        let Requester {
            attr,
            io,
            connection,
            route,
            alarm,
            ..
        } = mem::replace(requester, Requester::new(&self.init.sq, snapshots));
        requester.attr = attr;
        requester.connection = connection;
        requester.route = route;
        requester.alarm = alarm;
        requester.io.load = io.load;
        let limit = io.pacer.as_ref().map(Pacer::limit);
        requester.io.broken = state.broken != 0;
        requester.drained = state.drained != 0;
        requester.io.queue = WorkConsumer::resumed(&self.init.sq, state.queue);
        let budget = hca.turn_budget();
        let turn = RequesterTurn::new(self, hca, view, &budget);
        if let (Pacing::Limited(pacer), Some(limit)) = (&state.pacer, limit) {
            requester.io.pacer = Some(Pacer::restored(limit, pacer, epoch, turn.now));
        }
        requester.machine = requester.connection.clone().and_then(|connection| {
            let unused = RequesterMachine::new(self.init.qp_type, connection, &requester.attr);
            (!matches!(state.machine, RequesterMachineState::None)).then_some(unused)
        });
        if let Some(machine) = &mut requester.machine {
            let elsewhere = u32::from(!matches!(state.under_way, UnderWay::Nothing));
            if requester.route.is_none() || state.queue.outstanding() > elsewhere {
                let room = requester.io.make_room(hca.budget(), machine);
                room.expect("the old requester had as much");
            }
        }
        let mut work = turn
            .fetch_again(&mut requester.io, &requester.attr)
            .into_iter();
        match state.under_way {
            UnderWay::Nothing => {}
            UnderWay::Transfer(state) => {
                let Fetched { wr, .. } = work.next().expect("a work request");
                requester.transfer = Some(Transfer::restored(wr, &state, epoch));
            }
            UnderWay::Blocked(fault) => {
                let Fetched { wr, .. } = work.next().expect("a work request");
                let failed = fault.get();
                requester.blocked = Some(Fetched { wr, failed });
            }
        }
        let work = work.map(|fetched| fetched.wr);
        match (state.machine, &mut requester.machine) {
            (RequesterMachineState::Rc(state), Some(RequesterMachine::Rc(machine))) => {
                machine.restore(&state, epoch, work);
            }
            (RequesterMachineState::Uc(state), Some(RequesterMachine::Uc(machine))) => {
                machine.restore(&state, work);
            }
            (RequesterMachineState::Ud(next), _) => {
                let mtu = hca.config().path_mtu();
                requester.sender = Some(ud::Sender::new(self.number, next, mtu));
            }
            _ => {}
        }
    }

    fn rebuild_responder(
        &self,
        hca: &Hca,
        requester: &Requester,
        responder: &mut Responder,
        state: &ResponderState,
    ) {
        let nothing = ChargedList::new(hca.budget(), 0);
        let mut buffer = mem::replace(&mut responder.io.buffer, nothing);
        buffer.fill(0);
        let size = buffer.len().min(RECV_WQE);
        buffer[..size].copy_from_slice(&state.receive.wqe[..size]);
        // These fields are kept: commands set them.
        let Responder {
            answers,
            peer,
            path,
            qkey,
            ..
        } = mem::replace(responder, Responder::new(&self.init.rq, buffer));
        responder.answers = answers;
        responder.peer = peer;
        responder.path = path;
        responder.qkey = qkey;
        responder.io.queue = WorkConsumer::resumed(&self.init.rq, state.queue);
        responder.io.broken = state.broken != 0;
        responder.io.violations.set(state.violations);
        responder.established = state.established != 0;
        responder.last_wqe_reached = state.last_wqe_reached != 0;
        let receive = || Some(state.receive.work_request());
        let (incoming, held) = match state.receive.holder {
            Holder::Nobody => (None, None),
            Holder::Responder => (receive(), None),
            Holder::Machine => (None, receive()),
        };
        responder.io.incoming = incoming;
        responder.machine = match (&state.machine, &requester.connection) {
            (ResponderMachineState::Rc(state), Some(connection)) => {
                let attr = attr::responder(&requester.attr);
                let mut machine = rc::Responder::new(connection.clone(), attr);
                machine.restore(state, held);
                Some(ResponderMachine::Rc(machine))
            }
            (ResponderMachineState::Uc(state), Some(connection)) => {
                let attr = attr::responder(&requester.attr);
                let mut machine = uc::Responder::new(connection.mtu, attr.rq_psn, attr.access);
                machine.restore(state, held);
                Some(ResponderMachine::Uc(machine))
            }
            (ResponderMachineState::Ud(stopped), _) => Some(ResponderMachine::Ud(
                ud::Receiver::restored(held, *stopped != 0),
            )),
            _ => None,
        };
    }
}
