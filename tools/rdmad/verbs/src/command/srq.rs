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
use crate::error::{require, Errno, Result};
use crate::srq::{NewRing, Srq, SrqInit};
use crate::Hca;

impl Hca {
    pub(super) fn create_srq(&self, cmd: CmdCreateSrq) -> Result<RspCreateSrq> {
        let limits = &self.config().limits;
        require(cmd.flags.without(CreateFlags::USER) == CreateFlags::NONE)?;
        require(cmd.doorbell_page < limits.doorbell_pages)?;
        require(cmd.max_sge <= limits.max_sge)?;
        require((1..=limits.max_srq_wr).contains(&cmd.max_wr))?;
        let pd = self.use_pd(cmd.pdn)?;
        let wqe = rq_wqe_size(cmd.max_sge as usize);
        let ring = self.queue(
            RingKind::Shared,
            &cmd.ring,
            limits.max_srq_wr,
            cmd.max_wr,
            wqe,
        )?;
        let reserved = self.srqs.reserve().ok_or(Errno::NOMEM)?;
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
        require(!mask.has_unknown())?;
        let ring = if mask.contains(SrqAttrMask::MAX_WR) {
            let limit = self.config().limits.max_srq_wr;
            require((1..=limit).contains(&cmd.max_wr))?;
            let max_wr = cmd.max_wr;
            let wqe = srq.max_wqe();
            let ring = self.queue(RingKind::Shared, &cmd.ring, limit, max_wr, wqe)?;
            Some(NewRing { max_wr, ring })
        } else {
            require(cmd.max_wr == 0 && cmd.ring == RingAddr::ZERO)?;
            None
        };
        require(mask.contains(SrqAttrMask::LIMIT) || cmd.limit == 0)?;
        let limit = mask.contains(SrqAttrMask::LIMIT).then_some(cmd.limit);
        srq.modify(self, ring, limit)?;
        Ok(DONE)
    }

    pub(super) fn query_srq(&self, cmd: CmdQuerySrq) -> Result<RspQuerySrq> {
        Ok(self.srq(cmd.srqn)?.query())
    }

    pub(super) fn destroy_srq_command(&self, cmd: CmdDestroySrq) -> Result<Empty> {
        let srq = self.srq(cmd.srqn)?;
        if srq.users.any() {
            return Err(Errno::BUSY);
        }
        self.destroy_srq(&srq);
        Ok(DONE)
    }

    /// SRQ `srqn`, or `EINVAL`.
    pub(super) fn srq(&self, srqn: Srqn) -> Result<Arc<Srq>> {
        self.srqs.get(srqn).ok_or(Errno::INVAL)
    }
}
