// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.

mod create;

use super::{
    client_queues::qp::{
        Attached,
        KernelQp, //
    },
    device::IbDevice,
    user_ring::UserRing, //
};
use crate::{
    abi::{
        ctrl::CmdDestroyQp,
        ib::AsyncEvent,
        number::Qpn, //
    },
    device::Device,
    event_handlers::{
        EventHandler,
        EventRegistration, //
    },
    rdma::{
        event::QpEvent,
        qp::{
            QpConsumer,
            QpInitAttr,
            QpType, //
        },
        qp_attr::{
            QpCap,
            QpState, //
        }, //
    },
    transport::{
        VirtqueueLease,
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
        new_mutex,
        Arc,
        Mutex,
        MutexGuard, //
    }, //
};

/// The poster to a QP, and the memory from which the device reads the WQEs.
enum Poster {
    /// The kernel posts. The second field holds the QP's virtqueues in virtqueue mode. Both fields
    /// are empty while the QP is being destroyed.
    Kernel(KernelQp, Option<[VirtqueueLease<WorkVirtqueue>; 2]>),
    /// A process posts. The fields are the send ring and the receive ring; each is `None` if the QP
    /// has no such ring, or is being destroyed.
    User(Option<UserRing>, Option<UserRing>),
}

/// Attributes of a QP that the driver keeps.
struct Attributes {
    qp_type: QpType,
    cap: QpCap,
    /// The state that the driver last set. The device may have moved the QP to ERR since.
    state: Atomic<u32>,
    /// Rate limit in kb/s, 0 for none.
    rate_limit: Atomic<u32>,
    /// Held while attributes change.
    modifying: Pin<KBox<Mutex<()>>>,
}

impl Attributes {
    /// Attributes of a new QP, which is in RESET.
    fn new(init: &QpInitAttr<'_, IbDevice>, cap: QpCap) -> Result<Self> {
        let modifying = new_mutex!((), "virtio_rdma::qp::modifying");
        Ok(Self {
            qp_type: init.qp_type(),
            cap,
            state: Atomic::new(QpState::Reset as u32),
            rate_limit: Atomic::new(0),
            modifying: KBox::pin_init(modifying, GFP_KERNEL)?,
        })
    }
}

pub(crate) struct Qp {
    device: Arc<Device>,
    number: Qpn,
    attributes: Attributes,
    /// Whether the QP belongs to a process, and not to a client in the kernel.
    is_process: bool,
    poster: Poster,
    /// Events of the QP may arrive until this registration is dropped. `None` in virtqueue mode,
    /// which has no events of QPs.
    events: Option<EventRegistration>,
}

/// Delivers asynchronous events to the QP's consumer.
struct QpEventHandler(QpConsumer);

impl EventHandler for QpEventHandler {
    fn object(&self) -> &'static CStr {
        c"QP"
    }

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
    pub(super) fn number(&self) -> Qpn {
        self.number
    }

    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) fn qp_type(&self) -> QpType {
        self.attributes.qp_type
    }

    /// The sizes of the QP's queues.
    #[inline]
    pub(super) fn cap(&self) -> &QpCap {
        &self.attributes.cap
    }

    /// The state that the driver last set: the device may have moved the QP to ERR since.
    #[inline]
    pub(super) fn state(&self) -> QpState {
        QpState::try_from(self.attributes.state.load(Relaxed)).unwrap_or(QpState::Err)
    }

    /// Locks the attributes for a change.
    pub(super) fn modifying(&self) -> MutexGuard<'_, ()> {
        self.attributes.modifying.lock()
    }

    /// Records the state to which the QP was moved.
    pub(super) fn set_state(&self, state: QpState) {
        self.attributes.state.store(state as u32, Relaxed);
    }

    /// Rate limit in kb/s, 0 for none.
    pub(super) fn rate_limit(&self) -> u32 {
        self.attributes.rate_limit.load(Relaxed)
    }

    /// Records the rate limit in kb/s, 0 for none.
    pub(super) fn set_rate_limit(&self, rate: u32) {
        self.attributes.rate_limit.store(rate, Relaxed);
    }

    /// Number of events that the device has reported of the QP.
    pub(super) fn events(&self) -> u32 {
        self.events.as_ref().map_or(0, EventRegistration::events)
    }

    /// The posting side of a QP of the kernel.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a process posts to the QP.
    #[inline]
    pub(super) fn kernel(&self) -> Result<&KernelQp> {
        match &self.poster {
            Poster::Kernel(qp, _) => Ok(qp),
            Poster::User(..) => Err(EINVAL),
        }
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let request = CmdDestroyQp { qpn: self.number };
        match &mut self.poster {
            Poster::Kernel(qp, leases) => {
                let leaving = self.device.leaving.begin(self.number);
                let backing = |queue: &Option<Attached>| {
                    queue.as_ref().map(|queue| queue.work.backing.clone())
                };
                let backings = (backing(&qp.send), backing(&qp.recv));
                let memory = super::destroy(&self.device, &request, (backings, leases.take()));
                if memory.is_none() {
                    qp.keep_attached();
                }
                // The QP's CQEs are invalidated before other QPs can lease its virtqueues or get
                // its number.
                *qp = KernelQp::default();
                drop(memory);
                drop(leaving);
                if !self.is_process {
                    // The client frees the buffers of its work requests, which a failing device may
                    // still access.
                    self.device.lifecycle().await_stop();
                }
            }
            Poster::User(sq, rq) => {
                super::destroy(&self.device, &request, (sq.take(), rq.take()));
            }
        }
    }
}
