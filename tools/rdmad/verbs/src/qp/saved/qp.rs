// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of a QP besides its halves.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use roce::saved::Epoch;
use roce::{Connection, Path};
use serde::{Deserialize, Serialize};
use virtio_rdma_abi::ib::{Mtu, QpState as Life, QpType};
use virtio_rdma_abi::number::{CounterSetNumber, Cqn, MwNumber, Number, Qpn, Srqn};
use virtio_rdma_abi::qp::{QpAttr, QpCap};
use virtio_rdma_abi::ring::RingKind;

use super::{RequesterState, ResponderState};
use crate::encoding::wire;
use crate::error::{defined, exactly, no_such, Result, What};
use crate::memory::{QueueMem, RingMem, RingState};
use crate::qp::requester::{Pacer, RateLimitAttr};
use crate::qp::{attr, Qp, QpInit};
use crate::Hca;

/// A QP whose queues are own rings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QpState {
    number: u32,
    init: InitState,
    /// A value of [`Life`].
    state: u8,
    /// Whether a CQ or SRQ of the QP has failed.
    is_failing: bool,
    counter_set: u32,
    /// Type 2 windows that are tied to the QP.
    windows: Vec<u32>,
    pub(super) connected: ConnectedState,
    pub(super) requester: RequesterState,
    pub(super) responder: ResponderState,
}

/// Properties of a QP that are fixed at creation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct InitState {
    qp_type: u8,
    user: bool,
    blocks_loopback: bool,
    signal_all: bool,
    #[serde(with = "wire")]
    cap: QpCap,
    cookie: u64,
    order: u32,
    doorbell_page: u32,
    pdn: u32,
    send_cqn: u32,
    recv_cqn: u32,
    srqn: Option<u32>,
    sq: Option<RingState>,
    rq: Option<RingState>,
}

/// The part of a QP's state that MODIFY_QP sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ConnectedState {
    #[serde(with = "wire")]
    pub attr: QpAttr,
    /// Rate limit: kb/s, burst and typical packet in bytes.
    rate: Option<(u32, u32, u32)>,
    connection: Option<ConnectionState>,
    pub qkey: u32,
    /// Bytes charged for the answers that an RC responder may owe.
    pub answers: Option<u64>,
}

/// The connection of an RC or UC QP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ConnectionState {
    path: Path,
    dest_qpn: u32,
    pkey: u16,
    mtu: u8,
    is_direct: bool,
}

impl ConnectedState {
    /// The connection, and whether it uses the direct path.
    /// Refused if the port may not send from its addresses.
    pub(super) fn connection(&self, hca: &Hca) -> Result<Option<(Connection, bool)>> {
        let Some(state) = &self.connection else {
            return Ok(None);
        };
        let mtu: Mtu = defined(What::PathMtu, state.mtu)?;
        let path = &state.path;
        let [mac, own] = [path.src_mac, hca.mac()].map(attr::number);
        exactly(What::Dmac, mac, own)?;
        hca.may_send_from(path.addresses.src())?;
        let connection = Connection {
            path: state.path,
            dest_qpn: Qpn::new(state.dest_qpn),
            pkey: state.pkey,
            mtu,
        };
        Ok(Some((connection, state.is_direct)))
    }

    /// The rate limit.
    pub(super) fn rate(&self) -> Option<RateLimitAttr> {
        self.rate.map(|(rate, burst, packet)| RateLimitAttr {
            rate,
            burst,
            packet,
        })
    }
}

impl InitState {
    fn of(init: &QpInit) -> Result<Self> {
        Ok(Self {
            qp_type: init.qp_type.value(),
            user: init.user,
            blocks_loopback: init.blocks_loopback,
            signal_all: init.signal_all,
            cap: init.cap,
            cookie: init.cookie,
            order: init.order,
            doorbell_page: init.doorbell_page,
            pdn: init.pd.number().get(),
            send_cqn: init.send_cq.number().get(),
            recv_cqn: init.recv_cq.number().get(),
            srqn: init.srq.as_ref().map(|srq| srq.number().get()),
            sq: init.sq.save()?,
            rq: init.rq.save()?,
        })
    }

    fn restored(&self, hca: &Hca, [sq_broken, rq_broken]: [u8; 2]) -> Result<QpInit> {
        let objects = &hca.objects;
        let qp_type: QpType = defined(What::QpType, self.qp_type)?;
        hca.check_cap(&self.cap)?;
        let ring = |state: &Option<RingState>, broken: u8| {
            let Some(state) = state else {
                return Ok(QueueMem::Absent);
            };
            let (budget, space) = (hca.budget(), &hca.space);
            let ring = RingMem::restored(budget, space, RingKind::Work, state, broken == 0);
            ring.map(QueueMem::Own)
        };
        let srq = self.srqn.map(|srqn| hca.srq(Srqn::new(srqn)));
        Ok(QpInit {
            qp_type,
            user: self.user,
            blocks_loopback: self.blocks_loopback,
            signal_all: self.signal_all,
            cap: self.cap,
            cookie: self.cookie,
            order: self.order,
            doorbell_page: self.doorbell_page,
            pd: hca.use_pd(Number::new(self.pdn))?,
            send_cq: objects.cqs.find(What::SendCqn, Cqn::new(self.send_cqn))?,
            recv_cq: objects.cqs.find(What::RecvCqn, Cqn::new(self.recv_cqn))?,
            sq: ring(&self.sq, sq_broken)?,
            rq: ring(&self.rq, rq_broken)?,
            srq: srq.transpose()?,
        })
    }
}

impl Qp {
    /// The state from which another process can restore the QP. Refused for queues that are
    /// virtqueues.
    pub(crate) fn save(&self, epoch: Epoch) -> Result<QpState> {
        let init = InitState::of(&self.init)?;
        let requester = self.requester.lock();
        let responder = self.responder.lock();
        let state = self.state().ok_or(no_such(What::Qpn, self.number))?;
        let connection = requester.connection.as_ref();
        let limit = requester.io.pacer.as_ref().map(Pacer::limit);
        Ok(QpState {
            number: self.number.get(),
            init,
            state: state.value(),
            is_failing: self.failure_requested.load(Ordering::Acquire),
            counter_set: self.counter_set.get().get(),
            windows: self.windows.lock().iter().map(|mw| mw.get()).collect(),
            connected: ConnectedState {
                attr: requester.attr,
                rate: limit.map(|limit| (limit.rate, limit.burst, limit.packet)),
                connection: connection.map(|connection| ConnectionState {
                    path: connection.path,
                    dest_qpn: connection.dest_qpn.get(),
                    pkey: connection.pkey,
                    mtu: connection.mtu.value(),
                    is_direct: requester.route.is_some(),
                }),
                qkey: responder.qkey,
                answers: responder.answers.as_ref().map(|charge| charge.amount()),
            },
            requester: RequesterState::of(&requester, epoch),
            responder: ResponderState::of(&responder),
        })
    }

    /// Restores a QP, which must then be given a turn. Its PD, CQs, SRQ, MRs and windows must have
    /// been restored.
    ///
    /// # Errors
    ///
    /// The state is invalid, or a limit is exceeded. There may be a QP in RESET then.
    pub(crate) fn restore(hca: &Hca, state: &QpState, epoch: Epoch) -> Result<()> {
        let number = Qpn::new(state.number);
        let reserved = hca.objects.qps.reserve_again(What::Qpn, number)?;
        let life: Life = defined(What::QpState, state.state)?;
        let broken = [state.requester.broken, state.responder.broken];
        let init = state.init.restored(hca, broken)?;
        let qp = Arc::new(Self::new(hca.budget(), number, init)?);
        reserved.insert(qp.clone());
        let set = CounterSetNumber::new(state.counter_set);
        if set != CounterSetNumber::NONE {
            hca.objects.counter_sets.attach(set)?;
            qp.counter_set.replace(set);
        }
        let windows = state.windows.iter().copied().map(MwNumber::new);
        *qp.windows.lock() = windows.collect();
        qp.restore_halves(hca, life, state, epoch)?;
        qp.failure_requested
            .store(state.is_failing, Ordering::Release);
        qp.state.store(life.value(), Ordering::Release);
        qp.assign_worker(hca);
        Ok(())
    }
}
