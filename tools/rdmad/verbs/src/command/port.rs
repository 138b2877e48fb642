// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! QUERY_PORT, SET_PORT, QUERY_PKEY.

use std::sync::atomic::Ordering;

use virtio_rdma_abi::ctrl::{
    CmdQueryPkey, CmdQueryPort, CmdSetPort, Empty, RspQueryPkey, RspQueryPort,
};
use virtio_rdma_abi::ib::{Mtu, PortCaps, PortPhysState, PortState, DEFAULT_PKEY};
use virtio_rdma_abi::wire::Wire;

use super::{require_port, DONE};
use crate::error::{at_most, defined, refusal, Reason, Result, What};
use crate::Hca;

/// Entries of the P_Key table: only the default partition.
const PKEYS: u16 = 1;

impl Hca {
    pub(super) fn query_port(&self, cmd: CmdQueryPort) -> Result<RspQueryPort> {
        require_port(cmd.port)?;
        let (state, phys_state) = if self.link_is_up() {
            (PortState::Active, PortPhysState::LinkUp)
        } else {
            (PortState::Down, PortPhysState::Disabled)
        };
        let config = self.config();
        Ok(RspQueryPort {
            state: state.value(),
            max_mtu: Mtu::Mtu4096.value(),
            active_mtu: self.path_mtu().value(),
            phys_mtu: config.mtu,
            port_cap_flags: PortCaps::CM_SUP,
            gid_tbl_len: config.limits.max_gids.into(),
            max_msg_sz: roce::work::MAX_MESSAGE,
            bad_pkey_cntr: self.violations.pkey.load(Ordering::Relaxed),
            qkey_viol_cntr: self.violations.qkey.load(Ordering::Relaxed),
            pkey_tbl_len: PKEYS,
            active_width: config.speed.width.value(),
            active_speed: config.speed.speed.value(),
            phys_state: phys_state.value(),
            ..RspQueryPort::ZERO
        })
    }

    /// Takes over state and MTU of the guest's network device. On return no turn uses the former
    /// ones any more.
    pub(super) fn set_port(&self, cmd: CmdSetPort) -> Result<Empty> {
        require_port(cmd.port)?;
        let up = match defined(What::PortState, cmd.state)? {
            PortState::Active => true,
            PortState::Down => false,
            _ => return Err(refusal(Reason::Unsuitable, What::PortState, cmd.state)),
        };
        self.link.set_netdev(up, cmd.mtu);
        self.runtime().scheduler.quiesce.synchronize();
        Ok(DONE)
    }

    pub(super) fn query_pkey(&self, cmd: CmdQueryPkey) -> Result<RspQueryPkey> {
        require_port(cmd.port)?;
        at_most(What::Index, cmd.index, PKEYS - 1)?;
        Ok(RspQueryPkey { pkey: DEFAULT_PKEY })
    }
}
