// SPDX-License-Identifier: GPL-2.0

//! Multicast groups.
//!
//! The device delivers; whether frames to a group reach its port is between the network device,
//! which the connection manager has join the group, and the Ethernet.

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
        super::create(&qp.device().device, &request, ()).map(|_| ())
    }

    /// Always succeeds, as destroying does: a device that does not answer delivers nothing any
    /// more, and the core could not destroy the QP otherwise.
    fn detach(qp: &Qp<Self>, group: &[u8; 16]) -> Result {
        let request = CmdDetachMcast {
            qpn: qp.number(),
            mgid: *group,
        };
        super::destroy(&qp.device().device, &request, ());
        Ok(())
    }
}
