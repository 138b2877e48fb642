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
        ring::Doorbell,
        wqe::{
            rq_wqe_size,
            sq_wqe_size,
            Datagram,
            Member,
            Rdma,
            RqHeader,
            SqHeader,
            INLINE_OFFSET, //
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
            SendRequests,
            Sge, //
        }, //
    },
    ring::RingMemory, //
};
use kernel::prelude::*;

impl KernelQueues for IbDevice {
    fn post_send(qp: &rdma::qp::Qp<Self>, requests: &mut SendRequests<'_, Self>) -> Result {
        let queue = qp.kernel()?.send.as_ref();
        post(qp, queue, |attached, state| {
            // Without the request, so that one which can't be posted is the one that is returned last.
            let Some(request) = requests.next() else {
                return Ok(false);
            };
            if matches!(qp.state(), QpState::Reset | QpState::Init | QpState::Rtr) {
                return Err(EINVAL);
            }
            send(qp, attached, state, &request)?;
            Ok(true)
        })
    }

    fn post_recv(qp: &rdma::qp::Qp<Self>, requests: &mut RecvRequests<'_>) -> Result {
        let queue = qp.kernel()?.recv.as_ref();
        post(qp, queue, |attached, state| {
            let Some(request) = requests.next() else {
                return Ok(false);
            };
            if qp.state() == QpState::Reset {
                return Err(EINVAL);
            }
            recv(qp, attached, state, &request)?;
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
    mut next: impl FnMut(&Attached, &mut WorkState) -> Result<bool>,
) -> Result {
    let attached = queue.ok_or(EINVAL)?;
    let work = &attached.work;
    let device: &Device = qp.device();
    let mut state = work.state.lock();
    let result = loop {
        match next(attached, &mut state) {
            Ok(true) => (),
            Ok(false) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    let wants_doorbell = state.queue.publish(&*work.ring);
    drop(state);
    if wants_doorbell {
        let kind = work.kind;
        let number = work.number();
        device.doorbells().ring(Doorbell { kind, number }.to_u32());
    }
    if device.is_dead() {
        // What was posted is flushed when it is polled.
        attached.cq.wake();
    }
    result
}

/// Takes a slot, notes the id of its work request, and returns its offset in the ring and the id for the device.
#[inline]
fn reserve(attached: &Attached, state: &mut WorkState, wr_id: u64) -> Result<(u32, u64)> {
    let slot = state.queue.reserve().ok_or(ENOMEM)?;
    if let Some(place) = state.wr_ids.get_mut(usize::from(slot)) {
        *place = wr_id;
    }
    let offset = attached.work.ring.layout().slot(slot);
    Ok((offset, poll::wr_id(state.place, slot)))
}

/// Writes a list of SGEs.
#[inline]
fn write_sges(ring: &impl RingMemory, mut offset: u32, sges: &[Sge]) {
    for sge in sges {
        let sge = crate::abi::wqe::Sge {
            addr: sge.addr(),
            length: sge.length(),
            lkey: sge.lkey(),
        };
        ring.write(offset, &sge.to_bytes());
        offset += crate::abi::wqe::Sge::SIZE as u32;
    }
}

/// Checks whether a QP can do what is asked for.
///
/// In ERR, where it will be flushed, it may be anything: this is how the core waits until a QP of any type is drained.
fn check(qp: &Qp, operation: &SendOperation, sges: &[Sge]) -> Result {
    let is_valid = match operation {
        SendOperation::Send | SendOperation::SendWithImm(_) => true,
        SendOperation::RdmaWrite(_) | SendOperation::RdmaWriteWithImm(..) => {
            !qp.qp_type().is_datagram()
        }
        SendOperation::RdmaRead(_) => {
            qp.qp_type() == QpType::Rc
                && sges.len() <= usize::try_from(qp.device().limits().config.max_sge_rd)?
        }
    };
    if is_valid || qp.state() == QpState::Err {
        Ok(())
    } else {
        Err(EINVAL)
    }
}

fn send(
    qp: &Qp,
    attached: &Attached,
    state: &mut WorkState,
    request: &SendRequest<'_, IbDevice>,
) -> Result {
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
    check(qp, &operation, sges)?;
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
        let (offset, wr_id) = reserve(attached, state, request.wr_id())?;
        header.wr_id = wr_id;
        let ring = &*attached.work.ring;
        ring.write(offset, &header.to_bytes());
        write_sges(ring, offset + sq_wqe_size(0) as u32, sges);
        return Ok(());
    }

    let length = sges
        .iter()
        .try_fold(0u32, |length, sge| length.checked_add(sge.length()));
    let length = length.filter(|length| *length <= capabilities.max_inline_data);
    let length = length.ok_or(EINVAL)?;
    if opcode == ib::WrOpcode::RdmaRead {
        return Err(EINVAL);
    }
    let (offset, wr_id) = reserve(attached, state, request.wr_id())?;
    header.wr_id = wr_id;
    header.num_sge = 1;
    let ring = &*attached.work.ring;
    ring.write(offset, &header.to_bytes());
    let sge = crate::abi::wqe::Sge {
        length,
        ..crate::abi::wqe::Sge::default()
    };
    ring.write(offset + sq_wqe_size(0) as u32, &sge.to_bytes());
    let mut offset = offset + INLINE_OFFSET as u32;
    for piece in request.inline() {
        let bytes = piece.bytes();
        ring.write(offset, bytes);
        // LOSSY: The sum was checked above.
        offset += bytes.len() as u32;
    }
    Ok(())
}

fn recv(qp: &Qp, attached: &Attached, state: &mut WorkState, request: &RecvRequest<'_>) -> Result {
    let sges = request.sges();
    if sges.len() > usize::try_from(qp.capabilities().max_recv_sge)? {
        return Err(EINVAL);
    }
    let (offset, wr_id) = reserve(attached, state, request.wr_id())?;
    let header = RqHeader {
        num_sge: u32::try_from(sges.len())?,
        wr_id,
    };
    let ring = &*attached.work.ring;
    ring.write(offset, &header.to_bytes());
    write_sges(ring, offset + rq_wqe_size(0) as u32, sges);
    Ok(())
}
