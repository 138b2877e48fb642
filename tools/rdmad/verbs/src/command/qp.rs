// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! CREATE_QP, MODIFY_QP, QUERY_QP, DESTROY_QP.

use std::sync::Arc;

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
use crate::error::{require, Errno, Result};
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
        require(cmd.doorbell_page < self.config().limits.doorbell_pages)?;
        let queues = |qp_type, cap: &QpCap| {
            let limit = self.config().limits.max_qp_wr;
            let queue = |ring: &RingAddr, max_wr, wqe| {
                if *ring == RingAddr::ZERO && max_wr == 0 {
                    return Ok(QueueMem::Absent);
                }
                self.queue(RingKind::Work, ring, limit, max_wr, wqe)
                    .map(QueueMem::Own)
            };
            let sq = queue(&cmd.sq, cap.max_send_wr, max_sq_wqe(cap))?;
            let rq = queue(&cmd.rq, cap.max_recv_wr, max_rq_wqe(cap))?;
            let reserved = self.number(qp_type, || self.qps.reserve())?;
            Ok(Queues { reserved, sq, rq })
        };
        self.create_qp(&cmd.base, queues, cmd.doorbell_page, cmd.cookie)
    }

    /// Creates a QP in virtqueue mode: its queues are virtqueues of the device.
    pub(super) fn create_qp_virtqueues(&self, cmd: CmdCreateQp) -> Result<RspCreateQp> {
        let limits = self.config().limits.virtqueue_mode();
        let queues = |qp_type, cap: &QpCap| {
            require(cap.max_send_wr <= limits.max_qp_wr && cap.max_recv_wr <= limits.max_qp_wr)?;
            let virtqueues = self.assigned_virtqueues();
            let numbers = virtqueues.numbers();
            let usable = |qpn| {
                virtqueues.is_usable(numbers.sq(qpn)) && virtqueues.is_usable(numbers.rq(qpn))
            };
            let reserved = self.number(qp_type, || {
                self.qps.reserve_below(limits.max_qp + 1, usable)
            })?;
            if !usable(reserved.number()) {
                return Err(Errno::NOMEM);
            }
            let take = |queue| virtqueues.take(queue).map(QueueMem::Virtqueue);
            let sq = take(numbers.sq(reserved.number()))?;
            let rq = take(numbers.rq(reserved.number()))?;
            Ok(Queues { reserved, sq, rq })
        };
        self.create_qp(&cmd, queues, NO_DOORBELL_PAGE, 0)
    }

    /// Reserves a QPN for a QP of `qp_type`: QPN 1 for the GSI QP, else the number that `common`
    /// reserves.
    fn number<'a>(
        &'a self,
        qp_type: QpType,
        common: impl FnOnce() -> Option<Reserved<'a, Qpn, Qp>>,
    ) -> Result<Reserved<'a, Qpn, Qp>> {
        match qp_type {
            QpType::Gsi => self.qps.claim(GSI_QPN).ok_or(Errno::EXIST),
            _ => common().ok_or(Errno::NOMEM),
        }
    }

    fn create_qp<'a>(
        &self,
        base: &CmdCreateQp,
        queues: impl FnOnce(QpType, &QpCap) -> Result<Queues<'a>>,
        doorbell_page: u32,
        cookie: u64,
    ) -> Result<RspCreateQp> {
        let qp_type = QpType::try_from(base.qp_type).map_err(|_| Errno::INVAL)?;
        // There are no subnet management packets on Ethernet.
        if qp_type == QpType::Smi {
            return Err(Errno::OPNOTSUPP);
        }
        let sig_type = SigType::try_from(base.sq_sig_type).map_err(|_| Errno::INVAL)?;
        require(!base.flags.has_unknown() && base.reserved == [0; 24])?;
        let user = base.flags.contains(CreateFlags::USER);
        let blocks_loopback = base.flags.contains(CreateFlags::BLOCK_MULTICAST_LOOPBACK);
        require(
            !blocks_loopback || (qp_type == QpType::Ud && self.has_feature(Feature::Multicast)),
        )?;
        if user && qp_type == QpType::Gsi {
            return Err(Errno::PERM);
        }
        let limits = &self.config().limits;
        let cap = QpCap {
            max_send_wr: base.max_send_wr,
            max_recv_wr: base.max_recv_wr,
            max_send_sge: base.max_send_sge,
            max_recv_sge: base.max_recv_sge,
            max_inline_data: base.max_inline_data,
        };
        require(cap.max_send_sge <= limits.max_sge && cap.max_recv_sge <= limits.max_sge)?;
        require(cap.max_inline_data <= limits.max_inline_data)?;
        let pd = self.use_pd(base.pdn)?;
        let send_cq = self.cqs.get(base.send_cqn).ok_or(Errno::INVAL)?;
        let recv_cq = self.cqs.get(base.recv_cqn).ok_or(Errno::INVAL)?;
        let srq = self.srq_of(base, qp_type, &cap)?;
        let Queues { reserved, sq, rq } = queues(qp_type, &cap)?;
        let init = QpInit {
            qp_type,
            user,
            blocks_loopback,
            signal_all: sig_type == SigType::All,
            cap,
            cookie,
            doorbell_page,
            pd,
            send_cq,
            recv_cq,
            sq,
            rq,
            srq,
        };
        let qp = Qp::new(self.budget(), reserved.number(), init)?;
        Ok(RspCreateQp {
            qpn: reserved.insert(Arc::new(qp)),
        })
    }

    /// The SRQ from which a new QP takes its receives, if the command names one.
    fn srq_of(&self, base: &CmdCreateQp, qp_type: QpType, cap: &QpCap) -> Result<Option<Arc<Srq>>> {
        if !base.flags.contains(CreateFlags::SRQ) {
            require(base.srqn == Srqn::NONE)?;
            return Ok(None);
        }
        require(self.has_feature(Feature::Srq) && qp_type != QpType::Gsi)?;
        require(cap.max_recv_wr == 0 && cap.max_recv_sge == 0)?;
        self.srq(base.srqn).map(Some)
    }

    /// Maps the ring of a queue for `max_wr` work requests (at most `limit`), whose WQEs have up to
    /// `wqe` bytes.
    pub(super) fn queue(
        &self,
        kind: RingKind,
        ring: &RingAddr,
        limit: u32,
        max_wr: u32,
        wqe: usize,
    ) -> Result<RingMem> {
        require(max_wr <= ring.slots && ring.slots <= limit.next_power_of_two())?;
        let ring = RingMem::new(self.budget(), &self.space, kind, ring)?;
        require(wqe <= ring.layout().slot_size() as usize)?;
        Ok(ring)
    }

    pub(super) fn modify_qp(&self, cmd: CmdModifyQp) -> Result<Empty> {
        let qp = self.qps.get(cmd.qpn).ok_or(Errno::INVAL)?;
        qp.modify(self, cmd.attr_mask, &cmd.attrs)?;
        Ok(DONE)
    }

    pub(super) fn set_rate_limit(&self, cmd: CmdSetRateLimit) -> Result<Empty> {
        require(cmd.reserved == [0; 2])?;
        let qp = self.qps.get(cmd.qpn).ok_or(Errno::INVAL)?;
        let packet = cmd.typical_packet_size;
        qp.set_rate_limit(self, cmd.rate_limit, cmd.max_burst_size, packet)?;
        Ok(DONE)
    }

    /// Returns all attributes, whatever the attribute mask of the command.
    pub(super) fn query_qp(&self, cmd: CmdQueryQp) -> Result<RspQueryQp> {
        let qp = self.qps.get(cmd.qpn).ok_or(Errno::INVAL)?;
        Ok(RspQueryQp { attr: qp.query()? })
    }

    pub(super) fn destroy_qp_command(&self, cmd: CmdDestroyQp) -> Result<Empty> {
        let qp = self.qps.get(cmd.qpn).ok_or(Errno::INVAL)?;
        qp.send_last(self);
        self.destroy_qp(&qp);
        Ok(DONE)
    }
}
