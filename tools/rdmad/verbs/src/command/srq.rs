// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! CREATE_SRQ, MODIFY_SRQ, QUERY_SRQ, DESTROY_SRQ.

use std::sync::Arc;

use virtio_rdma_abi::ctrl::{
    CmdCreateSrq, CmdDestroySrq, CmdModifySrq, CmdQuerySrq, CreateFlags, Empty, RspCreateSrq,
    RspQuerySrq, SrqAttrMask,
};
use virtio_rdma_abi::number::Srqn;
use virtio_rdma_abi::ring::{RingAddr, RingKind};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::rq_wqe_size;

use super::DONE;
use crate::error::{at_most, bits, in_use, require, within, Reason, Result, What};
use crate::srq::{NewRing, Srq, SrqInit};
use crate::Hca;

/// Refuses a value for an attribute that is not in the mask.
fn not_given(what: What, value: u64, valid: bool) -> Result<()> {
    require(valid, Reason::NotSelected, what, value)
}

impl Hca {
    pub(super) fn create_srq(&self, cmd: CmdCreateSrq) -> Result<RspCreateSrq> {
        let limits = &self.config().limits;
        bits(What::Flags, cmd.flags.0, CreateFlags::USER.0)?;
        self.check_doorbell_page(cmd.doorbell_page)?;
        at_most(What::MaxSge, cmd.max_sge, limits.max_sge)?;
        within(What::MaxWr, cmd.max_wr, &(1..=limits.max_srq_wr))?;
        let pd = self.use_pd(cmd.pdn)?;
        let wqe = rq_wqe_size(cmd.max_sge as usize);
        let most = limits.max_srq_wr;
        Self::check_max_wr(What::MaxWr, cmd.max_wr, &cmd.ring, most)?;
        let ring = self.work_ring(RingKind::Shared, &cmd.ring, most, wqe)?;
        let reserved = self.objects.srqs.number(What::Srqn)?;
        let init = SrqInit {
            pd,
            cookie: cmd.cookie,
            max_wr: cmd.max_wr,
            max_sge: cmd.max_sge,
            ring,
            charge: self.charge::<Srq>()?,
        };
        let srq = Srq::new(reserved.number(), init);
        Ok(RspCreateSrq {
            srqn: reserved.insert(Arc::new(srq)),
        })
    }

    pub(super) fn modify_srq(&self, cmd: CmdModifySrq) -> Result<Empty> {
        let srq = self.srq(cmd.srqn)?;
        let mask = cmd.attr_mask;
        bits(What::AttrMask, mask.0, SrqAttrMask::ALL.0)?;
        let ring = if mask.contains(SrqAttrMask::MAX_WR) {
            let limit = self.config().limits.max_srq_wr;
            let max_wr = cmd.max_wr;
            within(What::MaxWr, max_wr, &(1..=limit))?;
            let wqe = srq.max_wqe();
            Self::check_max_wr(What::MaxWr, max_wr, &cmd.ring, limit)?;
            let ring = self.work_ring(RingKind::Shared, &cmd.ring, limit, wqe)?;
            Some(NewRing { max_wr, ring })
        } else {
            not_given(What::MaxWr, cmd.max_wr.into(), cmd.max_wr == 0)?;
            not_given(What::Ring, cmd.ring.pages, cmd.ring == RingAddr::ZERO)?;
            None
        };
        let has_limit = mask.contains(SrqAttrMask::LIMIT);
        not_given(What::Limit, cmd.limit.into(), has_limit || cmd.limit == 0)?;
        let limit = has_limit.then_some(cmd.limit);
        srq.modify(self, ring, limit)?;
        Ok(DONE)
    }

    pub(super) fn query_srq(&self, cmd: CmdQuerySrq) -> Result<RspQuerySrq> {
        Ok(self.srq(cmd.srqn)?.query())
    }

    pub(super) fn destroy_srq_command(&self, cmd: CmdDestroySrq) -> Result<Empty> {
        let srq = self.srq(cmd.srqn)?;
        if srq.users.any() {
            return Err(in_use(What::Srqn, cmd.srqn));
        }
        self.destroy_srq(&srq);
        Ok(DONE)
    }

    pub(crate) fn srq(&self, srqn: Srqn) -> Result<Arc<Srq>> {
        self.objects.srqs.find(What::Srqn, srqn)
    }
}
