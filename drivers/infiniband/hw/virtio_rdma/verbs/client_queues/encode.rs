// SPDX-License-Identifier: GPL-2.0

//! Encoding of the kernel's send work requests as WQEs.

use super::wqe::Wqe;
use crate::{
    abi::{
        ib::{
            self,
            WrOpcode, //
        },
        number::Qpn,
        wqe::{
            Atomic,
            Datagram,
            Rdma,
            Reg,
            RegPages,
            SqHeader,
            INLINE_OFFSET, //
        }, //
    },
    rdma::{
        mr::FastReg,
        qp::QpType,
        qp_attr::QpState,
        wr::{
            RemoteMemory,
            SendOperation,
            SendWr, //
        }, //
    },
    verbs::{
        device::IbDevice,
        mr::access_flags,
        qp::Qp, //
    }, //
};
use kernel::prelude::*;

assert_same! {
    ib::SendFlags::FENCE.0 => ib_send_flags_IB_SEND_FENCE,
    ib::SendFlags::SIGNALED.0 => ib_send_flags_IB_SEND_SIGNALED,
    ib::SendFlags::SOLICITED.0 => ib_send_flags_IB_SEND_SOLICITED,
    ib::SendFlags::INLINE.0 => ib_send_flags_IB_SEND_INLINE,
    ib::SendFlags::IP_CSUM.0 => ib_send_flags_IB_SEND_IP_CSUM,
}

/// Writes the WQE of a work request, with the id for the device, and returns its length.
///
/// # Errors
///
/// `EINVAL` for an operation that the QP can't do, `EOPNOTSUPP` for an operation that the device
/// can't do.
#[inline]
pub(super) fn encode(
    qp: &Qp,
    request: &SendWr<'_, IbDevice>,
    wr_id: u64,
    wqe: &mut Wqe<'_>,
) -> Result<usize> {
    let send_flags = ib::SendFlags(request.flags().0);
    if send_flags.has_unknown() || send_flags.contains(ib::SendFlags::IP_CSUM) {
        return Err(EINVAL);
    }
    let Encoded {
        opcode,
        ex,
        is_possible,
        has_sges,
    } = put_operation(qp, request, wqe)?;
    // In ERR any operation is accepted and flushed: `ib_drain_qp()` posts a WRITE to QPs of all
    // types.
    if !is_possible && qp.state() != QpState::Err {
        return Err(EINVAL);
    }
    let sges = if has_sges { request.sges() } else { &[] };
    let mut header = SqHeader {
        num_sge: u32::try_from(sges.len())?,
        send_flags,
        opcode: opcode.value(),
        wr_id,
        ex,
        ..SqHeader::default()
    };
    if header.num_sge > qp.cap().max_send_sge {
        return Err(EINVAL);
    }
    if send_flags.contains(ib::SendFlags::INLINE) {
        if !takes_inline(opcode) {
            return Err(EINVAL);
        }
        header.num_sge = 1;
        wqe.put_header(&header);
        return inline_payload(qp, request, wqe);
    }
    wqe.put_header(&header);
    Ok(wqe.put_sges(SqHeader::SIZE, sges))
}

/// Parts of a WQE that depend on the operation.
struct Encoded {
    opcode: WrOpcode,
    /// Immediate data, or a key to invalidate.
    ex: [u8; 4],
    /// Whether the QP can do the operation.
    is_possible: bool,
    /// Whether the operation uses the request's list of SGEs.
    has_sges: bool,
}

impl Encoded {
    fn new(opcode: WrOpcode, is_possible: bool) -> Self {
        Self {
            opcode,
            ex: [0; 4],
            is_possible,
            has_sges: true,
        }
    }

    fn with_ex(self, ex: [u8; 4]) -> Self {
        Self { ex, ..self }
    }

    /// Ignores the list of SGEs, which clients may leave uninitialized for this operation.
    fn without_sges(self) -> Self {
        Self {
            has_sges: false,
            ..self
        }
    }
}

/// Writes the member of the header's union that belongs to the operation.
#[inline]
fn put_operation(qp: &Qp, request: &SendWr<'_, IbDevice>, wqe: &mut Wqe<'_>) -> Result<Encoded> {
    let is_rc = qp.qp_type() == QpType::Rc;
    let is_connected = !qp.qp_type().is_datagram();
    let limits = qp.device().limits();
    let may_read = || {
        is_rc
            && u32::try_from(request.sges().len())
                .is_ok_and(|count| count <= limits.config.max_sge_rd)
    };
    Ok(match request.operation()? {
        SendOperation::RdmaWrite(remote) => {
            wqe.put_member(&rdma(remote));
            Encoded::new(WrOpcode::RdmaWrite, is_connected)
        }
        SendOperation::RdmaWriteWithImm(remote, immediate) => {
            wqe.put_member(&rdma(remote));
            Encoded::new(WrOpcode::RdmaWriteWithImm, is_connected).with_ex(immediate)
        }
        SendOperation::RdmaRead(remote) => {
            wqe.put_member(&rdma(remote));
            Encoded::new(WrOpcode::RdmaRead, may_read())
        }
        SendOperation::RdmaReadWithInv(remote, key) => {
            wqe.put_member(&rdma(remote));
            let is_possible = limits.has_fast_registration() && may_read();
            Encoded::new(WrOpcode::RdmaReadWithInv, is_possible).with_ex(key.to_le_bytes())
        }
        SendOperation::Send => {
            datagram(request, wqe)?;
            Encoded::new(WrOpcode::Send, true)
        }
        SendOperation::SendWithImm(immediate) => {
            datagram(request, wqe)?;
            Encoded::new(WrOpcode::SendWithImm, true).with_ex(immediate)
        }
        SendOperation::SendWithInv(key) => {
            let is_possible = is_rc && limits.has_fast_registration();
            Encoded::new(WrOpcode::SendWithInv, is_possible).with_ex(key.to_le_bytes())
        }
        SendOperation::CompareAndSwap {
            remote,
            compare,
            swap,
        } => {
            wqe.put_member(&atomic(remote, compare, swap));
            Encoded::new(WrOpcode::AtomicCmpAndSwp, is_rc)
        }
        SendOperation::FetchAndAdd { remote, add } => {
            wqe.put_member(&atomic(remote, add, 0));
            Encoded::new(WrOpcode::AtomicFetchAndAdd, is_rc)
        }
        SendOperation::LocalInv(key) => {
            let is_possible = is_connected && limits.has_fast_registration();
            Encoded::new(WrOpcode::LocalInv, is_possible)
                .with_ex(key.to_le_bytes())
                .without_sges()
        }
        SendOperation::RegMr(reg) => {
            wqe.put_member(&reg_pages(qp, &reg)?);
            let is_possible = is_connected && limits.has_fast_registration();
            Encoded::new(WrOpcode::RegMr, is_possible).without_sges()
        }
    })
}

/// Writes the destination of a SEND that is a datagram.
fn datagram(request: &SendWr<'_, IbDevice>, wqe: &mut Wqe<'_>) -> Result {
    let Some(datagram) = request.datagram()? else {
        return Ok(());
    };
    // The P_Key table of a port has one entry, which the QP uses.
    if datagram.pkey_index != 0 {
        return Err(EINVAL);
    }
    wqe.put_member(&Datagram {
        remote_qpn: Qpn::new(datagram.remote_qpn),
        remote_qkey: datagram.remote_qkey,
        av: *datagram.ah.av(),
    });
    Ok(())
}

/// Writes the payload of a request after the header, and returns the length of the WQE.
#[inline(never)]
fn inline_payload(qp: &Qp, request: &SendWr<'_, IbDevice>, wqe: &mut Wqe<'_>) -> Result<usize> {
    let length = request
        .sges()
        .iter()
        .try_fold(0u32, |length, sge| length.checked_add(sge.length()))
        .filter(|length| *length <= qp.cap().max_inline_data)
        .ok_or(EINVAL)?;
    wqe.put_inline_sge(SqHeader::SIZE, length);
    let mut offset = INLINE_OFFSET;
    for piece in request.inline() {
        wqe.put(offset, piece.bytes());
        offset = offset.saturating_add(piece.bytes().len());
    }
    Ok(offset)
}

/// Whether the operation sends a payload. Only such a payload can be inline, in the WQE.
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

/// The body of a REG_MR for the pages that `map_mr_sg` mapped last.
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
            access: access_flags(reg.access(), ib::AccessFlags::NONE)?,
        },
        pages: pages.dma_address(),
        npages: pages.count(),
        iova: reg.iova(),
        length: reg.length(),
        page_shift,
        ..RegPages::default()
    })
}
