// SPDX-License-Identifier: GPL-2.0

//! Details of the driver's objects, which `rdma -dd resource show` prints after the core's details.

use super::device::IbDevice;
use crate::{
    device::{
        Device,
        Queues, //
    },
    rdma::{
        cq::Cq,
        mr::Mr,
        qp::Qp,
        restrack::{
            Details,
            ResourceDetails, //
        }, //
    }, //
};
use kernel::prelude::*;

/// The kind of memory that holds the queues of the device.
fn backing(device: &Device) -> &'static CStr {
    match device.queues() {
        Queues::OwnRings(_) => c"own-rings",
        Queues::Transport(_) => c"virtqueues",
    }
}

impl ResourceDetails for IbDevice {
    fn qp_details(qp: &Qp<Self>, details: &mut Details<'_>) -> Result {
        let cap = qp.cap();
        details.text(c"queues", backing(&qp.device().virtio))?;
        details.number(c"sq_size", cap.max_send_wr)?;
        details.number(c"rq_size", cap.max_recv_wr)?;
        details.number(c"max_inline", cap.max_inline_data)?;
        details.number(c"rate_limit_kbps", qp.rate_limit())
    }

    fn cq_details(cq: &Cq<Self>, details: &mut Details<'_>) -> Result {
        details.text(c"queues", backing(&cq.device().virtio))?;
        details.number(c"cqn", cq.number().get())
    }

    fn mr_details(mr: &Mr<Self>, details: &mut Details<'_>) -> Result {
        details.number(c"mrn", mr.number().get())?;
        details.text(c"memory", mr.kind())?;
        match mr.page_shift() {
            Some(shift) => details.number(c"page_shift", shift),
            None => Ok(()),
        }
    }
}
