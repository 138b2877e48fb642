// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Recreation of a QP from its saved state, for tests.

use std::mem;

use budget::ChargedList;
use dma::DmaView;
use roce::saved::Epoch;
use roce::work::RecvWr;
use roce::{rc, uc, ud};
use virtio_rdma_abi::ib::WcStatus;

use super::RECV_WQE;
use super::{
    Holder, Pacing, ReceiveState, RecvMachine, RecvState, SendMachine, SendState, UnderWay,
};
use crate::direct::Transfer;
use crate::memory::WorkConsumer;
use crate::qp::send::Pacer;
use crate::qp::{attr, Qp, RecvSide, Requester, Responder, SendSide, SendTurn};
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
    /// Drops both sides and recreates them from their saved state.
    pub(crate) fn rebuild(&self, hca: &Hca, epoch: Epoch) {
        let view = hca.space.enter();
        let mut send = self.send.lock();
        let mut recv = self.recv.lock();
        if self.state().is_none() || hca.has_failed() {
            return;
        }
        if self.init.sq.as_virtqueue().is_none() {
            let state = SendState::of(&send, epoch);
            self.rebuild_send(hca, &view, &mut send, &state, epoch);
            assert_eq!(SendState::of(&send, epoch), state);
        }
        if self.init.rq.as_virtqueue().is_none() {
            let state = RecvState::of(&recv);
            self.rebuild_recv(hca, &send, &mut recv, &state);
            assert_eq!(RecvState::of(&recv), state);
        }
    }

    fn rebuild_send(
        &self,
        hca: &Hca,
        view: &DmaView,
        side: &mut SendSide,
        state: &SendState,
        epoch: Epoch,
    ) {
        let snapshots = side.io.snapshots.take_room(hca.budget());
        // These fields are kept: commands set the attributes, the connection and the route, and
        // the timers have an entry for the alarm.
        let SendSide {
            attr,
            io,
            connection,
            route,
            alarm,
            ..
        } = mem::replace(side, SendSide::new(&self.init.sq, snapshots));
        side.attr = attr;
        side.connection = connection;
        side.route = route;
        side.alarm = alarm;
        side.io.load = io.load;
        let limit = io.pacer.as_ref().map(Pacer::limit);
        side.io.broken = state.broken != 0;
        side.drained = state.drained != 0;
        side.io.queue = WorkConsumer::resumed(&self.init.sq, state.queue);
        let budget = hca.turn_budget();
        let turn = SendTurn::new(self, hca, view, &budget);
        if let (Pacing::Limited(pacer), Some(limit)) = (&state.pacer, limit) {
            side.io.pacer = Some(Pacer::restored(limit, pacer, epoch, turn.now));
        }
        side.requester = side.connection.clone().and_then(|connection| {
            let unused = Requester::new(self.init.qp_type, connection, &side.attr);
            (!matches!(state.machine, SendMachine::None)).then_some(unused)
        });
        if let Some(requester) = &mut side.requester {
            let elsewhere = u32::from(!matches!(state.under_way, UnderWay::Nothing));
            if side.route.is_none() || state.queue.outstanding() > elsewhere {
                let room = side.io.make_room(hca.budget(), requester);
                room.expect("the old side had as much");
            }
        }
        let mut work = turn.fetch_again(&mut side.io, &side.attr).into_iter();
        match state.under_way {
            UnderWay::Nothing => {}
            UnderWay::Transfer(state) => {
                let Fetched { wr, .. } = work.next().expect("a work request");
                side.transfer = Some(Transfer::restored(wr, &state, epoch));
            }
            UnderWay::Blocked(status) => {
                let Fetched { wr, .. } = work.next().expect("a work request");
                let failed = WcStatus::try_from(status).ok();
                let failed = failed.filter(|status| *status != WcStatus::Success);
                side.blocked = Some(Fetched { wr, failed });
            }
        }
        let work = work.map(|fetched| fetched.wr);
        match (state.machine, &mut side.requester) {
            (SendMachine::Rc(state), Some(Requester::Rc(requester))) => {
                requester.restore(&state, epoch, work);
            }
            (SendMachine::Uc(state), Some(Requester::Uc(requester))) => {
                requester.restore(&state, work);
            }
            (SendMachine::Ud(next), _) => {
                let mtu = hca.config().path_mtu();
                side.sender = Some(ud::Sender::new(self.number, next, mtu));
            }
            _ => {}
        }
    }

    fn rebuild_recv(&self, hca: &Hca, send: &SendSide, side: &mut RecvSide, state: &RecvState) {
        let nothing = ChargedList::new(hca.budget(), 0);
        let mut buffer = mem::replace(&mut side.io.buffer, nothing);
        buffer.fill(0);
        let size = buffer.len().min(RECV_WQE);
        buffer[..size].copy_from_slice(&state.receive.wqe[..size]);
        // These fields are kept: commands set them.
        let RecvSide {
            answers,
            peer,
            path,
            qkey,
            ..
        } = mem::replace(side, RecvSide::new(&self.init.rq, buffer));
        side.answers = answers;
        side.peer = peer;
        side.path = path;
        side.qkey = qkey;
        side.io.queue = WorkConsumer::resumed(&self.init.rq, state.queue);
        side.io.broken = state.broken != 0;
        side.io.violations.set(state.violations);
        side.established = state.established != 0;
        side.last_wqe_reached = state.last_wqe_reached != 0;
        let receive = || Some(state.receive.work_request());
        let (incoming, held) = match state.receive.holder {
            Holder::Nobody => (None, None),
            Holder::Side => (receive(), None),
            Holder::Machine => (None, receive()),
        };
        side.io.incoming = incoming;
        side.responder = match (&state.machine, &send.connection) {
            (RecvMachine::Rc(state), Some(connection)) => {
                let attr = attr::responder(&send.attr);
                let mut responder = rc::Responder::new(connection.clone(), attr);
                responder.restore(state, held);
                Some(Responder::Rc(responder))
            }
            (RecvMachine::Uc(state), Some(connection)) => {
                let attr = attr::responder(&send.attr);
                let mut responder = uc::Responder::new(connection.mtu, attr.rq_psn, attr.access);
                responder.restore(state, held);
                Some(Responder::Uc(responder))
            }
            (RecvMachine::Ud(stopped), _) => {
                Some(Responder::Ud(ud::Receiver::restored(held, *stopped != 0)))
            }
            _ => None,
        };
    }
}
