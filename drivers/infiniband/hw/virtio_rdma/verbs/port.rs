// SPDX-License-Identifier: GPL-2.0

//! The port: its state, P_Keys and GIDs.

use super::{
    device::IbDevice,
    port_state, //
};
use crate::{
    abi::{
        ctrl::{
            CmdAddGid,
            CmdAddGidVlan,
            CmdDelGid,
            CmdQueryPkey,
            CmdQueryPort,
            RspQueryPort, //
        },
        feature::Feature,
        ib::{
            self,
            Mtu,
            PortPhysState,
            PortState, //
        }, //
    },
    ctrl::Failure,
    decode,
    device::Device,
    rdma::{
        self,
        gid::{
            GidEntry,
            GidTable,
            GidType, //
        },
        port::{
            PortAttr,
            PortImmutable,
            Ports,
            Protocol, //
        }, //
    }, //
};
use kernel::prelude::*;

assert_same! {
    PortState::Nop => ib_port_state_IB_PORT_NOP,
    PortState::Down => ib_port_state_IB_PORT_DOWN,
    PortState::Init => ib_port_state_IB_PORT_INIT,
    PortState::Armed => ib_port_state_IB_PORT_ARMED,
    PortState::Active => ib_port_state_IB_PORT_ACTIVE,
    PortState::ActiveDefer => ib_port_state_IB_PORT_ACTIVE_DEFER,
    PortPhysState::Sleep => ib_port_phys_state_IB_PORT_PHYS_STATE_SLEEP,
    PortPhysState::Polling => ib_port_phys_state_IB_PORT_PHYS_STATE_POLLING,
    PortPhysState::Disabled => ib_port_phys_state_IB_PORT_PHYS_STATE_DISABLED,
    PortPhysState::Training => ib_port_phys_state_IB_PORT_PHYS_STATE_PORT_CONFIGURATION_TRAINING,
    PortPhysState::LinkUp => ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP,
    PortPhysState::ErrorRecovery => ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_ERROR_RECOVERY,
    PortPhysState::Test => ib_port_phys_state_IB_PORT_PHYS_STATE_PHY_TEST,
    Mtu::Mtu256 => ib_mtu_IB_MTU_256,
    Mtu::Mtu512 => ib_mtu_IB_MTU_512,
    Mtu::Mtu1024 => ib_mtu_IB_MTU_1024,
    Mtu::Mtu2048 => ib_mtu_IB_MTU_2048,
    Mtu::Mtu4096 => ib_mtu_IB_MTU_4096,
    ib::PortSpeed::Sdr => ib_port_speed_IB_SPEED_SDR,
    ib::PortSpeed::Ddr => ib_port_speed_IB_SPEED_DDR,
    ib::PortSpeed::Qdr => ib_port_speed_IB_SPEED_QDR,
    ib::PortSpeed::Fdr10 => ib_port_speed_IB_SPEED_FDR10,
    ib::PortSpeed::Fdr => ib_port_speed_IB_SPEED_FDR,
    ib::PortSpeed::Edr => ib_port_speed_IB_SPEED_EDR,
    ib::PortSpeed::Hdr => ib_port_speed_IB_SPEED_HDR,
    ib::PortSpeed::Ndr => ib_port_speed_IB_SPEED_NDR,
    ib::PortWidth::X1 => ib_port_width_IB_WIDTH_1X,
    ib::PortWidth::X2 => ib_port_width_IB_WIDTH_2X,
    ib::PortWidth::X4 => ib_port_width_IB_WIDTH_4X,
    ib::PortWidth::X8 => ib_port_width_IB_WIDTH_8X,
    ib::PortWidth::X12 => ib_port_width_IB_WIDTH_12X,
    ib::PortCaps::CM_SUP.0 => ib_uverbs_query_port_cap_flags_IB_UVERBS_PCF_CM_SUP,
}

/// Checks that the device has this port (`EINVAL` otherwise), and narrows its number to a byte.
pub(super) fn check_port(port: u32) -> Result<u8> {
    match u8::try_from(port) {
        Ok(ib::PORT) => Ok(ib::PORT),
        _ => Err(EINVAL),
    }
}

/// Queries the port's attributes from the device.
///
/// # Errors
///
/// `EIO` for values that the verbs do not define; the errors of the command.
pub(super) fn ask(device: &Device) -> Result<RspQueryPort> {
    let response = device.ctrl().exec(&CmdQueryPort { port: ib::PORT })?;
    decode::port::check(&response).map_err(|_| EIO)
}

impl Ports for IbDevice {
    /// Attributes of the port as the device reports them, with state and MTU limited by the network
    /// device.
    fn query_port(this: &rdma::Device<Self>, port: u32) -> Result<PortAttr> {
        check_port(port)?;
        // Errors are ignored: if the device does not answer, the query below fails too.
        let _ = port_state::tell(this);
        let mut response = match ask(&this.virtio) {
            Err(_) if !this.virtio.lifecycle().is_working() => RspQueryPort {
                state: PortState::Down.value(),
                ..this.port
            },
            response => response?,
        };
        let netdev = this.netdev(port);
        match &netdev {
            Some(netdev) if netdev.is_up() => {
                let mtu = Mtu::within(netdev.mtu());
                response.active_mtu = response.active_mtu.min(mtu.value());
            }
            _ => response.state = PortState::Down.value(),
        }
        if response.state == PortState::Down.value() {
            response.phys_state = PortPhysState::Disabled.value();
        }
        Ok(PortAttr {
            state: response.state.into(),
            phys_state: response.phys_state,
            max_mtu: response.max_mtu.into(),
            active_mtu: response.active_mtu.into(),
            phys_mtu: netdev.map_or(response.phys_mtu, |netdev| netdev.mtu()),
            gid_tbl_len: response.gid_tbl_len,
            pkey_tbl_len: response.pkey_tbl_len,
            port_cap_flags: response.port_cap_flags.0,
            max_msg_sz: response.max_msg_sz,
            bad_pkey_cntr: response.bad_pkey_cntr,
            qkey_viol_cntr: response.qkey_viol_cntr,
            active_width: response.active_width,
            active_speed: response.active_speed,
        })
    }

    /// Properties of the port that never change.
    fn port_immutable(this: &rdma::Device<Self>, port: u32) -> Result<PortImmutable> {
        check_port(port)?;
        Ok(PortImmutable {
            pkey_tbl_len: this.port.pkey_tbl_len.into(),
            gid_tbl_len: this.port.gid_tbl_len,
            protocol: Protocol::RoceV2,
        })
    }

    /// An entry of the P_Key table.
    fn query_pkey(this: &rdma::Device<Self>, port: u32, index: u16) -> Result<u16> {
        let port = check_port(port)?.into();
        let response = this.virtio.ctrl().exec(&CmdQueryPkey { port, index })?;
        Ok(response.pkey)
    }
}

impl GidTable for IbDevice {
    fn add_gid(this: &rdma::Device<Self>, gid: &GidEntry<'_>) -> Result {
        let base = CmdAddGid {
            gid: gid.gid(),
            gid_type: match gid.gid_type()? {
                GidType::Ib => ib::GidType::RoceV1,
                GidType::RoceV2 => ib::GidType::RoceV2,
            }
            .value(),
            index: gid.index(),
            port_num: gid.port(),
        };
        let (vlan, device) = (gid.vlan()?, &this.virtio);
        if device.limits().has(Feature::GidVlan) {
            let vlan = vlan.unwrap_or(ib::NO_VLAN);
            let request = CmdAddGidVlan { base, vlan };
            this.gids.add(device, gid.index(), &request)
        } else if vlan.is_none() {
            this.gids.add(device, gid.index(), &base)
        } else {
            // The device sends and receives packets without a VLAN tag only.
            Err(EOPNOTSUPP)
        }
    }

    fn delete_gid(this: &rdma::Device<Self>, gid: &GidEntry<'_>) -> Result {
        if !this.gids.await_answer(&this.virtio, gid.index()) {
            return Ok(());
        }
        let request = CmdDelGid {
            index: gid.index(),
            port: gid.port(),
        };
        match this.virtio.ctrl().exec(&request) {
            // A failing device may keep the GID: no client uses its packets any more.
            Ok(_) | Err(Failure::NoAnswer) => Ok(()),
            Err(failure) => Err(failure.into()),
        }
    }
}
