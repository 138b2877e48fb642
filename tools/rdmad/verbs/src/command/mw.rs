// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! ALLOC_MW, DEALLOC_MW.

use virtio_rdma_abi::ctrl::{CmdAllocMw, CmdDeallocMw, Empty, RspAllocMw};
use virtio_rdma_abi::ib::MwType;

use super::DONE;
use crate::error::{defined, no_such, reserved, Result, What};
use crate::Hca;

impl Hca {
    pub(super) fn alloc_mw(&self, cmd: CmdAllocMw) -> Result<RspAllocMw> {
        reserved(&cmd.reserved)?;
        let mw_type: MwType = defined(What::MwType, cmd.mw_type)?;
        let pd = self.use_pd(cmd.pdn)?;
        let (mwn, rkey) = self.objects.mrs.windows().insert(pd, mw_type)?;
        Ok(RspAllocMw { mwn, rkey })
    }

    pub(super) fn dealloc_mw(&self, cmd: CmdDeallocMw) -> Result<Empty> {
        if self.destroy_mw(cmd.mwn) {
            Ok(DONE)
        } else {
            Err(no_such(What::Mwn, cmd.mwn))
        }
    }
}
