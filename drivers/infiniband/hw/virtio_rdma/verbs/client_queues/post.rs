// SPDX-License-Identifier: GPL-2.0

//! Work requests of the kernel.

use super::{
    encode::encode,
    qp::{
        Attached,
        WorkState, //
    }, //
};
use crate::{
    abi::wqe::RqHeader,
    device::Device,
    rdma::{
        self,
        qp_attr::QpState,
        wr::{
            ClientQueuePairs,
            RecvWr,
            RecvWrs,
            SendWr,
            SendWrs, //
        }, //
    },
    verbs::{
        device::IbDevice,
        qp::Qp, //
    }, //
};
use kernel::prelude::*;

impl ClientQueuePairs for IbDevice {
    #[inline]
    fn post_send(qp: &rdma::qp::Qp<Self>, requests: &mut SendWrs<'_, Self>) -> Result {
        let queue = qp.kernel()?.send.as_ref();
        post(qp, queue, requests, |state, request| {
            if matches!(qp.state(), QpState::Reset | QpState::Init | QpState::Rtr) {
                return Err(EINVAL);
            }
            send(qp, state, &request)
        })
    }

    #[inline]
    fn post_recv(qp: &rdma::qp::Qp<Self>, requests: &mut RecvWrs<'_>) -> Result {
        let kernel = qp.kernel()?;
        if kernel.shared.is_some() {
            // The QP's receives are posted to its SRQ.
            return Err(EINVAL);
        }
        let queue = kernel.recv.as_ref();
        post(qp, queue, requests, |state, request| {
            if qp.state() == QpState::Reset {
                return Err(EINVAL);
            }
            recv(qp, state, &request)
        })
    }
}

/// Calls `fill` to fill a slot with each request, until a request can't be posted. Publishes the
/// filled slots. The request that can't be posted is the last one taken from `requests`.
#[inline]
fn post<R>(
    qp: &rdma::qp::Qp<IbDevice>,
    queue: Option<&Attached>,
    mut requests: impl Iterator<Item = R>,
    mut fill: impl FnMut(&mut WorkState, R) -> Result,
) -> Result {
    // A QP without this queue behaves as if the queue were full.
    let attached = queue.ok_or(ENOMEM)?;
    let work = &attached.work;
    let device: &Device = &qp.device().virtio;
    let mut state = work.state.lock();
    let result = requests.try_for_each(|request| fill(&mut state, request));
    let qpn = state.qpn;
    let wants_notification = state.backend.publish();
    let is_cq_lost = state.is_cq_lost;
    drop(state);
    if wants_notification {
        work.notify(device, qp.device().bound_device(), qpn);
    }
    if is_cq_lost || device.has_stopped() {
        attached.cq.wake_to_flush();
    }
    result
}

#[inline]
fn send(qp: &Qp, state: &mut WorkState, request: &SendWr<'_, IbDevice>) -> Result {
    let posted = state.post(request.wr_id(), |wr_id, wqe| {
        encode(qp, request, wr_id, wqe)
    });
    unless_stopped(qp, state, request.wr_id(), posted)
}

#[inline]
fn recv(qp: &Qp, state: &mut WorkState, request: &RecvWr<'_>) -> Result {
    let sges = request.sges();
    let num_sge = u32::try_from(sges.len())?;
    if num_sge > qp.cap().max_recv_sge {
        return Err(EINVAL);
    }
    let posted = state.post(request.wr_id(), |wr_id, wqe| {
        wqe.put(0, &RqHeader { num_sge, wr_id }.to_bytes());
        Ok(wqe.put_sges(RqHeader::SIZE, sges))
    });
    unless_stopped(qp, state, request.wr_id(), posted)
}

/// Returns the result of a post. On a stopped device, repeats a post that found no virtqueue
/// element, or whose virtqueue takes none, now without an element: the device does not give
/// elements back, but the work request only has to be flushed.
#[inline]
fn unless_stopped(qp: &Qp, state: &mut WorkState, wr_id: u64, posted: Result) -> Result {
    match posted {
        Err(ENOMEM | EIO) if qp.device().has_stopped() => state.post_unseen(wr_id),
        posted => posted,
    }
}
