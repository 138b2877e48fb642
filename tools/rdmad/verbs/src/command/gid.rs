// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! ADD_GID, DEL_GID.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use roce::net::{gid_to_ip, ip_to_gid};
use virtio_rdma_abi::ctrl::{CmdAddGid, CmdAddGidVlan, CmdDelGid, Empty};
use virtio_rdma_abi::ib::{GidType, MAX_VLAN, NO_VLAN};

use super::{require_port, DONE};
use crate::error::{at_most, defined, refusal, Reason, Refusal, Result, What};
use crate::gid::Address;
use crate::Hca;

impl Hca {
    pub(super) fn add_gid(&self, cmd: CmdAddGid) -> Result<Empty> {
        self.add_gid_vlan(CmdAddGidVlan {
            base: cmd,
            vlan: NO_VLAN,
        })
    }

    pub(super) fn add_gid_vlan(&self, cmd: CmdAddGidVlan) -> Result<Empty> {
        let CmdAddGidVlan { base: cmd, vlan } = cmd;
        require_port(cmd.port_num)?;
        if vlan != NO_VLAN {
            at_most(What::Vlan, vlan, MAX_VLAN)?;
        }
        let address = Address {
            gid: cmd.gid,
            // VLAN id 0 means untagged, as in packets.
            vlan: Some(vlan).filter(|id| !matches!(*id, 0 | NO_VLAN)),
        };
        match defined(What::GidType, cmd.gid_type)? {
            GidType::RoceV2 => self.set_gid(cmd.index, address)?,
            GidType::RoceV1 => {
                return Err(refusal(Reason::NotSupported, What::GidType, cmd.gid_type))
            }
        }
        Ok(DONE)
    }

    pub(super) fn del_gid(&self, cmd: CmdDelGid) -> Result<Empty> {
        require_port(cmd.port)?;
        if let Some(address) = self.objects.gids.delete(cmd.index)? {
            self.runtime().address_leases.release(self.port(), address);
        }
        Ok(DONE)
    }

    /// Sets entry `index` of the GID table to `address`, if the port may use that address.
    pub(crate) fn set_gid(&self, index: u16, address: Address) -> Result<()> {
        let address_leases = &self.runtime().address_leases;
        let restricted = !self.config().addresses.is_empty();
        let now = self.runtime().scheduler.clock.now();
        if let Err(refusal) = address_leases.lease(self.port(), address, restricted, now) {
            self.gid_refused(address, &refusal);
            return Err(refusal);
        }
        let added = self.objects.gids.add(index, address);
        if added.is_err() {
            address_leases.release(self.port(), address);
        }
        added
    }

    /// Refuses a source address that the port may not use.
    pub(crate) fn may_send_from(&self, address: IpAddr) -> Result<()> {
        let restricted = !self.config().addresses.is_empty();
        let leases = &self.runtime().address_leases;
        leases.permits(self.port(), ip_to_gid(address), restricted)
    }

    /// Counts an address that was refused to the port, and logs some of the refusals.
    fn gid_refused(&self, address: Address, refusal: &Refusal) {
        let count = 1 + self.refused_gids.fetch_add(1, Ordering::Relaxed);
        // Log at powers of two: the guest may retry indefinitely.
        if !count.is_power_of_two() {
            return;
        }
        let [a, b, c, d, e, f] = self.mac();
        let reason = match refusal.reason {
            Reason::OtherPort => "another port has it: release it there, or give it here by ip=",
            _ => "it was not given to this port: add it by ip=",
        };
        tracing::warn!(
            vlan = ?address.vlan,
            count,
            "port {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}: address {} refused: {reason}",
            gid_to_ip(address.gid),
        );
    }
}
