// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! ADD_GID, DEL_GID.

use virtio_rdma_abi::ctrl::{CmdAddGid, CmdAddGidVlan, CmdDelGid, Empty};
use virtio_rdma_abi::ib::{GidType, MAX_VLAN, NO_VLAN};

use super::{require_port, DONE};
use crate::error::{require, Errno, Result};
use crate::gid::Address;
use crate::Device;

impl Device {
    pub(super) fn add_gid(&self, cmd: CmdAddGid) -> Result<Empty> {
        self.add_gid_vlan(CmdAddGidVlan {
            base: cmd,
            vlan: NO_VLAN,
        })
    }

    pub(super) fn add_gid_vlan(&self, cmd: CmdAddGidVlan) -> Result<Empty> {
        let CmdAddGidVlan { base: cmd, vlan } = cmd;
        require_port(cmd.port_num)?;
        require(vlan <= MAX_VLAN || vlan == NO_VLAN)?;
        let address = Address {
            gid: cmd.gid,
            // As in packets, VLAN 0 is none.
            vlan: Some(vlan).filter(|id| !matches!(*id, 0 | NO_VLAN)),
        };
        match GidType::try_from(cmd.gid_type) {
            Ok(GidType::RoceV2) => self.gids.add(cmd.index, address)?,
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
