// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The requester in a turn: fetches and completes work requests.

use std::time::Instant;

use chaos::Hook;
use dma::DmaView;
use recorder::Kind;
use roce::work::{status, SendOp, SendWr, WcFault, WcResult};
use virtio_rdma_abi::ib::{AccessFlags, QpState, SendFlags, WcStatus};
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{SqHeader, INLINE_OFFSET};
use virtio_rdma_ring::RingError;

use super::{Progress, Requester, RequesterIo};
use crate::counters::Counter;
use crate::cq::Completions;
use crate::memory::{Keys, Memory, Message, QueueView};
use crate::qp::Qp;
use crate::runtime::Watch;
use crate::turn::{done, Parked, TurnBudget};
use crate::wqe::fetch_again;
use crate::wqe::{
    completion_opcode, fetch_flushed, fetch_send, max_message, Data, Fetched, PostedSend,
    SendRules, Snapshots,
};
use crate::Hca;

/// Result of fetching the next WQE.
pub(super) enum Next {
    /// A WQE was fetched.
    Fetched(Fetched),
    /// No WQE is posted.
    Nothing,
    /// The port's rate limit holds the next WQE back.
    Held,
}

/// The requester of a QP, locked by a worker for a turn.
pub(crate) struct RequesterTurn<'a> {
    pub(crate) qp: &'a Qp,
    pub(crate) hca: &'a Hca,
    pub(crate) view: &'a DmaView,
    pub(crate) queue: QueueView<'a>,
    /// Start of the turn.
    pub(crate) now: Instant,
    /// Remaining budget of the turn.
    pub(crate) budget: &'a TurnBudget<'a>,
    keys: Keys<'a>,
    /// Rules by which WQEs are checked.
    rules: SendRules<'a>,
    /// Completions that are not yet delivered to the CQ.
    pub(crate) completions: Completions<'a>,
    /// Whether work requests complete without CQEs, since the QP goes to RESET.
    silent: bool,
}

impl<'a> RequesterTurn<'a> {
    /// A turn of `qp`, whose requester the caller has locked. The work is charged to `budget`.
    pub(crate) fn new(
        qp: &'a Qp,
        hca: &'a Hca,
        view: &'a DmaView,
        budget: &'a TurnBudget<'a>,
    ) -> Self {
        let mtu = hca.path_mtu().bytes();
        Self {
            qp,
            hca,
            view,
            queue: QueueView::new(&qp.init.sq, view),
            now: budget.start(),
            budget,
            rules: SendRules {
                qp_type: qp.init.qp_type,
                user: qp.init.user,
                cap: &qp.init.cap,
                by: qp.key_user(),
                signal_all: qp.init.signal_all,
                features: hca.negotiated(),
                max_message: max_message(qp.init.qp_type, mtu),
            },
            keys: Keys::new(&hca.objects.mrs),
            completions: Completions::new(&qp.init.send_cq, hca, view),
            silent: false,
        }
    }

    /// Whether the turn must end: its budget is spent, or memory of the VM is lost. A turn that
    /// went on would access more missing pages, and each takes longer than the access that the
    /// budget is charged for.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.budget.is_spent() || self.view.has_lost()
    }

    /// Adds `n` to a counter of the QP.
    #[inline]
    pub(crate) fn count(&self, counter: Counter, n: u64) {
        self.qp.count(self.hca, counter, n);
    }

    /// The memory that the QP may access by local keys.
    pub(crate) fn memory(&self) -> Memory<'_> {
        Memory {
            view: self.view,
            keys: &self.keys,
            by: self.qp.key_user(),
            budget: self.budget,
        }
    }

    /// The memory that the SGEs of a work request name, or its inline data, as a message.
    pub(crate) fn message<'b>(
        &'b self,
        snapshots: &'b Snapshots,
        posted: &PostedSend,
        access: AccessFlags,
    ) -> Message<'b> {
        let wqe = snapshots.get(posted.snapshot);
        match posted.data {
            Data::Sges(count) => {
                Message::in_sges(self.memory(), wqe, SqHeader::SIZE, count, access)
            }
            Data::Inline(length) => {
                Message::private(self.memory(), &wqe[INLINE_OFFSET..][..length as usize])
            }
        }
    }

    /// Executes work requests of the SQ, in state RTS or SQD.
    pub(in crate::qp) fn execute(
        &self,
        requester: &mut Requester,
        state: QpState,
        watch: &Watch,
    ) -> Progress {
        if !self.qp.is_connected() {
            self.send_datagram(requester, state, watch)
        } else if requester.transfer.is_some() || requester.is_empty() && requester.route.is_some()
        {
            self.send_direct(requester, state, watch)
        } else {
            self.send_wire(requester, state, watch)
        }
    }

    /// Fetches and checks the next WQE. If the port's rate limit does not permit another message
    /// now, the QP gets a turn when the rate limit permits it.
    pub(super) fn fetch(&self, io: &mut RequesterIo, attr: &QpAttr) -> Result<Next, RingError> {
        let port = &self.hca.pacer;
        let taken = port.take_message(self.now, &mut io.port);
        if io.passes(taken).is_none() {
            return Ok(Next::Held);
        }
        let fetched = self.take(io, attr);
        let begins = |fetched: &Fetched| !matches!(fetched.wr.op, SendOp::Local { .. });
        if !matches!(&fetched, Ok(Some(fetched)) if begins(fetched)) {
            port.give_message_back(&mut io.port);
        }
        Ok(fetched?.map_or(Next::Nothing, Next::Fetched))
    }

    fn take(&self, io: &mut RequesterIo, attr: &QpAttr) -> Result<Option<Fetched>, RingError> {
        let mut fetched = fetch_send(
            &mut io.queue,
            &self.queue,
            &mut io.snapshots,
            &self.keys,
            &self.rules,
            attr.max_rd_atomic > 0,
        )?;
        if let Some(Fetched { wr, failed }) = &mut fetched {
            if let Data::Sges(count) = wr.local.data {
                self.budget.charge_sges(count);
            }
            io.fetched = io.fetched.saturating_add(1);
            if self.hca.rules().has(Hook::Send) && failed.is_none() {
                *failed = self.ordered_fault(io, wr.local.snapshot);
            }
            if failed.is_none() && wr.local.is_registration() {
                *failed = self.register(io.snapshots.get(wr.local.snapshot)).err();
            }
        }
        Ok(fetched)
    }

    /// The fault with which a rule ends the work request that begins with this snapshot.
    #[cold]
    fn ordered_fault(&self, io: &mut RequesterIo, snapshot: u16) -> Option<WcFault> {
        if io.ordered.is_some() {
            return None;
        }
        let opcode = SqHeader::get(&io.snapshots.get(snapshot)[..SqHeader::SIZE]).opcode;
        let (applied, fault) = self.qp.ordered_fault(self.hca, opcode)?;
        io.ordered = Some((snapshot, applied));
        Some(fault)
    }

    /// Reads and checks the incomplete WQEs again. Keys are not checked again. `None` if there is
    /// no room for all, or if they can't be read.
    pub(in crate::qp) fn fetch_again(
        &self,
        io: &mut RequesterIo,
        attr: &QpAttr,
    ) -> Option<Vec<Fetched>> {
        let slots = io.queue.outstanding();
        let reads = attr.max_rd_atomic > 0;
        let again = |slot| fetch_again(slot, &self.queue, &mut io.snapshots, &self.rules, reads);
        slots.map(again).collect()
    }

    /// Completes a work request: in error if `result` is one, or if the key that the work request
    /// invalidates can't be invalidated. Charges the work request to the turn.
    pub(crate) fn complete(
        &self,
        io: &mut RequesterIo,
        wr: &SendWr<PostedSend>,
        mut result: WcResult,
    ) {
        let _ = self.budget.charge_work_request();
        let posted = &wr.local;
        if let (Some(key), Ok(())) = (posted.invalidates, result) {
            if let Err(fault) = self.invalidate(key) {
                result = Err(fault);
                self.qp.fail_send(self.hca);
            }
        }
        if status(result) == WcStatus::LocProtErr {
            self.count(Counter::LkeyViolations, 1);
        }
        io.snapshots.give_back(posted.snapshot);
        io.queue.complete(&self.queue, posted.slot);
        done::request();
        if let Err(fault) = result {
            self.qp.note_fault(self.hca, Kind::SendError, wr.id, fault);
            if let Some((_, applied)) = io.ordered.as_ref().filter(|it| it.0 == posted.snapshot) {
                self.qp.act_on_order(self.hca, applied);
            }
        }
        if !self.silent && (posted.signaled || result.is_err()) {
            let mut cqe = self.qp.cqe(wr.id, result, posted.opcode);
            cqe.byte_len = wr.length;
            self.completions.push(cqe, result.is_err());
        }
    }

    /// Empties the queue without completions.
    pub(in crate::qp) fn reset(mut self, requester: &mut Requester) {
        if requester.io.queue.reset(&self.queue) {
            return;
        }
        // A virtqueue's buffers must be given back one by one, through the used ring.
        self.silent = true;
        // At most one pass over the ring: a faulty driver may post more work requests before the
        // reset ends.
        let slots = requester.io.queue.slots() as usize;
        let _ = self.flush(requester, slots);
    }

    /// Flushes up to `limit` work requests (WR_FLUSH_ERR), the ones in progress first.
    pub(in crate::qp) fn flush(&self, requester: &mut Requester, limit: usize) -> Parked {
        let Requester {
            io,
            machine,
            transfer,
            blocked,
            ..
        } = requester;
        let mut flush = |wr: &SendWr<PostedSend>| self.complete(io, wr, Err(WcFault::FLUSHED));
        if let Some(transfer) = transfer.take() {
            flush(transfer.wr());
        }
        if let Some(blocked) = blocked.take() {
            flush(&blocked.wr);
        }
        if let Some(machine) = machine {
            machine.drain(|wr| flush(&wr));
            self.hca.frames.release_load(&self.hca.flows, &mut io.load);
        }
        for _ in 0..limit {
            if io.broken || self.view.has_lost() {
                break;
            }
            match fetch_flushed(&mut io.queue, &self.queue) {
                Ok(Some(_)) if self.silent => {}
                Ok(Some(header)) => {
                    let _ = self.budget.charge_work_request();
                    let header = SqHeader::from_bytes(&header);
                    let cqe = self.qp.cqe(
                        header.wr_id,
                        Err(WcFault::FLUSHED),
                        completion_opcode(&header),
                    );
                    self.completions.push(cqe, true);
                }
                Ok(None) => {
                    let posted = io.queue.await_doorbell(&self.queue);
                    return posted.map_or(Parked::again(), Parked::from);
                }
                Err(_) => io.broken = true,
            }
            io.broken |= self.queue.lost();
        }
        if io.broken {
            self.qp.await_command()
        } else {
            Parked::again()
        }
    }
}

/// Whether the work request has the flag that solicits an event at the receiver.
pub(crate) fn solicits(wr: &SendWr<PostedSend>) -> bool {
    wr.flags.contains(SendFlags::SOLICITED)
}
