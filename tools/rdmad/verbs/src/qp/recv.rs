// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The receive half of a QP.

use std::cell::Cell;
use std::sync::atomic::{fence, Ordering};

use budget::{Charge, ChargedList};
use dma::DmaView;
use roce::env::BadReceive;
use roce::work::{AtomicOp, FlushOp, RecvCompletion, RecvWr, Remote, With};
use roce::Connection;
use virtio_rdma_abi::cqe::{OPCODE_RECV, OPCODE_RECV_RDMA_WITH_IMM};
use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent, QpState, QpType, WcFlags, WcStatus};
use virtio_rdma_abi::number::Pdn;
use virtio_rdma_abi::wqe::RqHeader;

use super::{Qp, RemoteQp, Responder};
use crate::counters::Counter;
use crate::cq::Completions;
use crate::gid::vlan_of;
use crate::memory::{
    Fault, KeyFault, KeyUser, Keys, Memory, Message, QueueMem, QueueView, WorkConsumer,
};
use crate::srq::Srq;
use crate::turn::{Budget, Parked};
use crate::wire::Arrived;
use crate::wqe::{fetch_flushed, fetch_recv, BadRecv, Origin, Received};
use crate::Device;

/// Remote keys that the peer of an unreliable connection may get wrong: as many as a key has
/// variants.
const MAX_VIOLATIONS: u32 = 256;

/// State under the lock of the receive half.
#[derive(Debug)]
pub(crate) struct RecvSide {
    pub(crate) io: RecvIo,
    /// From RTR on.
    pub(crate) responder: Option<Responder>,
    /// Charge for what the responder keeps of its peer's requests.
    answers: Option<Charge>,
    /// The peer that the QP is connected to, from RTR on.
    peer: Option<RemoteQp>,
    /// The peer's requests come without packets.
    is_direct: bool,
    /// The Q_Key of datagrams for this QP.
    pub(crate) qkey: u32,
    /// COMM_EST was raised or is no news any more.
    established: bool,
    /// QP_LAST_WQE_REACHED was raised.
    last_wqe_reached: bool,
}

/// The part of the receive half that the machines of the services use: it is borrowed beside them.
#[derive(Debug)]
pub(crate) struct RecvIo {
    queue: WorkConsumer,
    /// The receive WQE being executed; there is never more than one.
    buffer: ChargedList<u8>,
    /// Its work request, if its message comes without packets, or if it is left over from one that
    /// did not fit or did not come to its end.
    pub(crate) incoming: Option<RecvWr<Received>>,
    /// The ring makes no sense: it is not looked at before RESET.
    broken: bool,
    /// Remote keys that memory refused since the QP was connected.
    violations: Cell<u32>,
}

impl RecvSide {
    pub(super) fn new(queue: &QueueMem, buffer: ChargedList<u8>) -> Self {
        Self {
            io: RecvIo {
                queue: WorkConsumer::new(queue),
                buffer,
                incoming: None,
                broken: false,
                violations: Cell::new(0),
            },
            responder: None,
            answers: None,
            peer: None,
            is_direct: false,
            qkey: 0,
            established: false,
            last_wqe_reached: false,
        }
    }

    /// Starts to receive. `answers` is charged for what the responder keeps of its peer's requests,
    /// if it does.
    pub(super) fn start(&mut self, responder: Responder, answers: Option<Charge>) {
        self.responder = Some(responder);
        self.answers = answers;
        self.established = false;
        self.io.violations.set(0);
    }

    /// Sets the peer. Its requests come without packets if `direct`.
    pub(super) fn set_peer(&mut self, connection: &Connection, direct: bool) {
        self.peer = Some(RemoteQp::of(connection));
        self.is_direct = direct;
    }

    /// Forgets all work and the connection.
    pub(super) fn stop(&mut self) {
        self.responder = None;
        self.answers = None;
        self.peer = None;
        self.io.incoming = None;
        self.io.broken = false;
        self.last_wqe_reached = false;
    }

    /// Gives what was taken from the SRQ, and did not come to its end, back to it: the QP goes to
    /// RESET or is destroyed.
    pub(super) fn put_back(&mut self, qp: &Qp) {
        let Some(srq) = &qp.srq else { return };
        let held = self.responder.as_mut().and_then(Responder::drain);
        for wr in held.into_iter().chain(self.io.incoming.take()) {
            if let Origin::Srq { slot } = wr.local.origin {
                srq.put_back(slot);
            }
        }
    }

    /// COMM_EST would be no news any more: the QP can send.
    pub(super) fn set_established(&mut self) {
        self.established = true;
    }

    /// The responder, if the QP is connected to `peer`.
    pub(crate) fn responder_for(&mut self, peer: &RemoteQp) -> Option<&mut Responder> {
        if self.peer.as_ref() == Some(peer) {
            self.responder.as_mut()
        } else {
            None
        }
    }

    /// Whether a packet is a request of the peer. On the direct path none is: both ends decide for
    /// that path by the same rule, so packets come from another sender.
    pub(crate) fn is_from_peer(&self, arrived: &Arrived<'_>, device: &Device) -> bool {
        !self.is_direct
            && self
                .peer
                .as_ref()
                .is_some_and(|peer| peer.sent(arrived, device.runtime()))
    }
}

/// The receive half in the hands of a worker.
pub(crate) struct RecvTurn<'a> {
    pub(crate) qp: &'a Qp,
    pub(crate) device: &'a Device,
    pub(crate) view: &'a DmaView,
    queue: QueueView<'a>,
    /// Budget that is left of the turn.
    pub(crate) budget: Budget,
    keys: Keys<'a>,
    /// Completions that its CQ has yet to get.
    pub(crate) completions: Completions<'a>,
    /// The QP goes to RESET: work requests end without CQEs.
    silent: bool,
}

impl<'a> RecvTurn<'a> {
    /// A turn of `qp`, whose receive half the caller has locked.
    pub(crate) fn new(qp: &'a Qp, device: &'a Device, view: &'a DmaView) -> Self {
        Self {
            qp,
            device,
            view,
            queue: QueueView::new(&qp.rq, view),
            budget: Budget::default(),
            keys: Keys::new(&device.mrs),
            completions: Completions::new(&qp.recv_cq, device, view),
            silent: false,
        }
    }

    /// The memory that local and remote keys open.
    pub(crate) fn memory(&self) -> Memory<'_> {
        self.memory_of(self.qp.pd.number())
    }

    fn memory_of(&self, pdn: Pdn) -> Memory<'_> {
        Memory {
            view: self.view,
            keys: &self.keys,
            by: KeyUser {
                pdn,
                ..self.qp.key_user()
            },
        }
    }

    /// The buffers of the receive work request being executed.
    pub(crate) fn message<'b>(&'b self, io: &'b RecvIo, received: &Received) -> Message<'b> {
        let pdn = match &self.qp.srq {
            Some(srq) => srq.pdn(),
            None => self.qp.pd.number(),
        };
        Message::in_sges(
            self.memory_of(pdn),
            &io.buffer,
            RqHeader::SIZE,
            received.num_sge,
            AccessFlags::LOCAL_WRITE,
        )
    }

    /// Memory of this side that the peer names.
    pub(crate) fn remote(&self, at: Remote, access: AccessFlags) -> Message<'_> {
        Message::in_range(self.memory(), at, access)
    }

    /// Executes an atomic operation on 8 bytes of this side that the peer names, and returns what
    /// they were.
    pub(crate) fn atomic(&self, at: Remote, op: AtomicOp) -> Result<u64, Fault> {
        self.remote(at, AccessFlags::REMOTE_ATOMIC).atomic(op)
    }

    /// Writes 8 bytes at once to an aligned address of this side that the peer names.
    pub(crate) fn write_word(&self, at: Remote, data: [u8; 8]) -> Result<(), Fault> {
        self.remote(at, AccessFlags::REMOTE_WRITE).write_word(data)
    }

    /// Executes a FLUSH of the peer. Data that earlier work has stored is visible to all as soon as
    /// it is stored: it is only kept from being seen after the answer.
    pub(crate) fn place(&self, flush: &FlushOp) -> Result<(), Fault> {
        let Memory { keys, by, .. } = self.memory();
        let (at, access) = (flush.remote, flush.access());
        match flush.length {
            Some(len) => keys.check_remote(at.rkey, by, at.va, len.into(), access)?,
            None => keys.names_remote(at.rkey, by, access)?,
        }
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Invalidates a key as a SEND of the peer asks for.
    pub(crate) fn invalidate(&self, rkey: u32) -> Result<(), KeyFault> {
        self.qp.invalidate(self.device, rkey)
    }

    /// Takes the receive work request for a message that comes without packets: first the one that
    /// the responder holds for the next message. Errors are those of [`take`](Self::take).
    pub(crate) fn take_for_direct(
        &self,
        side: &mut RecvSide,
    ) -> Result<Option<RecvWr<Received>>, BadReceive> {
        if let Some(held) = side.responder.as_mut().and_then(Responder::take_receive) {
            side.io.incoming.get_or_insert(held);
        }
        self.take(&mut side.io)
    }

    /// Takes the next receive work request. On an error the QP has gone to ERR, with a completion
    /// or an event that tells why.
    pub(crate) fn take(&self, io: &mut RecvIo) -> Result<Option<RecvWr<Received>>, BadReceive> {
        if let Some(left_over) = io.incoming.take() {
            return Ok(Some(left_over));
        }
        if let Some(srq) = &self.qp.srq {
            return self.take_shared(srq, io);
        }
        let queue = &self.queue;
        let event = match fetch_recv(&mut io.queue, queue, &mut io.buffer, &self.qp.cap) {
            Ok(fetched) if !queue.lost() => return Ok(fetched),
            Err(BadRecv::Wqe(id)) if !queue.lost() => {
                self.deliver(id, WcStatus::LocQpOpErr, OPCODE_RECV);
                None
            }
            _ => {
                io.broken = true;
                Some(AsyncEvent::QpFatal)
            }
        };
        self.qp.fail(self.device, event);
        Err(BadReceive)
    }

    /// The same from the SRQ. The taker decides whether a work request is malformed; a ring that
    /// makes no sense has all QPs of the SRQ fail.
    fn take_shared(
        &self,
        srq: &Srq,
        io: &mut RecvIo,
    ) -> Result<Option<RecvWr<Received>>, BadReceive> {
        let event = match srq.fetch(self.device, self.view, &mut io.buffer) {
            Ok(fetched) => return Ok(fetched),
            Err(BadRecv::Wqe(id)) => {
                self.deliver(id, WcStatus::LocQpOpErr, OPCODE_RECV);
                None
            }
            Err(BadRecv::Ring) => Some(AsyncEvent::QpFatal),
        };
        self.qp.fail(self.device, event);
        Err(BadReceive)
    }

    /// Gives the slot of a work request that ended back to the SRQ that it came from.
    fn give_back(&self, wr: &RecvWr<Received>) {
        if let (Some(srq), Origin::Srq { .. }) = (&self.qp.srq, wr.local.origin) {
            srq.complete();
        }
    }

    /// A receive work request ended.
    pub(crate) fn complete(&self, wr: &RecvWr<Received>, how: &RecvCompletion) {
        self.give_back(wr);
        let opcode = if how.rdma_write {
            OPCODE_RECV_RDMA_WITH_IMM
        } else {
            OPCODE_RECV
        };
        if how.status == WcStatus::LocProtErr {
            self.device.counters.add(Counter::LkeyViolations, 1);
        }
        let mut cqe = self.qp.cqe(wr.id, how.status, opcode);
        cqe.byte_len = how.byte_len;
        match how.with {
            With::Nothing => {}
            With::Imm(imm) => {
                cqe.ex = imm;
                cqe.wc_flags = WcFlags::WITH_IMM;
            }
            With::Inv(rkey) => {
                cqe.ex = rkey.to_le_bytes();
                cqe.wc_flags = WcFlags::WITH_INVALIDATE;
            }
        }
        if let Some(source) = &how.source {
            cqe.wc_flags = cqe.wc_flags | WcFlags::GRH;
            cqe.src_qp = source.qpn;
            cqe.sl = source.sl;
            if source.vlan.is_none() {
                cqe.wc_flags = cqe.wc_flags | WcFlags::WITH_NETWORK_HDR_TYPE;
            }
            if let Some(vlan) = vlan_of(source.vlan) {
                cqe.set_vlan(vlan);
            }
        }
        let solicited = how.solicited || how.status != WcStatus::Success;
        self.completions.push(cqe, solicited);
    }

    /// Memory refused a remote key. A reliable connection ends with that. An unreliable one drops
    /// the message in silence, so its peer could try keys without end: it fails when the peer has
    /// been wrong too often.
    pub(crate) fn refused_key(&self, io: &RecvIo) {
        self.device.counters.add(Counter::RkeyViolations, 1);
        let violations = io.violations.get().saturating_add(1);
        io.violations.set(violations);
        if self.qp.qp_type == QpType::Uc && violations == MAX_VIOLATIONS {
            self.qp.fail(self.device, Some(AsyncEvent::QpAccessErr));
        }
    }

    /// A request of the peer was executed: one in RTR is the first sign that the connection works.
    pub(crate) fn establish(&self, side: &mut RecvSide) {
        if !side.established {
            side.established = true;
            if self.qp.state() == Some(QpState::Rtr) {
                self.qp.raise(self.device, AsyncEvent::CommEst);
            }
        }
    }

    /// Ends up to `limit` work requests with WR_FLUSH_ERR: first the one that was being executed.
    pub(super) fn flush(&self, side: &mut RecvSide, limit: usize) -> Parked {
        let half_filled = side.responder.as_mut().and_then(Responder::drain);
        for wr in half_filled.into_iter().chain(side.io.incoming.take()) {
            self.give_back(&wr);
            self.deliver(wr.id, WcStatus::WrFlushErr, OPCODE_RECV);
        }
        // Receives of the SRQ are for its other QPs.
        if self.qp.srq.is_some() && !side.last_wqe_reached {
            side.last_wqe_reached = true;
            // Its consumer polls the CQ in answer.
            self.completions.deliver();
            self.qp.raise(self.device, AsyncEvent::QpLastWqeReached);
        }
        let (queue, view) = (&mut side.io.queue, &self.queue);
        for _ in 0..limit {
            if side.io.broken {
                break;
            }
            match fetch_flushed(queue, view) {
                Ok(Some(header)) => {
                    let _ = self.budget.charge_work_request();
                    self.deliver(
                        RqHeader::from_bytes(&header).wr_id,
                        WcStatus::WrFlushErr,
                        OPCODE_RECV,
                    );
                }
                Ok(None) => {
                    let posted = queue.await_doorbell(view);
                    return posted.map_or(Parked::again(), Parked::from);
                }
                Err(_) => side.io.broken = true,
            }
            side.io.broken |= view.lost();
        }
        match side.io.broken {
            true => self.qp.await_command(),
            false => Parked::again(),
        }
    }

    /// Gives all slots back without a completion.
    pub(super) fn reset(mut self, side: &mut RecvSide) {
        if side.io.queue.reset(&self.queue) {
            return;
        }
        // The entries of the used ring name what is given back.
        self.silent = true;
        // The flush is bounded by the number of slots: the owner may go on posting meanwhile, which
        // it must not before the reset has ended.
        let slots = side.io.queue.slots() as usize;
        let _ = self.flush(side, slots);
    }

    /// Delivers a completion in error.
    fn deliver(&self, wr_id: u64, status: WcStatus, opcode: u8) {
        if self.silent {
            return;
        }
        let cqe = self.qp.cqe(wr_id, status, opcode);
        self.completions.push(cqe, true);
    }
}
