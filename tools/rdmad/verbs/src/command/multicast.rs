// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! ATTACH_MCAST, DETACH_MCAST.

use virtio_rdma_abi::ctrl::{CmdAttachMcast, CmdDetachMcast, Empty};
use virtio_rdma_abi::ib::QpType;

use super::DONE;
use crate::error::{exactly, Result, What};
use crate::Hca;

impl Hca {
    pub(super) fn attach_mcast(&self, cmd: CmdAttachMcast) -> Result<Empty> {
        let qp = self.objects.qps.find(What::Qpn, cmd.qpn)?;
        // Management datagrams, on the GSI QP, are never multicast.
        exactly(What::QpType, qp.init.qp_type.value(), QpType::Ud.value())?;
        self.attach_to(cmd.mgid, cmd.qpn)?;
        Ok(DONE)
    }

    pub(super) fn detach_mcast(&self, cmd: CmdDetachMcast) -> Result<Empty> {
        self.detach_from(cmd.mgid, cmd.qpn)?;
        Ok(DONE)
    }
}
