// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The send half of a QP.

use std::sync::atomic::Ordering;
use std::time::Instant;

use budget::Exhausted;
use dma::DmaView;
use roce::work::SendWr;
use roce::{ud, Connection};
use virtio_rdma_abi::ib::{AccessFlags, SendFlags, WcStatus};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{SqHeader, INLINE_OFFSET};
use virtio_rdma_ring::RingError;

use super::keys::is_registration;
use super::pace::Pacer;
use super::{Qp, RemoteQp, Requester};
use crate::counters::Counter;
use crate::cq::Completions;
use crate::direct::{DirectRoute, Transfer};
use crate::memory::{Keys, Memory, Message, QueueMem, QueueView, WorkConsumer};
use crate::runtime::{Alarm, Until};
use crate::turn::{Budget, Parked};
use crate::wire::Arrived;
use crate::wqe::{
    completion_opcode, fetch_flushed, fetch_send, max_message, Data, Fetched, Posted, SendRules,
    Snapshots,
};
use crate::Device;

/// WQEs that are executed at a time, so that packets of many small messages can be on their way.
const DEPTH: u16 = 128;

/// State under the lock of the send half.
#[derive(Debug)]
pub(crate) struct SendSide {
    /// All attributes as they were set.
    pub(super) attr: QpAttr,
    pub(crate) io: SendIo,
    /// Of a connection, from RTS on.
    pub(crate) requester: Option<Requester>,
    /// Of datagrams, from RTS on.
    pub(crate) sender: Option<ud::Sender>,
    /// A datagram that waits for room in the frame port.
    pub(super) blocked: Option<Fetched>,
    /// The way to the peer, if data goes there without packets.
    pub(crate) route: Option<DirectRoute>,
    /// From RTR on.
    pub(crate) connection: Option<Connection>,
    /// The work request that goes there now.
    pub(super) transfer: Option<Transfer>,
    /// SQ_DRAINED was raised since the QP went to SQD.
    pub(super) drained: bool,
    /// The QP's entry in the runtime's timers.
    alarm: Alarm,
}

/// The part of the send half that the machines of the services use: it is borrowed beside them.
#[derive(Debug)]
pub(crate) struct SendIo {
    pub(super) queue: WorkConsumer,
    pub(crate) snapshots: Snapshots,
    /// The ring makes no sense: it is not looked at before RESET.
    pub(super) broken: bool,
    /// WQEs that were taken since a doorbell was asked for, or more.
    pub(super) fetched: u32,
    /// The rate limit, if there is one.
    pub(crate) pacer: Option<Pacer>,
    /// Until when the rate limit holds the QP back.
    pub(super) paced: Option<Instant>,
}

impl SendSide {
    pub(super) fn new(queue: &QueueMem, snapshots: Snapshots) -> Self {
        Self {
            attr: QpAttr::ZERO,
            io: SendIo {
                queue: WorkConsumer::new(queue),
                snapshots,
                broken: false,
                fetched: 0,
                pacer: None,
                paced: None,
            },
            requester: None,
            sender: None,
            blocked: None,
            route: None,
            connection: None,
            transfer: None,
            drained: false,
            alarm: Alarm::default(),
        }
    }

    /// Forgets all work and the connection.
    pub(super) fn stop(&mut self) {
        self.io.stop();
        self.requester = None;
        self.sender = None;
        self.blocked = None;
        self.route = None;
        self.connection = None;
        self.transfer = None;
    }

    /// Whether no work request is between its beginning and its end.
    pub(super) fn is_drained(&self) -> bool {
        self.transfer.is_none()
            && self.blocked.is_none()
            && self.requester.as_ref().is_none_or(Requester::is_drained)
    }

    /// Whether every work request that was taken has ended.
    pub(super) fn is_empty(&self) -> bool {
        self.transfer.is_none()
            && self.blocked.is_none()
            && self.requester.as_ref().is_none_or(Requester::is_empty)
    }

    /// Attributes as they were set.
    pub(crate) fn attr(&self) -> &QpAttr {
        &self.attr
    }

    /// Whether a packet is from the peer.
    pub(crate) fn is_from_peer(&self, arrived: &Arrived<'_>, device: &Device) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| RemoteQp::of(connection).sent(arrived, device.runtime()))
    }

    /// When the QP needs a turn even if nothing happens.
    fn deadline(&self) -> Option<Instant> {
        let transfer = self.transfer.as_ref().and_then(Transfer::deadline);
        let requester = self.requester.as_ref().and_then(Requester::next_deadline);
        [transfer, requester, self.io.paced]
            .into_iter()
            .flatten()
            .min()
    }

    /// Has the runtime's timers know the deadline, if there is one.
    pub(super) fn arm(&mut self, device: &Device, qp: &Qp) -> Option<Until> {
        if qp.timer_expired.swap(false, Ordering::AcqRel) {
            self.alarm.expired();
        }
        let deadline = self.deadline()?;
        let key = device.key(qp.number);
        Some(self.alarm.set(&device.runtime().scheduler, key, deadline))
    }

    /// Takes the QP's entry out of the timers.
    pub(super) fn disarm(&mut self, device: &Device, qpn: Qpn) {
        self.alarm
            .clear(&device.runtime().scheduler, device.key(qpn));
    }
}

impl SendIo {
    /// Makes room for the work requests that `requester` has on the wire at a time. Without packets
    /// there is one at a time.
    pub(super) fn make_room(
        &mut self,
        budget: &budget::Budget,
        requester: &mut Requester,
    ) -> Result<(), Exhausted> {
        let slots = u16::try_from(self.queue.slots()).unwrap_or(DEPTH);
        // One, if there is no SQ.
        let depth = slots.clamp(1, DEPTH);
        self.snapshots.make_room(budget, depth)?;
        requester.make_room(budget, depth.into())
    }

    /// Forgets all work.
    fn stop(&mut self) {
        self.snapshots.clear();
        self.paced = None;
        self.broken = false;
    }

    /// Whether the rate limit lets a frame of `bytes` leave. If not, the QP gets a turn when it
    /// does.
    #[inline]
    pub(crate) fn admit(&mut self, now: Instant, bytes: usize) -> bool {
        match self.pacer.as_mut().map(|pacer| pacer.admit(now, bytes)) {
            Some(Err(at)) => {
                self.paced = Some(at);
                false
            }
            Some(Ok(())) | None => true,
        }
    }
}

/// The send half in the hands of a worker.
pub(crate) struct SendTurn<'a> {
    pub(crate) qp: &'a Qp,
    pub(crate) device: &'a Device,
    pub(crate) view: &'a DmaView,
    pub(crate) queue: QueueView<'a>,
    /// When the turn began.
    pub(crate) now: Instant,
    /// Budget that is left of the turn.
    pub(crate) budget: Budget,
    keys: Keys<'a>,
    /// Rules for WQEs.
    rules: SendRules<'a>,
    /// Completions that its CQ has yet to get.
    pub(crate) completions: Completions<'a>,
    /// The QP goes to RESET: work requests end without CQEs.
    silent: bool,
}

impl<'a> SendTurn<'a> {
    /// A turn of `qp`, whose send half the caller has locked.
    pub(crate) fn new(qp: &'a Qp, device: &'a Device, view: &'a DmaView) -> Self {
        Self::at(qp, device, view, device.runtime().scheduler.clock.now())
    }

    /// A turn that began at `now`.
    pub(crate) fn at(qp: &'a Qp, device: &'a Device, view: &'a DmaView, now: Instant) -> Self {
        let mtu = device.config().path_mtu().bytes();
        Self {
            qp,
            device,
            view,
            queue: QueueView::new(&qp.sq, view),
            now,
            budget: Budget::default(),
            rules: SendRules {
                qp_type: qp.qp_type,
                user: qp.user,
                cap: &qp.cap,
                pdn: qp.pd.number(),
                signal_all: qp.signal_all,
                features: device.negotiated(),
                max_message: max_message(qp.qp_type, mtu),
            },
            keys: Keys::new(&device.mrs),
            completions: Completions::new(&qp.send_cq, device, view),
            silent: false,
        }
    }

    /// The memory that local keys open.
    pub(crate) fn memory(&self) -> Memory<'_> {
        Memory {
            view: self.view,
            keys: &self.keys,
            by: self.qp.key_user(),
        }
    }

    /// The message of a work request in local memory.
    pub(crate) fn message<'b>(
        &'b self,
        snapshots: &'b Snapshots,
        posted: &Posted,
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

    /// Takes and checks the next WQE.
    pub(super) fn fetch(
        &self,
        io: &mut SendIo,
        attr: &QpAttr,
    ) -> Result<Option<Fetched>, RingError> {
        let mut fetched = fetch_send(
            &mut io.queue,
            &self.queue,
            &mut io.snapshots,
            &self.keys,
            &self.rules,
            attr.max_rd_atomic > 0,
        )?;
        if let Some(Fetched { wr, failed }) = &mut fetched {
            io.fetched = io.fetched.saturating_add(1);
            if failed.is_none() && is_registration(&wr.local) {
                *failed = self.register(io.snapshots.get(wr.local.snapshot)).err();
            }
        }
        Ok(fetched)
    }

    /// A work request ended, in error if the end does not succeed. Work of all kinds ends here, so
    /// it is charged here.
    pub(crate) fn complete(&self, io: &mut SendIo, wr: &SendWr<Posted>, mut status: WcStatus) {
        let _ = self.budget.charge_work_request();
        let posted = &wr.local;
        if let (Some(key), WcStatus::Success) = (posted.invalidates, status) {
            if let Err(failed) = self.invalidate(key) {
                status = failed;
                self.qp.fail_send(self.device);
            }
        }
        if status == WcStatus::LocProtErr {
            self.device.counters.add(Counter::LkeyViolations, 1);
        }
        io.snapshots.give_back(posted.snapshot);
        io.queue.complete(&self.queue, posted.slot);
        let success = status == WcStatus::Success;
        if !self.silent && (posted.signaled || !success) {
            let mut cqe = self.qp.cqe(wr.id, status, posted.opcode);
            cqe.byte_len = wr.length;
            self.completions.push(cqe, !success);
        }
    }

    /// Gives all slots back without a completion.
    pub(super) fn reset(mut self, side: &mut SendSide) {
        if side.io.queue.reset(&self.queue) {
            return;
        }
        // The entries of the used ring name what is given back.
        self.silent = true;
        // Work that is posted meanwhile was posted too early.
        let slots = side.io.queue.slots() as usize;
        let _ = self.flush(side, slots);
    }

    /// Ends up to `limit` work requests with WR_FLUSH_ERR: first those that were being executed.
    pub(super) fn flush(&self, side: &mut SendSide, limit: usize) -> Parked {
        let SendSide {
            io,
            requester,
            transfer,
            blocked,
            ..
        } = side;
        let mut flush = |wr: &SendWr<Posted>| self.complete(io, wr, WcStatus::WrFlushErr);
        if let Some(transfer) = transfer.take() {
            flush(transfer.wr());
        }
        if let Some(blocked) = blocked.take() {
            flush(&blocked.wr);
        }
        if let Some(requester) = requester {
            requester.drain(|wr| flush(&wr));
        }
        for _ in 0..limit {
            if io.broken {
                break;
            }
            match fetch_flushed(&mut io.queue, &self.queue) {
                Ok(Some(_)) if self.silent => {}
                Ok(Some(header)) => {
                    let _ = self.budget.charge_work_request();
                    let header = SqHeader::from_bytes(&header);
                    let cqe = self.qp.cqe(
                        header.wr_id,
                        WcStatus::WrFlushErr,
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
        match io.broken {
            true => self.qp.await_command(),
            false => Parked::again(),
        }
    }
}

/// Flags of a send work request that say something about the receiver's completion.
pub(crate) fn solicits(wr: &SendWr<Posted>) -> bool {
    wr.flags.contains(SendFlags::SOLICITED)
}
