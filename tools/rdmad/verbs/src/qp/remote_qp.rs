// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The QP at the other end of a connection, and which packets are its.

use roce::net::{Addresses, Mac};
use roce::Connection;
use virtio_rdma_abi::number::Qpn;

use crate::gid::vlan_of;
use crate::runtime::SharedRuntime;
use crate::wire::Arrived;

/// The peer that a QP is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteQp {
    mac: Mac,
    qpn: Qpn,
    /// From us to the peer.
    addresses: Addresses,
    vlan: Option<u16>,
}

impl RemoteQp {
    /// The peer that `connection` leads to.
    pub(super) fn of(connection: &Connection) -> Self {
        Self {
            mac: connection.path.dst_mac,
            qpn: connection.dest_qpn,
            addresses: connection.path.addresses,
            vlan: vlan_of(connection.path.vlan),
        }
    }

    /// Our end of a connection as the QP at its other end should name it, if we are `qpn` at `mac`.
    pub(crate) fn us(mac: Mac, qpn: Qpn, connection: &Connection) -> Option<Self> {
        let addresses = &connection.path.addresses;
        Some(Self {
            mac,
            qpn,
            addresses: Addresses::new(addresses.dst(), addresses.src())?,
            vlan: vlan_of(connection.path.vlan),
        })
    }

    /// Whether a packet comes from the peer, as far as its addresses tell.
    ///
    /// The switch vouches for MAC addresses, not for IP addresses. A port of this process is known
    /// by its MAC address alone. So is a host behind an uplink, unless the uplink has routers,
    /// which put their own address into what they forward.
    pub(super) fn sent(&self, arrived: &Arrived<'_>, runtime: &SharedRuntime) -> bool {
        let path = &arrived.packet.path;
        self.addresses.src() == path.addresses.dst()
            && self.addresses.dst() == path.addresses.src()
            && self.vlan == vlan_of(path.vlan)
            && (self.mac == path.src_mac || (arrived.is_routed && !runtime.has_port(self.mac)))
    }
}
