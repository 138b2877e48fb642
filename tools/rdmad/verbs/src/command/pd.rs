// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! CREATE_PD, DESTROY_PD.

use std::sync::Arc;

use virtio_rdma_abi::ctrl::{CmdDestroyPd, Empty, RspCreatePd};
use virtio_rdma_abi::number::Pdn;

use super::DONE;
use crate::error::{Errno, Result};
use crate::pd::{Pd, PdUse};
use crate::Hca;

impl Hca {
    pub(super) fn create_pd(&self) -> Result<RspCreatePd> {
        let reserved = self.pds.reserve().ok_or(Errno::NOMEM)?;
        let pd = Pd::new(reserved.number(), self.charge::<Pd>()?);
        Ok(RspCreatePd {
            pdn: reserved.insert(Arc::new(pd)),
        })
    }

    pub(super) fn destroy_pd(&self, cmd: CmdDestroyPd) -> Result<Empty> {
        let pd = self.pds.get(cmd.pdn).ok_or(Errno::INVAL)?;
        if pd.in_use() {
            return Err(Errno::BUSY);
        }
        self.pds.remove(cmd.pdn);
        self.pds.release(cmd.pdn);
        Ok(DONE)
    }

    /// Registers a use of PD `pdn`, which keeps the PD from being destroyed.
    pub(super) fn use_pd(&self, pdn: Pdn) -> Result<PdUse> {
        self.pds.get(pdn).map(PdUse::new).ok_or(Errno::INVAL)
    }
}
