// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! ATTACH_MCAST, DETACH_MCAST.

use virtio_rdma_abi::ctrl::{CmdAttachMcast, CmdDetachMcast, Empty};
use virtio_rdma_abi::ib::QpType;
use virtio_rdma_abi::number::Qpn;

use super::DONE;
use crate::error::{exactly, Result, What};
use crate::gid::Gid;
use crate::Hca;

impl Hca {
    pub(super) fn attach_mcast(&self, cmd: CmdAttachMcast) -> Result<Empty> {
        self.attach_qp(cmd.mgid, cmd.qpn)?;
        Ok(DONE)
    }

    /// Attaches QP `qpn` to a group.
    pub(crate) fn attach_qp(&self, mgid: Gid, qpn: Qpn) -> Result<()> {
        let qp = self.objects.qps.find(What::Qpn, qpn)?;
        // Management datagrams, on the GSI QP, are never multicast.
        exactly(What::QpType, qp.init.qp_type.value(), QpType::Ud.value())?;
        self.attach_to(mgid, qpn)
    }

    pub(super) fn detach_mcast(&self, cmd: CmdDetachMcast) -> Result<Empty> {
        self.detach_from(cmd.mgid, cmd.qpn)?;
        Ok(DONE)
    }
}
