// SPDX-License-Identifier: GPL-2.0

//! Multicast groups.
//!
//! The device delivers datagrams of a group to the QPs that are attached. Joining the group on the
//! Ethernet, so that frames reach the port, is up to the connection manager and the network device.

use super::device::IbDevice;
use crate::{
    abi::ctrl::{
        CmdAttachMcast,
        CmdDetachMcast, //
    },
    rdma::{
        multicast::MulticastGroups,
        qp::Qp, //
    }, //
};
use kernel::prelude::*;

impl MulticastGroups for IbDevice {
    fn attach(qp: &Qp<Self>, group: &[u8; 16]) -> Result {
        let request = CmdAttachMcast {
            qpn: qp.number(),
            mgid: *group,
        };
        super::create(&qp.device().virtio, &request, ()).map(|_| ())
    }

    /// Always succeeds: otherwise the core could not destroy the QP. If the device does not answer,
    /// the destruction of the QP waits until it has stopped.
    fn detach(qp: &Qp<Self>, group: &[u8; 16]) -> Result {
        let request = CmdDetachMcast {
            qpn: qp.number(),
            mgid: *group,
        };
        super::destroy(&qp.device().virtio, &request, ());
        Ok(())
    }
}
