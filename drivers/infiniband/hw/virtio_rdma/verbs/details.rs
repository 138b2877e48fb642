// SPDX-License-Identifier: GPL-2.0

//! Details of the driver's objects, which `rdma -dd resource show` prints after the core's details.
//!
//! The positions of a process's queues are in its own rings, which the kernel never reads. For such
//! queues the details only say that a process uses them.

use super::device::IbDevice;
use crate::{
    abi::ring::ArmKind,
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
        },
        srq::Srq, //
    },
    verbs::client_queues::qp::Attached, //
};
use kernel::prelude::*;

/// The kind of memory that holds the queues of the device.
fn backing(device: &Device) -> &'static CStr {
    match device.queues() {
        Queues::OwnRings(_) => c"own-rings",
        Queues::Transport(_) => c"virtqueues",
    }
}

/// The user of a queue: the kernel, also for its clients, or a process by itself.
fn user<T>(kernel: &Result<T>) -> &'static CStr {
    match kernel {
        Ok(_) => c"kernel",
        Err(_) => c"process",
    }
}

/// Adds the positions of a work queue, if there is one: `pi` of the next work request, `ci` of the
/// oldest one without a completion.
fn positions(details: &mut Details<'_>, names: [&CStr; 2], queue: &Option<Attached>) -> Result {
    let Some(queue) = queue else {
        return Ok(());
    };
    let (producer, consumer) = queue.work.positions();
    details.number(names[0], producer)?;
    details.number(names[1], consumer)
}

impl ResourceDetails for IbDevice {
    fn qp_details(qp: &Qp<Self>, details: &mut Details<'_>) -> Result {
        let cap = qp.cap();
        details.text(c"queues", backing(&qp.device().virtio))?;
        details.number(c"sq_size", cap.max_send_wr)?;
        details.number(c"rq_size", cap.max_recv_wr)?;
        details.number(c"max_inline", cap.max_inline_data)?;
        details.number(c"rate_limit_kbps", qp.rate_limit())?;
        let kernel = qp.kernel();
        details.text(c"posted_by", user(&kernel))?;
        if let Ok(kernel) = kernel {
            positions(details, [c"sq_pi", c"sq_ci"], &kernel.send)?;
            positions(details, [c"rq_pi", c"rq_ci"], &kernel.recv)?;
        }
        details.number(c"events", qp.events())
    }

    fn cq_details(cq: &Cq<Self>, details: &mut Details<'_>) -> Result {
        details.text(c"queues", backing(&cq.device().virtio))?;
        details.number(c"cqn", cq.number().get())?;
        let kernel = cq.kernel();
        details.text(c"polled_by", user(&kernel))?;
        if let Ok(kernel) = kernel {
            let view = kernel.view();
            if let Some((producer, consumer)) = view.positions {
                details.number(c"pi", producer)?;
                details.number(c"ci", consumer)?;
            }
            let armed = match view.armed {
                ArmKind::None => c"no",
                ArmKind::Next => c"next",
                ArmKind::Solicited => c"solicited",
            };
            details.text(c"armed", armed)?;
            if let Some(why) = view.lost {
                details.text(c"lost", why)?;
            }
        }
        details.number(c"events", cq.events())
    }

    fn mr_details(mr: &Mr<Self>, details: &mut Details<'_>) -> Result {
        details.number(c"mrn", mr.number().get())?;
        details.text(c"memory", mr.kind())?;
        match mr.page_shift() {
            Some(shift) => details.number(c"page_shift", shift),
            None => Ok(()),
        }
    }

    fn srq_details(srq: &Srq<Self>, details: &mut Details<'_>) -> Result {
        details.text(c"queues", backing(&srq.device().virtio))?;
        details.number(c"srqn", srq.number().get())?;
        let kernel = srq.kernel();
        details.text(c"posted_by", user(&kernel))?;
        if let Ok(kernel) = kernel {
            details.number(c"outstanding", kernel.outstanding())?;
        }
        details.number(c"events", srq.events())
    }
}
