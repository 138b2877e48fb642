// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! CREATE_PD, DESTROY_PD.

use std::sync::Arc;

use virtio_rdma_abi::ctrl::{CmdDestroyPd, Empty, RspCreatePd};
use virtio_rdma_abi::number::Pdn;

use super::DONE;
use crate::error::{in_use, Result, What};
use crate::pd::{Pd, PdUse};
use crate::Hca;

impl Hca {
    pub(super) fn create_pd(&self) -> Result<RspCreatePd> {
        let reserved = self.objects.pds.number(What::Pdn)?;
        let pd = Pd::new(reserved.number(), self.charge::<Pd>()?);
        Ok(RspCreatePd {
            pdn: reserved.insert(Arc::new(pd)),
        })
    }

    pub(super) fn destroy_pd(&self, cmd: CmdDestroyPd) -> Result<Empty> {
        let pd = self.objects.pds.find(What::Pdn, cmd.pdn)?;
        if pd.in_use() {
            return Err(in_use(What::Pdn, cmd.pdn));
        }
        self.objects.pds.remove(cmd.pdn);
        self.objects.pds.release(cmd.pdn);
        Ok(DONE)
    }

    /// Registers a use of PD `pdn`, which keeps the PD from being destroyed.
    pub(crate) fn use_pd(&self, pdn: Pdn) -> Result<PdUse> {
        self.objects.pds.find(What::Pdn, pdn).map(PdUse::new)
    }
}
