// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Queue pairs.
//!
//! [`state`], [`attr`], [`modify`] and [`summary`] say how a QP is set up, and [`remote_qp`] names
//! its other end. [`send`] and [`recv`] are its halves with their rings; the machines of the
//! transport services stand behind [`service`]. A worker serves it by [`serve`].

mod attr;
#[cfg(feature = "testing")]
mod committed;
mod modify;
mod recv;
mod remote_qp;
mod send;
mod serve;
mod service;
mod state;
mod summary;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::Arc;

use budget::{Budget, Charge, ChargedList};
use parking_lot::{Mutex, MutexGuard};
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::event::FIRST_EVENT_QUEUE;
use virtio_rdma_abi::ib::{AsyncEvent, QpState, QpType, WcStatus, PORT};
use virtio_rdma_abi::number::{MwNumber, Qpn};
use virtio_rdma_abi::qp::QpCap;
use virtio_rdma_abi::wire::Wire;

use crate::config::BOOKKEEPING;
use crate::cq::Cq;
use crate::error::Result;
use crate::event::{EventSource, QP_EVENTS};
use crate::memory::{number_of, Binding, KeyFault, KeyUser, QueueMem, VirtqueueMem};
use crate::pd::PdUse;
use crate::runtime::Exclusive;
use crate::srq::Srq;
use crate::wqe::{max_rq_wqe, max_sq_wqe, Snapshots};
use crate::Device;

pub(crate) use modify::ForCommand;
pub(crate) use recv::{RecvIo, RecvSide, RecvTurn};
pub(crate) use remote_qp::RemoteQp;
pub(crate) use send::{solicits, SendIo, SendSide, SendTurn};
pub(crate) use service::{ForAnswer, ForRequest, Requester, Responder};
pub(crate) use summary::Summary;

/// A queue pair.
///
/// Its two halves have a lock each, so packets of both directions of a connection are processed at
/// the same time. On the direct path a worker holds its own send half and the peer's receive half,
/// so there the directions take turns. See [`Device`] for the order of locks.
///
/// The state is written with the lock of either half held: a step of the state table needs both, a
/// failure the one of the half that fails.
#[derive(Debug)]
pub(crate) struct Qp {
    /// QPN.
    pub number: Qpn,
    /// Properties that it has from its creation on.
    pub init: QpInit,
    /// A [`QpState`] or [`DESTROYED`].
    state: AtomicU8,
    /// A CQ died: go to ERR.
    failure_requested: AtomicBool,
    /// The entry in the runtime's timers was taken out.
    timer_expired: AtomicBool,
    /// It got few work requests between the last two requests for its doorbell.
    is_request_response: AtomicBool,
    /// A worker serves it, and whether it became ready meanwhile.
    serving: Exclusive,
    /// The part that others may see at any time.
    pub summary: Summary,
    /// Numbers of the windows of type 2 that it bound.
    windows: Mutex<BTreeSet<MwNumber>>,
    send: Mutex<SendSide>,
    recv: Mutex<RecvSide>,
    _charge: Charge,
}

/// State of a QP that is no more: nothing of its may be touched.
const DESTROYED: u8 = u8::MAX;

/// Properties that a QP has from its creation on.
#[derive(Debug)]
pub(crate) struct QpInit {
    /// Type.
    pub qp_type: QpType,
    /// Its queues belong to a process.
    pub user: bool,
    /// It does not receive what it sends to a multicast group.
    pub blocks_loopback: bool,
    /// Every send work request produces a CQE.
    pub signal_all: bool,
    /// Capabilities.
    pub cap: QpCap,
    /// Cookie of its events.
    pub cookie: u64,
    /// Doorbell page that rings its queues.
    pub doorbell_page: u32,
    /// PD.
    pub pd: PdUse,
    /// CQ of the SQ.
    pub send_cq: Arc<Cq>,
    /// CQ of the RQ.
    pub recv_cq: Arc<Cq>,
    /// SQ.
    pub sq: QueueMem,
    /// RQ.
    pub rq: QueueMem,
    /// SRQ from which its receives come. Such a QP has no RQ.
    pub srq: Option<Arc<Srq>>,
}

impl Qp {
    /// A QP in RESET. It is charged to `budget`.
    pub(crate) fn new(budget: &Budget, number: Qpn, init: QpInit) -> Result<Self> {
        let charge = budget.charge_object::<Self>(BOOKKEEPING + QP_EVENTS)?;
        let snapshots = Snapshots::one(budget, max_sq_wqe(&init.cap))?;
        let received = match &init.srq {
            Some(srq) => srq.max_wqe(),
            None => max_rq_wqe(&init.cap),
        };
        let buffer = ChargedList::filled(budget, received, 0)?;
        init.send_cq.users.attach(number);
        init.recv_cq.users.attach(number);
        if let Some(srq) = &init.srq {
            srq.users.attach(number);
        }
        Ok(Self {
            number,
            state: AtomicU8::new(QpState::Reset.value()),
            failure_requested: AtomicBool::new(false),
            timer_expired: AtomicBool::new(false),
            is_request_response: AtomicBool::new(true),
            serving: Exclusive::default(),
            summary: Summary::default(),
            windows: Mutex::default(),
            send: Mutex::new(SendSide::new(&init.sq, snapshots)),
            recv: Mutex::new(RecvSide::new(&init.rq, buffer)),
            init,
            _charge: charge,
        })
    }

    /// Current state, or `None` when it is destroyed.
    #[inline]
    pub(crate) fn state(&self) -> Option<QpState> {
        QpState::try_from(self.state.load(Ordering::Acquire)).ok()
    }

    /// Whether it sends to one peer, not to whom each work request names.
    #[inline]
    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.init.qp_type, QpType::Rc | QpType::Uc)
    }

    /// Whether requests of the peer are executed.
    #[inline]
    pub(crate) fn receives(&self) -> bool {
        matches!(
            self.state(),
            Some(QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
        )
    }

    /// Whether responses of the peer have work requests to go to.
    #[inline]
    pub(crate) fn awaits_responses(&self) -> bool {
        matches!(self.state(), Some(QpState::Rts | QpState::Sqd))
    }

    /// The identity under which keys are checked.
    #[inline]
    pub(crate) fn key_user(&self) -> KeyUser {
        KeyUser {
            pdn: self.init.pd.number(),
            qpn: self.number,
        }
    }

    /// Invalidates a key on behalf of its work or its peer's.
    pub(crate) fn invalidate(
        &self,
        device: &Device,
        key: u32,
    ) -> std::result::Result<(), KeyFault> {
        device.mrs.invalidate(key, self.key_user())?;
        self.forget_window(number_of(key));
        Ok(())
    }

    /// Binds a window on behalf of its work to a part of the MR that `lkey` names.
    fn bind(
        &self,
        device: &Device,
        lkey: u32,
        wanted: &Binding,
    ) -> std::result::Result<(), KeyFault> {
        if let Some(number) = device.mrs.bind(self.key_user(), lkey, wanted)? {
            self.windows.lock().insert(number);
        }
        Ok(())
    }

    /// Unbinds its windows. It is destroyed, and no worker is at it any more.
    pub(crate) fn unbind_windows(&self, device: &Device) {
        for number in std::mem::take(&mut *self.windows.lock()) {
            device.mrs.windows().unbind_for(number, self.number);
        }
    }

    /// Window `number` does not belong to it any more.
    pub(crate) fn forget_window(&self, number: MwNumber) {
        self.windows.lock().remove(&number);
    }

    /// Locks the send half.
    pub(crate) fn lock_send(&self) -> MutexGuard<'_, SendSide> {
        self.send.lock()
    }

    /// Locks the receive half.
    pub(crate) fn lock_recv(&self) -> MutexGuard<'_, RecvSide> {
        self.recv.lock()
    }

    /// Whether the owner has lately posted work requests one by one, and no stream of them.
    pub(crate) fn is_request_response(&self) -> bool {
        self.is_request_response.load(Ordering::Relaxed)
    }

    /// A CQ of this QP died; the QP's next turn takes it to ERR.
    pub(crate) fn request_failure(&self) {
        self.failure_requested.store(true, Ordering::Release);
    }

    /// The QP's entry in the timers was taken out.
    pub(crate) fn timer_expired(&self) {
        self.timer_expired.store(true, Ordering::Release);
    }

    /// Goes to ERR, of its own, and raises `event` unless a completion tells what happened. The
    /// QP's next turn flushes its queues. The caller holds the lock of the half that failed.
    pub(crate) fn fail(&self, device: &Device, event: Option<AsyncEvent>) {
        self.leave(device, QpState::Err, event, |state| {
            !matches!(state, QpState::Reset | QpState::Err)
        });
    }

    /// A send work request ended in error. That is the end of a reliable connection; other QPs go
    /// to SQE, where they still receive. The QP's next turn flushes what else was posted. The
    /// caller holds the lock of the send half.
    pub(crate) fn fail_send(&self, device: &Device) {
        if self.init.qp_type == QpType::Rc {
            return self.fail(device, None);
        }
        self.leave(device, QpState::Sqe, None, |state| {
            matches!(state, QpState::Rts | QpState::Sqd)
        });
    }

    /// Goes to `to`, of its own, if it is in one of the states `from`.
    fn leave(
        &self,
        device: &Device,
        to: QpState,
        event: Option<AsyncEvent>,
        from: impl Fn(QpState) -> bool,
    ) {
        let leaving = |state| {
            QpState::try_from(state)
                .is_ok_and(&from)
                .then_some(to.value())
        };
        let left = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, leaving)
            .is_ok();
        if left {
            if let Some(event) = event {
                self.raise(device, event);
            }
            device.qp_ready(self.number);
        }
    }

    /// Raises an asynchronous event. The caller holds the lock of a half, in which it saw that the
    /// QP is not destroyed.
    fn raise(&self, device: &Device, event: AsyncEvent) {
        device
            .events()
            .asynchronous(EventSource::Qp(self.number), event, self.init.cookie);
    }

    /// The driver has reset virtqueue `number`, which is one of its queues: turns that begin from
    /// now on don't access it.
    pub(crate) fn virtqueue_reset(&self, number: u16) {
        [&self.init.sq, &self.init.rq]
            .into_iter()
            .filter_map(QueueMem::as_virtqueue)
            .filter(|queue| queue.number() == number)
            .for_each(VirtqueueMem::retire);
    }

    /// Ends the use of its memory, CQs and timers and forgets events that wait. Takes as long as a
    /// turn at most.
    pub(crate) fn destroy(&self, device: &Device) {
        {
            let mut send = self.send.lock();
            let mut recv = self.recv.lock();
            self.state.store(DESTROYED, Ordering::Release);
            send.disarm(device, self.number);
            recv.put_back(self);
        }
        self.init.send_cq.users.detach(self.number);
        self.init.recv_cq.users.detach(self.number);
        if let Some(srq) = &self.init.srq {
            srq.users.detach(self.number);
        }
        device
            .events()
            .forget(FIRST_EVENT_QUEUE, EventSource::Qp(self.number));
    }

    /// A CQE of this QP.
    fn cqe(&self, wr_id: u64, status: WcStatus, opcode: u8) -> Cqe {
        Cqe {
            wr_id,
            status: status.value(),
            opcode,
            qp_num: self.number,
            port_num: PORT,
            ..Cqe::ZERO
        }
    }
}
