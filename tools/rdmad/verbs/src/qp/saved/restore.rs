// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Restoration of the halves of a QP.

use dma::DmaView;
use roce::saved::Epoch;
use roce::work::RecvWr;
use roce::{rc, uc, ud, Connection};
use virtio_rdma_abi::ib::{QpState as Life, QpType};
use virtio_rdma_abi::wqe::rq_wqe_size;

use super::qp::QpState;
use super::{
    Holder, Pacing, ReceiveState, RequesterMachineState, ResponderMachineState, UnderWay, RECV_WQE,
};
use crate::direct::{DirectRoute, Transfer};
use crate::error::{at_most, refusal, Reason, Refusal, Result, What};
use crate::memory::WorkConsumer;
use crate::qp::requester::Pacer;
use crate::qp::{
    attr, Qp, Requester, RequesterMachine, RequesterTurn, Responder, ResponderMachine,
};
use crate::status::DataPath;
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
    /// Restores requester and responder of a new QP that goes to the state `life`.
    pub(super) fn restore_halves(
        &self,
        hca: &Hca,
        life: Life,
        state: &QpState,
        epoch: Epoch,
    ) -> Result<()> {
        let view = hca.space.enter();
        let mut requester = self.requester.lock();
        let mut responder = self.responder.lock();
        let connection = state.connected.connection(hca)?;
        let is_direct = matches!(connection, Some((_, true)));
        let connection = connection.map(|(connection, _)| connection);
        if let Some(connection) = &connection {
            requester.route = match is_direct {
                true => DirectRoute::again(hca, self.number, connection),
                false => None,
            };
            let path = match requester.route {
                Some(_) => DataPath::Direct,
                None => DataPath::Wire,
            };
            responder.set_peer(connection, path);
            let port = requester.route.as_ref().map(DirectRoute::port);
            self.summary.set_peer(Some(connection), port);
        }
        // The peer may have its reasons, which were not saved.
        requester.is_shunned = !is_direct;
        requester.connection = connection;
        self.restore_requester(hca, &view, &mut requester, state, epoch)?;
        let connection = requester.connection.as_ref();
        self.restore_responder(hca, connection, &mut responder, state)?;
        let sends = requester.machine.is_some() || requester.sender.is_some();
        let lacks = match life {
            Life::Rts | Life::Sqd | Life::Sqe => !sends || responder.machine.is_none(),
            Life::Rtr => responder.machine.is_none(),
            Life::Reset | Life::Init | Life::Err => false,
        };
        if lacks {
            return Err(self.undefined());
        }
        Ok(())
    }

    fn undefined(&self) -> Refusal {
        refusal(Reason::Undefined, What::Qpn, self.number.get())
    }

    fn restore_requester(
        &self,
        hca: &Hca,
        view: &DmaView,
        requester: &mut Requester,
        state: &QpState,
        epoch: Epoch,
    ) -> Result<()> {
        let (set, state) = (&state.connected, &state.requester);
        requester.attr = set.attr;
        requester.drained = state.drained != 0;
        requester.io.broken = state.broken != 0;
        requester.io.queue = WorkConsumer::resumed(&self.init.sq, state.queue)?;
        let budget = hca.turn_budget();
        let turn = RequesterTurn::new(self, hca, view, &budget);
        if let Some(limit) = set.rate() {
            self.summary.set_rate(limit.rate);
            requester.io.pacer = Some(match &state.pacer {
                Pacing::Limited(pacer) => Pacer::restored(limit, pacer, epoch, turn.now),
                Pacing::Nothing => Pacer::new(limit, turn.now),
            });
        }
        let has_machine = matches!(
            state.machine,
            RequesterMachineState::Rc(_) | RequesterMachineState::Uc(_)
        );
        if has_machine {
            let connection = requester.connection.clone();
            let connection = connection.ok_or_else(|| self.undefined())?;
            let mut machine = RequesterMachine::new(self.init.qp_type, connection, &requester.attr);
            let elsewhere = u32::from(!matches!(state.under_way, UnderWay::Nothing));
            if requester.route.is_none() || state.queue.outstanding() > elsewhere {
                requester.io.make_room(hca.budget(), &mut machine)?;
            }
            requester.machine = Some(machine);
        }
        let work = turn.fetch_again(&mut requester.io, &requester.attr);
        let mut work = work.ok_or_else(|| self.undefined())?.into_iter();
        match state.under_way {
            UnderWay::Nothing => {}
            UnderWay::Transfer(state) => {
                let fetched = work.next().ok_or_else(|| self.undefined())?;
                requester.transfer = Some(Transfer::restored(fetched, &state, epoch));
            }
            UnderWay::Blocked(fault) => {
                let Fetched { wr, .. } = work.next().ok_or_else(|| self.undefined())?;
                let failed = fault.get();
                requester.blocked = Some(Fetched { wr, failed });
            }
        }
        let work = work.map(|Fetched { wr, failed }| (wr, failed));
        match (state.machine, &mut requester.machine) {
            (RequesterMachineState::Rc(state), Some(RequesterMachine::Rc(machine))) => {
                machine.restore(&state, epoch, work);
            }
            (RequesterMachineState::Uc(state), Some(RequesterMachine::Uc(machine))) => {
                machine.restore(&state, work);
            }
            (RequesterMachineState::Ud(next), None) => {
                let mtu = hca.config().path_mtu();
                requester.sender = Some(ud::Sender::new(self.number, next, mtu));
            }
            (RequesterMachineState::None, None) => {}
            _ => return Err(self.undefined()),
        }
        Ok(())
    }

    fn restore_responder(
        &self,
        hca: &Hca,
        connection: Option<&Connection>,
        responder: &mut Responder,
        state: &QpState,
    ) -> Result<()> {
        let (set, state) = (&state.connected, &state.responder);
        let wqe = rq_wqe_size(state.receive.num_sge as usize);
        let room = responder.io.buffer.len().min(RECV_WQE);
        if !matches!(state.receive.holder, Holder::Nobody) {
            at_most(What::MaxRecvSge, wqe as u64, room as u64)?;
        }
        responder.io.buffer[..room].copy_from_slice(&state.receive.wqe[..room]);
        responder.qkey = set.qkey;
        if let Some(bytes) = set.answers {
            responder.charge_answers(hca.budget(), bytes)?;
        }
        responder.io.queue = WorkConsumer::resumed(&self.init.rq, state.queue)?;
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
        let qp_type = self.init.qp_type;
        responder.machine = match (&state.machine, connection) {
            (ResponderMachineState::Rc(state), Some(connection)) if qp_type == QpType::Rc => {
                let attr = attr::responder(&set.attr);
                let mut machine = rc::Responder::new(connection.clone(), attr);
                machine.restore(state, held);
                Some(ResponderMachine::Rc(machine))
            }
            (ResponderMachineState::Uc(state), Some(connection)) if qp_type == QpType::Uc => {
                let attr = attr::responder(&set.attr);
                let mut machine = uc::Responder::new(connection.mtu, attr.rq_psn, attr.access);
                machine.restore(state, held);
                Some(ResponderMachine::Uc(machine))
            }
            (ResponderMachineState::Ud(stopped), None) => Some(ResponderMachine::Ud(
                ud::Receiver::restored(held, *stopped != 0),
            )),
            (ResponderMachineState::None, _) => None,
            _ => return Err(self.undefined()),
        };
        Ok(())
    }
}
