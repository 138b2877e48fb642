// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The peer QP of a connection, and the check whether a packet is from it.

use roce::net::{Addresses, Mac};
use roce::Connection;
use virtio_rdma_abi::number::Qpn;

use crate::gid::vlan_of;
use crate::runtime::SharedRuntime;
use crate::wire::Arrived;

/// The peer QP of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteQp {
    mac: Mac,
    qpn: Qpn,
    /// Addresses of the connection: the source is the local QP's, the destination the peer's.
    addresses: Addresses,
    vlan: Option<u16>,
}

impl RemoteQp {
    /// The peer of `connection`.
    pub(super) fn of(connection: &Connection) -> Self {
        Self {
            mac: connection.path.dst_mac,
            qpn: connection.dest_qpn,
            addresses: connection.path.addresses,
            vlan: vlan_of(connection.path.vlan),
        }
    }

    /// The remote QP of the peer of `connection`. This is the local QP `qpn` at `mac`, as the peer
    /// sees it.
    pub(crate) fn us(mac: Mac, qpn: Qpn, connection: &Connection) -> Option<Self> {
        let addresses = &connection.path.addresses;
        Some(Self {
            mac,
            qpn,
            addresses: Addresses::new(addresses.dst(), addresses.src())?,
            vlan: vlan_of(connection.path.vlan),
        })
    }

    /// Whether the addresses of a packet show that the peer sent it.
    ///
    /// The switch guarantees that ports of this process send only with their own MAC addresses, but
    /// it does not check IP addresses. So a port of this process is identified by its MAC address,
    /// which paths have in place of its further ones.
    /// A host behind an uplink is identified by its MAC address too, unless the uplink has routers,
    /// which replace the source MAC address of the frames that they forward.
    pub(super) fn sent(&self, arrived: &Arrived<'_>, runtime: &SharedRuntime) -> bool {
        let path = &arrived.packet.path;
        self.addresses.src() == path.addresses.dst()
            && self.addresses.dst() == path.addresses.src()
            && self.vlan == vlan_of(path.vlan)
            && (self.mac == path.src_mac || (arrived.is_routed && !runtime.has_port(self.mac)))
    }
}
