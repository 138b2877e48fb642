// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! ALLOC_MW, DEALLOC_MW.

use virtio_rdma_abi::ctrl::{CmdAllocMw, CmdDeallocMw, Empty, RspAllocMw};
use virtio_rdma_abi::ib::MwType;

use super::DONE;
use crate::error::{require, Errno, Result};
use crate::Hca;

impl Hca {
    pub(super) fn alloc_mw(&self, cmd: CmdAllocMw) -> Result<RspAllocMw> {
        require(cmd.reserved == [0; 3])?;
        let mw_type = MwType::try_from(cmd.mw_type).map_err(|_| Errno::INVAL)?;
        let pd = self.use_pd(cmd.pdn)?;
        let (mwn, rkey) = self.mrs.windows().insert(pd, mw_type)?;
        Ok(RspAllocMw { mwn, rkey })
    }

    pub(super) fn dealloc_mw(&self, cmd: CmdDeallocMw) -> Result<Empty> {
        require(self.destroy_mw(cmd.mwn))?;
        Ok(DONE)
    }
}
