// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! ADD_GID, DEL_GID.

use virtio_rdma_abi::ctrl::{CmdAddGid, CmdDelGid, Empty};
use virtio_rdma_abi::ib::GidType;

use super::{require_port, DONE};
use crate::error::{Errno, Result};
use crate::Device;

impl Device {
    pub(super) fn add_gid(&self, cmd: CmdAddGid) -> Result<Empty> {
        require_port(cmd.port_num)?;
        match GidType::try_from(cmd.gid_type) {
            Ok(GidType::RoceV2) => self.gids.add(cmd.index, cmd.gid)?,
            Ok(GidType::RoceV1) => return Err(Errno::OPNOTSUPP),
            Err(_) => return Err(Errno::INVAL),
        }
        Ok(DONE)
    }

    pub(super) fn del_gid(&self, cmd: CmdDelGid) -> Result<Empty> {
        require_port(cmd.port)?;
        self.gids.delete(cmd.index)?;
        Ok(DONE)
    }
}
