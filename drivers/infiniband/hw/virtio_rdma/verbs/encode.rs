// SPDX-License-Identifier: GPL-2.0

//! Send work requests of the kernel as the device reads them.

use super::{
    device::IbDevice,
    mr::access_flags,
    qp::Qp, //
};
use crate::{
    abi::{
        ib::{
            AccessFlags,
            SendFlags,
            WrOpcode, //
        },
        wqe::{
            Atomic,
            Datagram,
            Member,
            Rdma,
            Reg,
            RegPages,
            SqHeader, //
        }, //
    },
    rdma::{
        mr::FastReg,
        qp::QpType,
        qp_attr::QpState,
        work_request::{
            RemoteMemory,
            SendOperation,
            SendRequest,
            Sge, //
        }, //
    },
};
use kernel::prelude::*;

/// The header of a WQE, without the id of the work request, and the memory that the request is about.
///
/// # Errors
///
/// `EINVAL` for what the QP can't do, `EOPNOTSUPP` for what the device can't.
pub(super) fn header<'a>(
    qp: &Qp,
    request: &SendRequest<'a, IbDevice>,
) -> Result<(SqHeader, &'a [Sge])> {
    let send_flags = SendFlags(request.flags().0);
    if send_flags.has_unknown() || send_flags.contains(SendFlags::IP_CSUM) {
        return Err(EINVAL);
    }
    let operation = request.operation()?;
    let sges = match operation {
        // Their clients may leave the list as it is.
        SendOperation::LocalInv(_) | SendOperation::RegMr(_) => &[],
        _ => request.sges(),
    };
    check(qp, &operation, sges)?;
    let mut header = SqHeader {
        num_sge: u32::try_from(sges.len())?,
        send_flags,
        ..SqHeader::default()
    };
    let opcode = fill(qp, &operation, &mut header)?;
    if send_flags.contains(SendFlags::INLINE) && !takes_inline(opcode) {
        return Err(EINVAL);
    }
    header.opcode = opcode.value();
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
    Ok((header, sges))
}

/// Checks whether a QP can do what is asked for.
///
/// In ERR, where it will be flushed, it may be anything: this is how the core waits until a QP of any type is drained.
fn check(qp: &Qp, operation: &SendOperation<'_, IbDevice>, sges: &[Sge]) -> Result {
    let limits = qp.device().limits();
    let is_rc = qp.qp_type() == QpType::Rc;
    let is_valid = match operation {
        SendOperation::Send | SendOperation::SendWithImm(_) => true,
        SendOperation::RdmaWrite(_) | SendOperation::RdmaWriteWithImm(..) => {
            !qp.qp_type().is_datagram()
        }
        SendOperation::RdmaRead(_) => {
            is_rc && sges.len() <= usize::try_from(limits.config.max_sge_rd)?
        }
        SendOperation::RdmaReadWithInv(..) => {
            is_rc
                && limits.has_fast_registration()
                && sges.len() <= usize::try_from(limits.config.max_sge_rd)?
        }
        SendOperation::CompareAndSwap { .. } | SendOperation::FetchAndAdd { .. } => is_rc,
        SendOperation::SendWithInv(_) => is_rc && limits.has_fast_registration(),
        SendOperation::LocalInv(_) | SendOperation::RegMr(_) => {
            !qp.qp_type().is_datagram() && limits.has_fast_registration()
        }
    };
    if is_valid || qp.state() == QpState::Err {
        Ok(())
    } else {
        Err(EINVAL)
    }
}

/// Fills in what an operation needs, and returns its opcode.
fn fill(
    qp: &Qp,
    operation: &SendOperation<'_, IbDevice>,
    header: &mut SqHeader,
) -> Result<WrOpcode> {
    Ok(match operation {
        SendOperation::Send => WrOpcode::Send,
        SendOperation::SendWithImm(immediate) => {
            header.ex = *immediate;
            WrOpcode::SendWithImm
        }
        SendOperation::SendWithInv(key) => {
            header.ex = key.to_le_bytes();
            WrOpcode::SendWithInv
        }
        SendOperation::RdmaWrite(remote) => {
            rdma(*remote).store(&mut header.wr);
            WrOpcode::RdmaWrite
        }
        SendOperation::RdmaWriteWithImm(remote, immediate) => {
            rdma(*remote).store(&mut header.wr);
            header.ex = *immediate;
            WrOpcode::RdmaWriteWithImm
        }
        SendOperation::RdmaRead(remote) => {
            rdma(*remote).store(&mut header.wr);
            WrOpcode::RdmaRead
        }
        SendOperation::RdmaReadWithInv(remote, key) => {
            rdma(*remote).store(&mut header.wr);
            header.ex = key.to_le_bytes();
            WrOpcode::RdmaReadWithInv
        }
        SendOperation::CompareAndSwap {
            remote,
            compare,
            swap,
        } => {
            atomic(*remote, *compare, *swap).store(&mut header.wr);
            WrOpcode::AtomicCmpAndSwp
        }
        SendOperation::FetchAndAdd { remote, add } => {
            atomic(*remote, *add, 0).store(&mut header.wr);
            WrOpcode::AtomicFetchAndAdd
        }
        SendOperation::LocalInv(key) => {
            header.ex = key.to_le_bytes();
            WrOpcode::LocalInv
        }
        SendOperation::RegMr(reg) => {
            reg_pages(qp, reg)?.store(&mut header.wr);
            WrOpcode::RegMr
        }
    })
}

/// Whether the payload may be in the WQE: that of operations which send one.
fn takes_inline(opcode: WrOpcode) -> bool {
    matches!(
        opcode,
        WrOpcode::Send
            | WrOpcode::SendWithImm
            | WrOpcode::SendWithInv
            | WrOpcode::RdmaWrite
            | WrOpcode::RdmaWriteWithImm
    )
}

fn rdma(remote: RemoteMemory) -> Rdma {
    Rdma {
        remote_addr: remote.addr,
        rkey: remote.rkey,
    }
}

fn atomic(remote: RemoteMemory, compare_add: u64, swap: u64) -> Atomic {
    Atomic {
        remote_addr: remote.addr,
        compare_add,
        swap,
        rkey: remote.rkey,
    }
}

/// A registration with the pages that were mapped last.
fn reg_pages(qp: &Qp, reg: &FastReg<'_, IbDevice>) -> Result<RegPages> {
    let mr = reg.mr();
    let pages = mr.mapped_pages().ok_or(EINVAL)?;
    let page_shift = reg.page_shift()?;
    if qp.device().limits().config.page_size_cap >> page_shift & 1 == 0 {
        return Err(EINVAL);
    }
    Ok(RegPages {
        base: Reg {
            mrn: mr.number(),
            key: reg.key(),
            access: access_flags(reg.access(), AccessFlags::NONE)?,
        },
        pages: pages.dma_address(),
        npages: pages.count(),
        iova: reg.iova(),
        length: reg.length(),
        page_shift,
        ..RegPages::default()
    })
}
