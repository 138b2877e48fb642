// SPDX-License-Identifier: GPL-2.0

//! Work requests of the kernel.

use super::{
    device::IbDevice,
    kernel_qp::{
        Attached,
        WorkState, //
    },
    poll,
    qp::Qp, //
};
use crate::{
    abi::{
        ib,
        wqe::{
            Datagram,
            Member,
            Rdma,
            RqHeader,
            Sge,
            SqHeader, //
        }, //
    },
    device::Device,
    rdma::{
        self,
        cq::Cq,
        qp::QpType,
        qp_attr::QpState,
        work_completion::{
            Completions,
            Notify, //
        },
        work_request::{
            KernelQueues,
            RecvRequest,
            RecvRequests,
            RemoteMemory,
            SendFlags,
            SendOperation,
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

/// Checks whether a QP can do what is asked for.
///
/// In ERR, where it will be flushed, it may be anything: this is how the core waits until a QP of any type is drained.
fn check(qp: &Qp, operation: &SendOperation, sges: usize) -> Result {
    let is_valid = match operation {
        SendOperation::Send | SendOperation::SendWithImm(_) => true,
        SendOperation::RdmaWrite(_) | SendOperation::RdmaWriteWithImm(..) => {
            !qp.qp_type().is_datagram()
        }
        SendOperation::RdmaRead(_) => {
            qp.qp_type() == QpType::Rc
                && sges <= usize::try_from(qp.device().limits().config.max_sge_rd)?
        }
    };
    if is_valid || qp.state() == QpState::Err {
        Ok(())
    } else {
        Err(EINVAL)
    }
}

fn send(qp: &Qp, state: &mut WorkState, request: &SendRequest<'_, IbDevice>) -> Result {
    let capabilities = qp.capabilities();
    let is_inline = request.flags().contains(SendFlags::INLINE);
    let sges = request.sges();
    if sges.len() > usize::try_from(capabilities.max_send_sge)? {
        return Err(EINVAL);
    }
    let send_flags = ib::SendFlags(request.flags().0);
    if send_flags.has_unknown() || send_flags.contains(ib::SendFlags::IP_CSUM) {
        return Err(EINVAL);
    }
    let operation = request.operation()?;
    check(qp, &operation, sges.len())?;
    let mut header = SqHeader {
        num_sge: u32::try_from(sges.len())?,
        send_flags,
        ..SqHeader::default()
    };
    let (opcode, remote) = match operation {
        SendOperation::Send => (ib::WrOpcode::Send, None),
        SendOperation::SendWithImm(immediate) => {
            header.ex = immediate;
            (ib::WrOpcode::SendWithImm, None)
        }
        SendOperation::RdmaWrite(remote) => (ib::WrOpcode::RdmaWrite, Some(remote)),
        SendOperation::RdmaWriteWithImm(remote, immediate) => {
            header.ex = immediate;
            (ib::WrOpcode::RdmaWriteWithImm, Some(remote))
        }
        SendOperation::RdmaRead(remote) => (ib::WrOpcode::RdmaRead, Some(remote)),
    };
    header.opcode = opcode.value();
    if let Some(RemoteMemory { addr, rkey }) = remote {
        let rdma = Rdma {
            remote_addr: addr,
            rkey,
        };
        rdma.store(&mut header.wr);
    }
    if let Some(datagram) = request.datagram()? {
        // There is one entry in the P_Key table of a port, and the QP's own is used.
        if datagram.pkey_index != 0 {
            return Err(EINVAL);
        }
        let datagram = Datagram {
            remote_qpn: datagram.remote_qpn,
            remote_qkey: datagram.remote_qkey,
            av: *datagram.ah.av(),
        };
        datagram.store(&mut header.wr);
    }
    if !is_inline {
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
    if opcode == ib::WrOpcode::RdmaRead {
        return Err(EINVAL);
    }
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
