// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The responder in a turn: fetches and completes receives, and accesses memory for the peer.

use std::sync::atomic::{fence, Ordering};

use chaos::Hook;
use dma::DmaView;
use recorder::Kind;
use roce::env::BadReceive;
use roce::work::{AtomicOp, FlushOp, RecvCompletion, RecvWr, Remote, WcFault, WcReason, With};
use virtio_rdma_abi::cqe::{OPCODE_RECV, OPCODE_RECV_RDMA_WITH_IMM};
use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent, QpState, QpType, WcFlags, WcStatus};
use virtio_rdma_abi::number::Pdn;
use virtio_rdma_abi::wqe::RqHeader;

use super::{Responder, ResponderIo, ResponderMachine};
use crate::counters::Counter;
use crate::cq::Completions;
use crate::gid::vlan_of;
use crate::memory::{Fault, KeyFault, KeyUser, Keys, Memory, Message, QueueView};
use crate::qp::Qp;
use crate::scenario::Ordered;
use crate::srq::Srq;
use crate::turn::{Parked, TurnBudget};
use crate::wqe::{fetch_flushed, fetch_recv, BadRecv, PostedRecv, RecvOrigin};
use crate::Hca;

/// Number of R_Key violations after which an unreliable connection fails. Equal to the number of
/// variants of a key.
const MAX_VIOLATIONS: u32 = 256;

/// The responder of a QP, locked by a worker for a turn.
pub(crate) struct ResponderTurn<'a> {
    pub(crate) qp: &'a Qp,
    pub(crate) hca: &'a Hca,
    pub(crate) view: &'a DmaView,
    queue: QueueView<'a>,
    /// Remaining budget of the turn.
    pub(crate) budget: &'a TurnBudget<'a>,
    keys: Keys<'a>,
    /// Completions that are not yet delivered to the CQ.
    pub(crate) completions: Completions<'a>,
    /// Whether work requests complete without CQEs, since the QP goes to RESET.
    silent: bool,
}

impl<'a> ResponderTurn<'a> {
    /// A turn of `qp`, whose responder the caller has locked. The work is charged to `budget`.
    pub(crate) fn new(
        qp: &'a Qp,
        hca: &'a Hca,
        view: &'a DmaView,
        budget: &'a TurnBudget<'a>,
    ) -> Self {
        Self {
            qp,
            hca,
            view,
            queue: QueueView::new(&qp.init.rq, view),
            budget,
            keys: Keys::new(&hca.objects.mrs),
            completions: Completions::new(&qp.init.recv_cq, hca, view),
            silent: false,
        }
    }

    /// Adds `n` to a counter of the QP.
    #[inline]
    pub(crate) fn count(&self, counter: Counter, n: u64) {
        self.qp.count(self.hca, counter, n);
    }

    /// The memory that the QP and its peer may access by keys.
    pub(crate) fn memory(&self) -> Memory<'_> {
        self.memory_of(self.qp.init.pd.number())
    }

    fn memory_of(&self, pdn: Pdn) -> Memory<'_> {
        Memory {
            view: self.view,
            keys: &self.keys,
            by: KeyUser {
                pdn,
                ..self.qp.key_user()
            },
            budget: self.budget,
        }
    }

    /// The buffers of the receive that is being executed.
    pub(crate) fn message<'b>(&'b self, io: &'b ResponderIo, received: &PostedRecv) -> Message<'b> {
        let pdn = match &self.qp.init.srq {
            Some(srq) => srq.pdn(),
            None => self.qp.init.pd.number(),
        };
        Message::in_sges(
            self.memory_of(pdn),
            &io.buffer,
            RqHeader::SIZE,
            received.num_sge,
            AccessFlags::LOCAL_WRITE,
        )
    }

    /// The memory that a request of the peer names, which holds the request's data.
    pub(crate) fn remote(&self, at: Remote, access: AccessFlags) -> Message<'_> {
        Message::in_range(self.memory(), at, access)
    }

    /// Executes an atomic operation of the peer on 8 bytes of this QP's memory. Returns the
    /// original value.
    pub(crate) fn atomic(&self, at: Remote, op: AtomicOp) -> Result<u64, Fault> {
        self.remote(at, AccessFlags::REMOTE_ATOMIC).atomic(op)
    }

    /// Executes an atomic write of the peer: stores 8 bytes to an aligned address in a single
    /// store.
    pub(crate) fn write_word(&self, at: Remote, data: [u8; 8]) -> Result<(), Fault> {
        self.remote(at, AccessFlags::REMOTE_WRITE).write_word(data)
    }

    /// Executes a FLUSH of the peer. Stored data is globally visible at once, so FLUSH only has to
    /// ensure that the response follows the data.
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

    /// Invalidates the key that the peer named in a SEND with invalidate.
    pub(crate) fn invalidate(&self, rkey: u32) -> Result<(), KeyFault> {
        self.qp.invalidate(self.hca, rkey)
    }

    /// Like [`take`](Self::take), for a message on the direct path. If the responder already holds
    /// a receive, that one is returned.
    pub(crate) fn take_for_direct(
        &self,
        responder: &mut Responder,
    ) -> Result<Option<RecvWr<PostedRecv>>, BadReceive> {
        if let Some(held) = responder
            .machine
            .as_mut()
            .and_then(ResponderMachine::take_receive)
        {
            responder.io.incoming.get_or_insert(held);
        }
        self.take(&mut responder.io)
    }

    /// Returns the next receive: one that an earlier message left over, or else the next posted
    /// one. After an error the QP is in ERR, and a completion or event reports the error.
    pub(crate) fn take(
        &self,
        io: &mut ResponderIo,
    ) -> Result<Option<RecvWr<PostedRecv>>, BadReceive> {
        if let Some(left_over) = io.incoming.take() {
            return Ok(Some(left_over));
        }
        match self.ordered_receive(io) {
            None => self.fetch(io),
            Some(Ordered::Withheld) => Ok(None),
            Some(Ordered::Useless) => Err(BadReceive),
            Some(Ordered::Fails(fault)) => {
                let Some(next) = self.fetch(io)? else {
                    return Ok(None);
                };
                self.give_back(&next);
                self.deliver(next.id, fault, OPCODE_RECV);
                self.qp.fail(self.hca, None);
                Err(BadReceive)
            }
        }
    }

    /// The effect of a rule on the next receive, if one is posted.
    #[inline]
    fn ordered_receive(&self, io: &ResponderIo) -> Option<Ordered> {
        if !self.hca.rules().has(Hook::Receive) {
            return None;
        }
        let is_posted = match &self.qp.init.srq {
            Some(srq) => srq.posted(self.view) > 0,
            None => io.queue.available(&self.queue) > 0,
        };
        is_posted.then(|| self.qp.ordered_receive(self.hca))?
    }

    /// Fetches the next posted receive.
    fn fetch(&self, io: &mut ResponderIo) -> Result<Option<RecvWr<PostedRecv>>, BadReceive> {
        if let Some(srq) = &self.qp.init.srq {
            return self.take_shared(srq, io);
        }
        let queue = &self.queue;
        let event = match fetch_recv(&mut io.queue, queue, &mut io.buffer, &self.qp.init.cap) {
            Ok(fetched) if !queue.lost() => return Ok(fetched),
            Err(BadRecv::Wqe(id, fault)) if !queue.lost() => {
                self.deliver(id, fault, OPCODE_RECV);
                None
            }
            _ => {
                io.broken = true;
                Some(AsyncEvent::QpFatal)
            }
        };
        self.qp.fail(self.hca, event);
        Err(BadReceive)
    }

    /// Fetches the next receive from the SRQ. A malformed work request fails only the QP that
    /// fetched it; a corrupt ring fails all QPs of the SRQ.
    fn take_shared(
        &self,
        srq: &Srq,
        io: &mut ResponderIo,
    ) -> Result<Option<RecvWr<PostedRecv>>, BadReceive> {
        let event = match srq.fetch(self.hca, self.view, &mut io.buffer) {
            Ok(fetched) => return Ok(fetched),
            Err(BadRecv::Wqe(id, fault)) => {
                self.deliver(id, fault, OPCODE_RECV);
                None
            }
            Err(BadRecv::Ring) => Some(AsyncEvent::QpFatal),
        };
        self.qp.fail(self.hca, event);
        Err(BadReceive)
    }

    /// Gives the slot of a completed receive back to its SRQ.
    fn give_back(&self, wr: &RecvWr<PostedRecv>) {
        if let (Some(srq), RecvOrigin::Srq { .. }) = (&self.qp.init.srq, wr.local.origin) {
            srq.complete();
        }
    }

    /// Completes a receive.
    pub(crate) fn complete(&self, wr: &RecvWr<PostedRecv>, how: &RecvCompletion) {
        self.give_back(wr);
        let opcode = if how.rdma_write {
            OPCODE_RECV_RDMA_WITH_IMM
        } else {
            OPCODE_RECV
        };
        if how.status() == WcStatus::LocProtErr {
            self.count(Counter::LkeyViolations, 1);
        }
        if let Err(fault) = how.result {
            self.qp.note_fault(self.hca, Kind::RecvError, wr.id, fault);
        }
        let mut cqe = self.qp.cqe(wr.id, how.result, opcode);
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
        let solicited = how.solicited || how.result.is_err();
        self.completions.push(cqe, solicited);
    }

    /// Counts an R_Key violation, by a request for memory at `at`, with its reason. A reliable
    /// connection fails at the first violation. An unreliable connection drops the message
    /// silently, so its peer could try keys without end: the connection fails after
    /// [`MAX_VIOLATIONS`].
    pub(crate) fn refused_key(&self, io: &ResponderIo, at: Remote, reason: WcReason) {
        self.count(Counter::RkeyViolations, 1);
        self.qp.note_refused(self.hca, at, reason);
        let violations = io.violations.get().saturating_add(1);
        io.violations.set(violations);
        if self.qp.init.qp_type == QpType::Uc && violations == MAX_VIOLATIONS {
            self.qp.fail(self.hca, Some(AsyncEvent::QpAccessErr));
        }
    }

    /// Called for each request of the peer. Raises COMM_EST for the first one if the QP is in RTR.
    pub(crate) fn establish(&self, responder: &mut Responder) {
        if !responder.established {
            responder.established = true;
            if self.qp.state() == Some(QpState::Rtr) {
                self.qp.raise(self.hca, AsyncEvent::CommEst);
            }
        }
    }

    /// Flushes up to `limit` receives (WR_FLUSH_ERR), the one in progress first.
    pub(in crate::qp) fn flush(&self, responder: &mut Responder, limit: usize) -> Parked {
        let half_filled = responder.machine.as_mut().and_then(ResponderMachine::drain);
        for wr in half_filled.into_iter().chain(responder.io.incoming.take()) {
            self.give_back(&wr);
            self.deliver(wr.id, WcFault::FLUSHED, OPCODE_RECV);
        }
        // Receives of an SRQ are not flushed, since other QPs may use them.
        if self.qp.init.srq.is_some() && !responder.last_wqe_reached {
            responder.last_wqe_reached = true;
            // The driver polls the CQ for the last time after this event.
            self.completions.deliver();
            self.qp.raise(self.hca, AsyncEvent::QpLastWqeReached);
        }
        let (queue, view) = (&mut responder.io.queue, &self.queue);
        for _ in 0..limit {
            if responder.io.broken || self.view.has_lost() {
                break;
            }
            match fetch_flushed(queue, view) {
                Ok(Some(header)) => {
                    let _ = self.budget.charge_work_request();
                    self.deliver(
                        RqHeader::from_bytes(&header).wr_id,
                        WcFault::FLUSHED,
                        OPCODE_RECV,
                    );
                }
                Ok(None) => {
                    let posted = queue.await_doorbell(view);
                    return posted.map_or(Parked::again(), Parked::from);
                }
                Err(_) => responder.io.broken = true,
            }
            responder.io.broken |= view.lost();
        }
        if responder.io.broken {
            self.qp.await_command()
        } else {
            Parked::again()
        }
    }

    /// Empties the queue without completions.
    pub(in crate::qp) fn reset(mut self, responder: &mut Responder) {
        if responder.io.queue.reset(&self.queue) {
            return;
        }
        // A virtqueue's buffers must be given back one by one, through the used ring.
        self.silent = true;
        // At most one pass over the ring: a faulty driver may post more work requests before the
        // reset ends.
        let slots = responder.io.queue.slots() as usize;
        let _ = self.flush(responder, slots);
    }

    /// Adds a completion in error, unless the QP goes to RESET.
    fn deliver(&self, wr_id: u64, fault: WcFault, opcode: u8) {
        if self.silent {
            return;
        }
        self.qp.note_fault(self.hca, Kind::RecvError, wr_id, fault);
        let cqe = self.qp.cqe(wr_id, Err(fault), opcode);
        self.completions.push(cqe, true);
    }
}
