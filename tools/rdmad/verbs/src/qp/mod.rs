// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Queue pairs.
//!
//! [`modify`] executes the commands that change a QP: [`state`] checks transitions and [`attr`]
//! attributes. [`remote_qp`] identifies the peer. A QP has two halves, each with its queue: its
//! [`requester`] and its [`responder`]. [`serve`] gives both their turn. [`saved`] describes their
//! state, and [`details`] tells it to people.

mod attr;
mod details;
mod modify;
mod remote_qp;
mod requester;
mod responder;
mod saved;
mod serve;
mod state;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU8, Ordering};
use std::sync::Arc;

use budget::{Charge, ChargedList, MemoryBudget};
use roce::work::{status, WcResult};
use roce::Connection;
use scheduler::shared::{Mutex, MutexGuard};
use scheduler::{Exclusive, QpKey};
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::event::FIRST_EVENT_QUEUE;
use virtio_rdma_abi::ib::{AsyncEvent, QpState, QpType, PORT};
use virtio_rdma_abi::number::{CounterSetNumber, MwNumber, PortId, Qpn};
use virtio_rdma_abi::qp::QpCap;
use virtio_rdma_abi::wire::Wire;

use crate::config::BOOKKEEPING;
use crate::counter_sets::Binding;
use crate::counters::Counter;
use crate::cq::Cq;
use crate::error::Result;
use crate::event::{EventSource, QP_EVENTS};
use crate::memory::{number_of, KeyFault, KeyUser, MwBind, QueueMem, VirtqueueMem};
use crate::pd::PdUse;
use crate::srq::Srq;
use crate::status::{DataPath, PeerStatus};
use crate::wqe::{max_rq_wqe, max_sq_wqe, Snapshots};
use crate::Hca;

pub use details::QpDetails;
pub(crate) use modify::ForCommand;
pub(crate) use remote_qp::RemoteQp;
pub(crate) use requester::{
    solicits, ForAnswer, Requester, RequesterIo, RequesterMachine, RequesterTurn,
};
pub(crate) use responder::{ForRequest, Responder, ResponderIo, ResponderMachine, ResponderTurn};
pub(crate) use saved::QpState as QpSaved;

/// A queue pair.
///
/// Requester and responder have a lock each, so packets of both directions of a connection are
/// processed in parallel. On the direct path a worker holds the locks of the QP's requester and of
/// the peer's responder. [`Hca`] describes the lock order.
///
/// The state is written under one of these locks: MODIFY_QP holds both, and a failure is recorded
/// under the lock of the half that fails.
#[derive(Debug)]
pub(crate) struct Qp {
    /// QPN of the QP.
    pub number: Qpn,
    /// Properties that are fixed at creation.
    pub init: QpInit,
    /// A [`QpState`] or [`DESTROYED`].
    state: AtomicU8,
    /// Whether a CQ or SRQ of the QP failed: the next turn takes the QP to ERR.
    failure_requested: AtomicBool,
    /// Whether the runtime's timers have removed the QP's entry because its deadline passed.
    timer_expired: AtomicBool,
    /// Whether the device fetched only few WQEs between the last two times that it requested the
    /// QP's doorbell.
    request_response: AtomicBool,
    /// Whether the QP has waited for room for responses and may book before QPs that still wait.
    preferred: AtomicBool,
    /// Whether a worker serves the QP, and whether the QP became ready meanwhile.
    serving: Exclusive,
    /// Properties that other threads may read at any time, without a lock.
    pub summary: Summary,
    /// The counter set that counts the QP's events.
    pub counter_set: Binding,
    /// Numbers of the type 2 windows that are tied to the QP.
    windows: Mutex<BTreeSet<MwNumber>>,
    requester: Mutex<Requester>,
    responder: Mutex<Responder>,
    _charge: Charge,
}

/// State of a destroyed QP, whose memory and CQs must not be used any more.
const DESTROYED: u8 = u8::MAX;

/// Properties of a QP that are fixed at creation.
#[derive(Debug)]
pub(crate) struct QpInit {
    pub qp_type: QpType,
    /// Whether the QP belongs to a process, not to the guest's kernel.
    pub user: bool,
    /// Whether the QP does not receive its own multicast datagrams.
    pub blocks_loopback: bool,
    /// Whether every send work request generates a CQE.
    pub signal_all: bool,
    /// Capabilities of the QP.
    pub cap: QpCap,
    /// The driver's cookie, which the QP's events carry.
    pub cookie: u64,
    /// The position among all QPs that the driver has created, from 1; 0 for the GSI QP.
    pub order: u32,
    /// Doorbell page from which the QP's queues may be rung.
    pub doorbell_page: u32,
    /// PD of the QP.
    pub pd: PdUse,
    /// CQ of the send queue.
    pub send_cq: Arc<Cq>,
    /// CQ of the receive queue.
    pub recv_cq: Arc<Cq>,
    /// Send queue.
    pub sq: QueueMem,
    /// Receive queue.
    pub rq: QueueMem,
    /// SRQ from which the QP takes receives. A QP with an SRQ has no RQ.
    pub srq: Option<Arc<Srq>>,
}

impl Qp {
    /// Creates a QP in RESET, charged to `budget`.
    pub(crate) fn new(budget: &MemoryBudget, number: Qpn, init: QpInit) -> Result<Self> {
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
            request_response: AtomicBool::new(true),
            preferred: AtomicBool::new(false),
            serving: Exclusive::default(),
            summary: Summary::default(),
            counter_set: Binding::default(),
            windows: Mutex::default(),
            requester: Mutex::new(Requester::new(&init.sq, snapshots)),
            responder: Mutex::new(Responder::new(&init.rq, buffer)),
            init,
            _charge: charge,
        })
    }

    /// Current state, or `None` if the QP is destroyed.
    #[inline]
    pub(crate) fn state(&self) -> Option<QpState> {
        QpState::try_from(self.state.load(Ordering::Acquire)).ok()
    }

    /// Lets the QP book responses before QPs that still wait for room.
    pub(crate) fn comes_next(&self) {
        self.preferred.store(true, Ordering::Release);
    }

    /// Whether the QP may book responses before QPs that still wait: true only once each time that
    /// it [comes next](Self::comes_next).
    pub(crate) fn take_precedence(&self) -> bool {
        self.preferred.swap(false, Ordering::AcqRel)
    }

    /// Whether the QP is connected to one peer (RC or UC).
    #[inline]
    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.init.qp_type, QpType::Rc | QpType::Uc)
    }

    /// Whether the QP executes requests of its peer in its current state.
    #[inline]
    pub(crate) fn receives(&self) -> bool {
        matches!(
            self.state(),
            Some(QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
        )
    }

    /// Whether the QP may have work requests that wait for responses.
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

    /// Adds `n` to a counter of the QP's counter set, or of the port if the QP has none.
    #[inline]
    pub(crate) fn count(&self, hca: &Hca, counter: Counter, n: u64) {
        let set = self.counter_set.get();
        if set == CounterSetNumber::NONE || !hca.objects.counter_sets.add(set, counter, n) {
            hca.counters.add(counter, n);
        }
    }

    /// Binds the QP to a counter set, or unbinds it. On return no turn counts events of the QP in
    /// its former counter set. Refused if the counter set does not exist.
    pub(crate) fn bind_counter_set(&self, hca: &Hca, number: CounterSetNumber) -> Result<()> {
        let sets = &hca.objects.counter_sets;
        if number != CounterSetNumber::NONE {
            sets.attach(number)?;
        }
        let former = self.counter_set.replace(number);
        // Turns that began before may still count in the former set.
        hca.runtime().scheduler.quiesce.synchronize();
        sets.detach(former);
        Ok(())
    }

    /// Unbinds the QP, which has no turns any more, from its counter set.
    pub(crate) fn leave_counter_set(&self, hca: &Hca) {
        let former = self.counter_set.replace(CounterSetNumber::NONE);
        hca.objects.counter_sets.detach(former);
    }

    /// Invalidates a key of this device, as requested by a work request of the QP or of its peer.
    pub(crate) fn invalidate(&self, hca: &Hca, key: u32) -> std::result::Result<(), KeyFault> {
        hca.objects.mrs.invalidate(key, self.key_user())?;
        self.forget_window(number_of(key));
        Ok(())
    }

    /// Executes a BIND_MW: binds a window to a part of the MR that `lkey` names.
    fn bind(&self, hca: &Hca, lkey: u32, wanted: &MwBind) -> std::result::Result<(), KeyFault> {
        if let Some(number) = hca.objects.mrs.bind(self.key_user(), lkey, wanted)? {
            self.windows.lock().insert(number);
        }
        Ok(())
    }

    /// Unbinds the windows tied to the QP, which is destroyed and has no turns any more.
    pub(crate) fn unbind_windows(&self, hca: &Hca) {
        for number in std::mem::take(&mut *self.windows.lock()) {
            hca.objects.mrs.windows().unbind_for(number, self.number);
        }
    }

    /// Removes window `number` from the set of windows that are tied to the QP.
    pub(crate) fn forget_window(&self, number: MwNumber) {
        self.windows.lock().remove(&number);
    }

    /// Locks the requester.
    pub(crate) fn lock_requester(&self) -> MutexGuard<'_, Requester> {
        self.requester.lock()
    }

    /// Locks the responder.
    pub(crate) fn lock_responder(&self) -> MutexGuard<'_, Responder> {
        self.responder.lock()
    }

    /// Whether the driver lately posted single work requests to the QP rather than a stream of
    /// them.
    pub(crate) fn is_request_response(&self) -> bool {
        self.request_response.load(Ordering::Relaxed)
    }

    /// Requests the transition to ERR because a CQ or SRQ of the QP failed. The QP's next turn
    /// executes the transition.
    pub(crate) fn request_failure(&self) {
        self.failure_requested.store(true, Ordering::Release);
    }

    /// Records that the runtime's timers have removed the QP's entry.
    pub(crate) fn timer_expired(&self) {
        self.timer_expired.store(true, Ordering::Release);
    }

    /// Takes the QP to ERR after an error, and raises `event` unless a completion reports the
    /// error. The QP's next turn flushes its queues. The caller holds the lock of the half that
    /// failed.
    pub(crate) fn fail(&self, hca: &Hca, event: Option<AsyncEvent>) {
        self.leave(hca, QpState::Err, event, |state| {
            !matches!(state, QpState::Reset | QpState::Err)
        });
    }

    /// Handles a send work request that completed in error. A QP of a reliable connection goes to
    /// ERR. Another QP goes to SQE, a state in which it still receives. The QP's next turn flushes
    /// the remaining work requests. The caller holds the lock of the requester.
    pub(crate) fn fail_send(&self, hca: &Hca) {
        if self.init.qp_type == QpType::Rc {
            return self.fail(hca, None);
        }
        self.leave(hca, QpState::Sqe, None, |state| {
            matches!(state, QpState::Rts | QpState::Sqd)
        });
    }

    /// Takes the QP to state `to` after an error, if `from` returns true for its current state.
    fn leave(
        &self,
        hca: &Hca,
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
            self.note_failure(hca, to.value());
            if let Some(event) = event {
                self.raise(hca, event);
            }
            hca.qp_ready(self.number);
        }
    }

    /// Raises an asynchronous event. The caller holds the lock of a half, and has checked under
    /// this lock that the QP is not destroyed.
    pub(crate) fn raise(&self, hca: &Hca, event: AsyncEvent) {
        hca.note_raised(self.number.get(), event, self.init.cookie);
        hca.events()
            .asynchronous(EventSource::Qp(self.number), event, self.init.cookie);
    }

    /// Handles the driver's reset of virtqueue `number` in virtqueue mode. If the virtqueue is a
    /// queue of the QP, later turns do not access it.
    pub(crate) fn virtqueue_reset(&self, number: u16) {
        [&self.init.sq, &self.init.rq]
            .into_iter()
            .filter_map(QueueMem::as_virtqueue)
            .filter(|queue| queue.number() == number)
            .for_each(VirtqueueMem::retire);
    }

    /// Destroys the QP: memory, CQs and timers are not used any more, and events not yet sent are
    /// dropped. Waits at most for the end of a turn.
    pub(crate) fn destroy(&self, hca: &Hca) {
        {
            let view = hca.space.enter();
            let mut requester = self.requester.lock();
            let mut responder = self.responder.lock();
            self.acknowledge_last(hca, &view, &mut responder);
            self.state.store(DESTROYED, Ordering::Release);
            requester.disarm(hca, self.number);
            responder.put_back(self);
        }
        self.init.send_cq.users.detach(self.number);
        self.init.recv_cq.users.detach(self.number);
        if let Some(srq) = &self.init.srq {
            srq.users.detach(self.number);
        }
        hca.events()
            .forget(FIRST_EVENT_QUEUE, EventSource::Qp(self.number));
    }

    /// Publishes completions that rules hold back: the driver expects none after its command.
    pub(crate) fn let_completions_go(&self, hca: &Hca) {
        let view = hca.space.enter();
        self.init.send_cq.let_go(hca, &view);
        self.init.recv_cq.let_go(hca, &view);
    }

    /// Makes the CQE of a work request of this QP. The reason for an error is its vendor error.
    fn cqe(&self, wr_id: u64, result: WcResult, opcode: u8) -> Cqe {
        Cqe {
            wr_id,
            status: status(result).value(),
            opcode,
            vendor_err: result.err().map_or(0, |fault| fault.reason.value().into()),
            qp_num: self.number,
            port_num: PORT,
            ..Cqe::ZERO
        }
    }
}

/// Copies of properties of requester and responder, which can be read without their locks, so
/// readers do not delay workers. The copies are not updated at the same instant.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// QPN of the peer of a connection; 0 for none.
    peer: AtomicU32,
    /// Address of the peer, which rules of a scenario ask for.
    address: Mutex<Option<IpAddr>>,
    /// Port of the peer if the connection uses the direct path, else 0.
    port: AtomicU32,
    /// Rate limit in kb/s; 0 for none.
    rate: AtomicU32,
}

impl Summary {
    /// Records the peer of a connection, and its port if the connection uses the direct path.
    fn set_peer(&self, connection: Option<&Connection>, port: Option<PortId>) {
        let peer = connection.map_or(0, |connection| connection.dest_qpn.get());
        self.peer.store(peer, Ordering::Relaxed);
        *self.address.lock() = connection.map(|connection| connection.path.addresses.dst());
        self.port
            .store(port.map_or(0, PortId::get), Ordering::Relaxed);
    }

    /// Records the rate limit in kb/s, or 0 for none.
    fn set_rate(&self, rate: u32) {
        self.rate.store(rate, Ordering::Relaxed);
    }

    /// The peer of a connection, and the path to it.
    pub(crate) fn peer(&self) -> Option<PeerStatus> {
        let qpn = self.peer.load(Ordering::Relaxed);
        let path = match self.port.load(Ordering::Relaxed) {
            0 => DataPath::Wire,
            _ => DataPath::Direct,
        };
        (qpn != 0).then_some(PeerStatus {
            qpn: Qpn::new(qpn),
            path,
        })
    }

    /// The address of the peer of a connection.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        *self.address.lock()
    }

    /// The peer, if the connection uses the direct path.
    pub(crate) fn direct_peer(&self) -> Option<QpKey> {
        let port = self.port.load(Ordering::Relaxed);
        let qpn = self.peer.load(Ordering::Relaxed);
        (port != 0 && qpn != 0).then_some(QpKey {
            port: PortId::new(port),
            qpn: Qpn::new(qpn),
        })
    }

    /// Rate limit in kb/s; 0 for none.
    pub(crate) fn rate(&self) -> u32 {
        self.rate.load(Ordering::Relaxed)
    }
}
