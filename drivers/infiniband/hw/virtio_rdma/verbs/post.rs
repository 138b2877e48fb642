// SPDX-License-Identifier: GPL-2.0

//! Work requests of the kernel.

use super::{
    device::IbDevice,
    encode,
    kernel_qp::{
        Attached,
        WorkState, //
    },
    poll,
    qp::Qp, //
};
use crate::{
    abi::wqe::{
        RqHeader,
        Sge, //
    },
    device::Device,
    rdma::{
        self,
        cq::Cq,
        qp_attr::QpState,
        work_completion::{
            Completions,
            Notify, //
        },
        work_request::{
            KernelQueues,
            RecvRequest,
            RecvRequests,
            SendFlags,
            SendRequest,
            SendRequests, //
        }, //
    }, //
};
use kernel::prelude::*;

impl KernelQueues for IbDevice {
    fn post_send(qp: &rdma::qp::Qp<Self>, requests: &mut SendRequests<'_, Self>) -> Result {
        let queue = qp.kernel()?.send.as_ref();
        post(qp, queue, |state| {
            // Without the request, so that one which can't be posted is the one that is returned last.
            let Some(request) = requests.next() else {
                return Ok(false);
            };
            if matches!(qp.state(), QpState::Reset | QpState::Init | QpState::Rtr) {
                return Err(EINVAL);
            }
            send(qp, state, &request)?;
            Ok(true)
        })
    }

    fn post_recv(qp: &rdma::qp::Qp<Self>, requests: &mut RecvRequests<'_>) -> Result {
        let queue = qp.kernel()?.recv.as_ref();
        post(qp, queue, |state| {
            let Some(request) = requests.next() else {
                return Ok(false);
            };
            if qp.state() == QpState::Reset {
                return Err(EINVAL);
            }
            recv(qp, state, &request)?;
            Ok(true)
        })
    }

    fn poll_cq(cq: &Cq<Self>, completions: &mut Completions<'_>) -> Result {
        poll::poll(cq, completions)
    }

    fn req_notify_cq(cq: &Cq<Self>, notify: Notify) -> Result<bool> {
        Ok(cq.kernel()?.arm(notify))
    }
}

/// Fills slots by `next` until it has no more, and lets the device have those that were filled, also when one could not
/// be.
fn post(
    qp: &Qp,
    queue: Option<&Attached>,
    mut next: impl FnMut(&mut WorkState) -> Result<bool>,
) -> Result {
    let attached = queue.ok_or(EINVAL)?;
    let work = &attached.work;
    let device: &Device = qp.device();
    let mut state = work.state.lock();
    let result = loop {
        match next(&mut state) {
            Ok(true) => (),
            Ok(false) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    let wants_notification = state.backend.publish();
    drop(state);
    if wants_notification {
        work.notify(device);
    }
    if device.is_dead() {
        // What was posted is flushed when it is polled.
        attached.cq.wake();
    }
    result
}

fn send(qp: &Qp, state: &mut WorkState, request: &SendRequest<'_, IbDevice>) -> Result {
    let capabilities = qp.capabilities();
    let (mut header, sges) = encode::header(qp, request)?;
    if sges.len() > usize::try_from(capabilities.max_send_sge)? {
        return Err(EINVAL);
    }
    if !request.flags().contains(SendFlags::INLINE) {
        return state.post(request.wr_id(), |wr_id, wqe| {
            header.wr_id = wr_id;
            wqe.put(&header.to_bytes());
            wqe.put_sges(sges);
        });
    }

    let length = sges
        .iter()
        .try_fold(0u32, |length, sge| length.checked_add(sge.length()));
    let length = length.filter(|length| *length <= capabilities.max_inline_data);
    let length = length.ok_or(EINVAL)?;
    state.post(request.wr_id(), |wr_id, wqe| {
        header.wr_id = wr_id;
        header.num_sge = 1;
        wqe.put(&header.to_bytes());
        let sge = Sge {
            length,
            ..Sge::default()
        };
        wqe.put(&sge.to_bytes());
        for piece in request.inline() {
            wqe.put(piece.bytes());
        }
    })
}

fn recv(qp: &Qp, state: &mut WorkState, request: &RecvRequest<'_>) -> Result {
    let sges = request.sges();
    if sges.len() > usize::try_from(qp.capabilities().max_recv_sge)? {
        return Err(EINVAL);
    }
    let num_sge = u32::try_from(sges.len())?;
    state.post(request.wr_id(), |wr_id, wqe| {
        wqe.put(&RqHeader { num_sge, wr_id }.to_bytes());
        wqe.put_sges(sges);
    })
}
