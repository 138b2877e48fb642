// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.

mod create;

use super::{
    device::IbDevice,
    kernel_queues::qp::{
        Attached,
        KernelQp, //
    },
    modify,
    user_ring::UserRing, //
};
use crate::{
    abi::{
        ctrl::CmdDestroyQp,
        ib::AsyncEvent,
        number::Qpn, //
    },
    device::{
        Device,
        Queues, //
    },
    rdma::{
        self,
        event::QpEvent,
        pd::Pd,
        qp::{
            NewQp,
            QpConsumer,
            QpInit,
            QpType,
            QueuePairs, //
        },
        qp_attr::{
            QpAttributes,
            QpCapabilities,
            QpModification,
            QpState, //
        },
        Udata, //
    },
    targets::{
        EventRegistration,
        EventTarget, //
    },
    transport::{
        Claim,
        WorkVirtqueue, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    }, //
};

/// The poster to a QP, and the memory that the device reads its WQEs from.
enum Poster {
    /// The kernel, with the virtqueues if the queues lie there. Empty while the QP is destroyed.
    Kernel(KernelQp, Option<[Claim<WorkVirtqueue>; 2]>),
    /// A process. Empty while the QP is destroyed.
    User(Option<UserRing>, Option<UserRing>),
}

/// A QP.
pub(crate) struct Qp {
    device: Arc<Device>,
    number: Qpn,
    qp_type: QpType,
    capabilities: QpCapabilities,
    /// The state, as far as the driver knows: the device moves a QP to ERR by itself.
    state: Atomic<u32>,
    /// Rate limit in kb/s, 0 for none.
    rate_limit: Atomic<u32>,
    /// Held while attributes change. Pinned, as all locks are.
    pub(super) modifying: Pin<KBox<Mutex<()>>>,
    poster: Poster,
    /// Events may arrive until it is dropped. Without event queues there are none.
    _events: Option<EventRegistration>,
}

/// Passes events on to the consumer.
struct Target(QpConsumer);

impl EventTarget for Target {
    fn async_event(&self, event: AsyncEvent) {
        let event = match event {
            AsyncEvent::QpFatal => QpEvent::Fatal,
            AsyncEvent::QpReqErr => QpEvent::RequestError,
            AsyncEvent::QpAccessErr => QpEvent::AccessError,
            AsyncEvent::CommEst => QpEvent::CommunicationEstablished,
            AsyncEvent::SqDrained => QpEvent::SendQueueDrained,
            AsyncEvent::QpLastWqeReached => QpEvent::LastWqeReached,
            _ => return,
        };
        self.0.event(event);
    }
}

impl Qp {
    /// The QPN.
    pub(super) fn number(&self) -> Qpn {
        self.number
    }

    /// The device.
    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Its type.
    pub(super) fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Its sizes.
    #[inline]
    pub(super) fn capabilities(&self) -> &QpCapabilities {
        &self.capabilities
    }

    /// The state that it is in, or was before the device moved it to ERR.
    #[inline]
    pub(super) fn state(&self) -> QpState {
        QpState::try_from(self.state.load(Relaxed)).unwrap_or(QpState::Err)
    }

    /// Notes the state that it was moved to.
    pub(super) fn set_state(&self, state: QpState) {
        self.state.store(state.as_raw(), Relaxed);
    }

    /// Rate limit in kb/s, 0 for none.
    pub(super) fn rate_limit(&self) -> u32 {
        self.rate_limit.load(Relaxed)
    }

    /// Notes the rate limit.
    pub(super) fn set_rate_limit(&self, rate: u32) {
        self.rate_limit.store(rate, Relaxed);
    }

    /// The QP as the kernel posts to it, unless a process does.
    #[inline]
    pub(super) fn kernel(&self) -> Result<&KernelQp> {
        match &self.poster {
            Poster::Kernel(qp, _) => Ok(qp),
            Poster::User(..) => Err(EINVAL),
        }
    }
}

impl QueuePairs for IbDevice {
    type Qp = Qp;

    fn create_qp(
        pd: &Pd<Self>,
        init: &QpInit<'_, Self>,
        consumer: QpConsumer,
    ) -> Result<NewQp<Qp>> {
        let device = &pd.device().device;
        create::check(device, init)?;
        match device.queues() {
            Queues::OwnRings(_) => Qp::in_rings(pd, init, consumer),
            Queues::Transport(transport) => Qp::in_virtqueues(pd, transport, init, consumer),
        }
    }

    fn modify_qp(
        qp: &rdma::qp::Qp<Self>,
        modification: &QpModification<'_>,
        udata: Option<&Udata<'_>>,
    ) -> Result {
        modify::modify(qp, modification, udata)
    }

    fn query_qp(qp: &rdma::qp::Qp<Self>) -> Result<QpAttributes> {
        modify::query(qp)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let request = CmdDestroyQp { qpn: self.number };
        match &mut self.poster {
            Poster::Kernel(qp, claims) => {
                let _leaving = self.device.leave();
                let backing = |queue: &Option<Attached>| {
                    queue.as_ref().map(|queue| queue.work.backing.clone())
                };
                let backings = (backing(&qp.send), backing(&qp.recv));
                let memory = super::destroy(&self.device, &request, (backings, claims.take()));
                // Its CQEs are killed before its virtqueues go back, and its number to another QP.
                *qp = KernelQp::default();
                drop(memory);
            }
            Poster::User(sq, rq) => {
                super::destroy(&self.device, &request, (sq.take(), rq.take()));
            }
        }
    }
}
