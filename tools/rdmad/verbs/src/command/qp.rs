// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! CREATE_QP, MODIFY_QP, QUERY_QP, DESTROY_QP.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use recorder::Kind;
use virtio_rdma_abi::ctrl::{
    CmdCreateQp, CmdCreateQpRings, CmdDestroyQp, CmdModifyQp, CmdQueryQp, CmdSetRateLimit,
    CreateFlags, Empty, RspCreateQp, RspQueryQp,
};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{QpType, SigType, GSI_QPN};
use virtio_rdma_abi::number::{Qpn, Srqn};
use virtio_rdma_abi::qp::QpCap;
use virtio_rdma_abi::ring::{RingAddr, RingKind};
use virtio_rdma_abi::wire::Wire;

use super::{DONE, NO_DOORBELL_PAGE};
use crate::error::{
    at_least, at_most, bits, defined, exactly, full, refusal, require, reserved, QpQueue, Reason,
    Result, What,
};
use crate::memory::{QueueMem, RingMem};
use crate::qp::{Qp, QpInit};
use crate::srq::Srq;
use crate::table::Reserved;
use crate::wqe::{max_rq_wqe, max_sq_wqe};
use crate::Hca;

/// The number and the queues of a QP that is being created.
struct Queues<'a> {
    reserved: Reserved<'a, Qpn, Qp>,
    sq: QueueMem,
    rq: QueueMem,
}

impl Hca {
    /// Creates a QP whose queues are in memory that the driver provides.
    pub(super) fn create_qp_rings(&self, cmd: CmdCreateQpRings) -> Result<RspCreateQp> {
        self.check_doorbell_page(cmd.doorbell_page)?;
        let queues = |qp_type, cap: &QpCap| {
            let limit = self.config().limits.max_qp_wr;
            let queue = |queue, ring: &RingAddr, max_wr, wqe| {
                if *ring == RingAddr::ZERO && max_wr == 0 {
                    return Ok(QueueMem::Absent);
                }
                let what = match queue {
                    QpQueue::Sq => What::MaxSendWr,
                    QpQueue::Rq => What::MaxRecvWr,
                };
                Self::check_max_wr(what, max_wr, ring, limit)?;
                let ring = self.work_ring(RingKind::Work, ring, limit, wqe);
                ring.map(QueueMem::Own).map_err(|refusal| refusal.of(queue))
            };
            let sq = queue(QpQueue::Sq, &cmd.sq, cap.max_send_wr, max_sq_wqe(cap))?;
            let rq = queue(QpQueue::Rq, &cmd.rq, cap.max_recv_wr, max_rq_wqe(cap))?;
            let reserved = self.number(qp_type, || self.objects.qps.number(What::Qpn))?;
            Ok(Queues { reserved, sq, rq })
        };
        self.create_qp(&cmd.base, queues, cmd.doorbell_page, cmd.cookie)
    }

    /// Creates a QP in virtqueue mode: its queues are virtqueues of the device.
    pub(super) fn create_qp_virtqueues(&self, cmd: CmdCreateQp) -> Result<RspCreateQp> {
        let limits = self.config().limits.virtqueue_mode();
        let queues = |qp_type, cap: &QpCap| {
            at_most(What::MaxSendWr, cap.max_send_wr, limits.max_qp_wr)?;
            at_most(What::MaxRecvWr, cap.max_recv_wr, limits.max_qp_wr)?;
            let virtqueues = self.assigned_virtqueues();
            let numbers = virtqueues.numbers();
            let usable = |qpn| {
                virtqueues.is_usable(numbers.sq(qpn)) && virtqueues.is_usable(numbers.rq(qpn))
            };
            let none = full(What::Qpn, limits.max_qp);
            let reserved = self.number(qp_type, || {
                let reserved = self.objects.qps.reserve_below(limits.max_qp + 1, usable);
                reserved.ok_or(none)
            })?;
            if !usable(reserved.number()) {
                return Err(none);
            }
            let take = |queue, number| {
                let taken = virtqueues.take(number).map(QueueMem::Virtqueue);
                taken.map_err(|refusal| refusal.of(queue))
            };
            let sq = take(QpQueue::Sq, numbers.sq(reserved.number()))?;
            let rq = take(QpQueue::Rq, numbers.rq(reserved.number()))?;
            Ok(Queues { reserved, sq, rq })
        };
        self.create_qp(&cmd, queues, NO_DOORBELL_PAGE, 0)
    }

    /// Reserves a QPN for a QP of `qp_type`: QPN 1 for the GSI QP, else the number that `common`
    /// reserves.
    fn number<'a>(
        &'a self,
        qp_type: QpType,
        common: impl FnOnce() -> Result<Reserved<'a, Qpn, Qp>>,
    ) -> Result<Reserved<'a, Qpn, Qp>> {
        match qp_type {
            QpType::Gsi => {
                let exists = refusal(Reason::Exists, What::QpType, qp_type.value());
                self.objects.qps.claim(GSI_QPN).ok_or(exists)
            }
            _ => common(),
        }
    }

    fn create_qp<'a>(
        &self,
        base: &CmdCreateQp,
        queues: impl FnOnce(QpType, &QpCap) -> Result<Queues<'a>>,
        doorbell_page: u32,
        cookie: u64,
    ) -> Result<RspCreateQp> {
        let qp_type: QpType = defined(What::QpType, base.qp_type)?;
        let of_type = |reason| refusal(reason, What::QpType, base.qp_type);
        // There are no subnet management packets on Ethernet.
        if qp_type == QpType::Smi {
            return Err(of_type(Reason::NotSupported));
        }
        let sig_type: SigType = defined(What::SqSigType, base.sq_sig_type)?;
        bits(What::Flags, base.flags.0, CreateFlags::ALL.0)?;
        reserved(&base.reserved)?;
        let user = base.flags.contains(CreateFlags::USER);
        let blocks_loopback = base.flags.contains(CreateFlags::BLOCK_MULTICAST_LOOPBACK);
        if blocks_loopback {
            exactly(What::QpType, base.qp_type, QpType::Ud.value())?;
            self.check_flag(
                base,
                CreateFlags::BLOCK_MULTICAST_LOOPBACK,
                Feature::Multicast,
            )?;
        }
        if user && qp_type == QpType::Gsi {
            return Err(of_type(Reason::NotPermitted));
        }
        let cap = QpCap {
            max_send_wr: base.max_send_wr,
            max_recv_wr: base.max_recv_wr,
            max_send_sge: base.max_send_sge,
            max_recv_sge: base.max_recv_sge,
            max_inline_data: base.max_inline_data,
        };
        self.check_cap(&cap)?;
        let pd = self.use_pd(base.pdn)?;
        let send_cq = self.objects.cqs.find(What::SendCqn, base.send_cqn)?;
        let recv_cq = self.objects.cqs.find(What::RecvCqn, base.recv_cqn)?;
        let srq = self.srq_of(base, qp_type, &cap)?;
        let Queues { reserved, sq, rq } = queues(qp_type, &cap)?;
        let init = QpInit {
            qp_type,
            user,
            blocks_loopback,
            signal_all: sig_type == SigType::All,
            cap,
            cookie,
            order: match qp_type {
                QpType::Gsi => 0,
                _ => self.created_qps.load(Ordering::Relaxed).saturating_add(1),
            },
            doorbell_page,
            pd,
            send_cq,
            recv_cq,
            sq,
            rq,
            srq,
        };
        let qp = Qp::new(self.budget(), reserved.number(), init)?;
        // Commands are executed one after the other.
        let order = qp.init.order.max(self.created_qps.load(Ordering::Relaxed));
        self.created_qps.store(order, Ordering::Relaxed);
        qp.note(self, Kind::Created, qp_type.value().into(), 0);
        Ok(RspCreateQp {
            qpn: reserved.insert(Arc::new(qp)),
        })
    }

    /// Refuses capabilities beyond the limits, except for numbers of work requests, which the rings
    /// limit.
    pub(crate) fn check_cap(&self, cap: &QpCap) -> Result<()> {
        let limits = &self.config().limits;
        at_most(What::MaxSendSge, cap.max_send_sge, limits.max_sge)?;
        at_most(What::MaxRecvSge, cap.max_recv_sge, limits.max_sge)?;
        let most = limits.max_inline_data;
        at_most(What::MaxInlineData, cap.max_inline_data, most)
    }

    /// The SRQ from which a new QP takes its receives, if the command names one.
    fn srq_of(&self, base: &CmdCreateQp, qp_type: QpType, cap: &QpCap) -> Result<Option<Arc<Srq>>> {
        if !base.flags.contains(CreateFlags::SRQ) {
            let srqn = base.srqn;
            let is_none = srqn == Srqn::NONE;
            require(is_none, Reason::NotSelected, What::Srqn, srqn.get())?;
            return Ok(None);
        }
        self.check_flag(base, CreateFlags::SRQ, Feature::Srq)?;
        let takes_srq = qp_type != QpType::Gsi;
        require(takes_srq, Reason::Unsuitable, What::QpType, base.qp_type)?;
        exactly(What::MaxRecvWr, cap.max_recv_wr, 0u8)?;
        exactly(What::MaxRecvSge, cap.max_recv_sge, 0u8)?;
        self.srq(base.srqn).map(Some)
    }

    /// Refuses a flag that needs a feature.
    fn check_flag(&self, base: &CmdCreateQp, flag: CreateFlags, feature: Feature) -> Result<()> {
        let without = if self.has_feature(feature) { 0 } else { flag.0 };
        bits(What::Flags, base.flags.0, !without)
    }

    /// Refuses a queue for `max_wr` work requests, which `what` names, if they are more than
    /// `limit` or than slots of the ring.
    pub(super) fn check_max_wr(what: What, max_wr: u32, ring: &RingAddr, limit: u32) -> Result<()> {
        at_most(what, max_wr, limit.next_power_of_two())?;
        at_most(what, max_wr, ring.slots)
    }

    /// Maps the ring of a queue of at most `limit` work requests, whose WQEs have up to `wqe`
    /// bytes.
    pub(super) fn work_ring(
        &self,
        kind: RingKind,
        ring: &RingAddr,
        limit: u32,
        wqe: usize,
    ) -> Result<RingMem> {
        at_most(What::Slots, ring.slots, limit.next_power_of_two())?;
        let ring = RingMem::new(self.budget(), &self.space, kind, ring)?;
        let needed = wqe.next_power_of_two().trailing_zeros();
        at_least(What::SlotShift, ring.layout().slot_shift(), needed)?;
        Ok(ring)
    }

    pub(super) fn modify_qp(&self, cmd: CmdModifyQp) -> Result<Empty> {
        let qp = self.objects.qps.find(What::Qpn, cmd.qpn)?;
        qp.modify(self, cmd.attr_mask, &cmd.attrs)?;
        Ok(DONE)
    }

    pub(super) fn set_rate_limit(&self, cmd: CmdSetRateLimit) -> Result<Empty> {
        reserved(&cmd.reserved)?;
        let qp = self.objects.qps.find(What::Qpn, cmd.qpn)?;
        let packet = cmd.typical_packet_size;
        qp.set_rate_limit(self, cmd.rate_limit, cmd.max_burst_size, packet)?;
        Ok(DONE)
    }

    /// Returns all attributes, whatever the attribute mask of the command.
    pub(super) fn query_qp(&self, cmd: CmdQueryQp) -> Result<RspQueryQp> {
        let qp = self.objects.qps.find(What::Qpn, cmd.qpn)?;
        Ok(RspQueryQp { attr: qp.query()? })
    }

    pub(super) fn destroy_qp_command(&self, cmd: CmdDestroyQp) -> Result<Empty> {
        let qp = self.objects.qps.find(What::Qpn, cmd.qpn)?;
        qp.send_last(self);
        self.destroy_qp(&qp);
        qp.let_completions_go(self);
        qp.note(self, Kind::Destroyed, 0, 0);
        Ok(DONE)
    }
}
