// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! ATTACH_MCAST, DETACH_MCAST.

use virtio_rdma_abi::ctrl::{CmdAttachMcast, CmdDetachMcast, Empty};
use virtio_rdma_abi::ib::QpType;

use super::DONE;
use crate::error::{require, Errno, Result};
use crate::Hca;

impl Hca {
    pub(super) fn attach_mcast(&self, cmd: CmdAttachMcast) -> Result<Empty> {
        let qp = self.qps.get(cmd.qpn).ok_or(Errno::INVAL)?;
        // Management datagrams, on the GSI QP, are never multicast.
        require(qp.init.qp_type == QpType::Ud)?;
        self.attach_to(cmd.mgid, cmd.qpn)?;
        Ok(DONE)
    }

    pub(super) fn detach_mcast(&self, cmd: CmdDetachMcast) -> Result<Empty> {
        self.detach_from(cmd.mgid, cmd.qpn)?;
        Ok(DONE)
    }
}
