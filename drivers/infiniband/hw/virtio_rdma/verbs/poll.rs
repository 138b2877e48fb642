// SPDX-License-Identifier: GPL-2.0

//! Work completions of the kernel's CQs.
//!
//! A CQE names a QP and carries the id that the kernel gave the work request: the queue's place in the CQ's table and
//! the work request's position in the queue. All of it is checked against that table and against the work
//! request, so a device can at worst complete work too early.

use super::{
    device::IbDevice,
    kernel_cq::State,
    kernel_qp::{
        Client,
        Posted, //
    },
    kernel_srq::SharedSource, //
};
use crate::{
    abi::{
        cqe::{
            Completed,
            Cqe,
            Service,
            OPCODE_RECV,
            OPCODE_RECV_RDMA_WITH_IMM, //
        },
        ib::{
            self,
            WcFlags,
            WrOpcode,
            PORT, //
        },
        ring::{
            ArmKind,
            DoorbellKind, //
        }, //
    },
    device::Device,
    rdma::{
        cq::Cq,
        qp::QpType,
        work_completion::{
            Completions,
            DatagramSource,
            Extra,
            WcOpcode,
            WcStatus,
            WorkCompletion, //
        }, //
    }, //
};
use kernel::{
    interrupt::{
        local_interrupt_disable,
        LocalInterruptDisabled, //
    },
    prelude::*, //
};

assert_same! {
    ib::WcStatus::Success => ib_wc_status_IB_WC_SUCCESS,
    ib::WcStatus::LocLenErr => ib_wc_status_IB_WC_LOC_LEN_ERR,
    ib::WcStatus::LocQpOpErr => ib_wc_status_IB_WC_LOC_QP_OP_ERR,
    ib::WcStatus::LocEecOpErr => ib_wc_status_IB_WC_LOC_EEC_OP_ERR,
    ib::WcStatus::LocProtErr => ib_wc_status_IB_WC_LOC_PROT_ERR,
    ib::WcStatus::WrFlushErr => ib_wc_status_IB_WC_WR_FLUSH_ERR,
    ib::WcStatus::MwBindErr => ib_wc_status_IB_WC_MW_BIND_ERR,
    ib::WcStatus::BadRespErr => ib_wc_status_IB_WC_BAD_RESP_ERR,
    ib::WcStatus::LocAccessErr => ib_wc_status_IB_WC_LOC_ACCESS_ERR,
    ib::WcStatus::RemInvReqErr => ib_wc_status_IB_WC_REM_INV_REQ_ERR,
    ib::WcStatus::RemAccessErr => ib_wc_status_IB_WC_REM_ACCESS_ERR,
    ib::WcStatus::RemOpErr => ib_wc_status_IB_WC_REM_OP_ERR,
    ib::WcStatus::RetryExcErr => ib_wc_status_IB_WC_RETRY_EXC_ERR,
    ib::WcStatus::RnrRetryExcErr => ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR,
    ib::WcStatus::LocRddViolErr => ib_wc_status_IB_WC_LOC_RDD_VIOL_ERR,
    ib::WcStatus::RemInvRdReqErr => ib_wc_status_IB_WC_REM_INV_RD_REQ_ERR,
    ib::WcStatus::RemAbortErr => ib_wc_status_IB_WC_REM_ABORT_ERR,
    ib::WcStatus::InvEecnErr => ib_wc_status_IB_WC_INV_EECN_ERR,
    ib::WcStatus::InvEecStateErr => ib_wc_status_IB_WC_INV_EEC_STATE_ERR,
    ib::WcStatus::FatalErr => ib_wc_status_IB_WC_FATAL_ERR,
    ib::WcStatus::RespTimeoutErr => ib_wc_status_IB_WC_RESP_TIMEOUT_ERR,
    ib::WcStatus::GeneralErr => ib_wc_status_IB_WC_GENERAL_ERR,
}

/// The id of the work request at `position` of the queue at `place`.
#[inline]
pub(super) fn wr_id(place: u32, position: u16) -> u64 {
    u64::from(place) << 16 | u64::from(position)
}

/// The place and the position in an id.
#[inline]
fn split(wr_id: u64) -> Result<(usize, u16)> {
    // LOSSY: The low half is the position.
    Ok((usize::try_from(wr_id >> 16)?, wr_id as u16))
}

/// Takes completions out of a CQ.
pub(super) fn poll(cq: &Cq<IbDevice>, completions: &mut Completions<'_>) -> Result {
    let pkeys = cq.device().port.pkey_tbl_len;
    let cq = cq.kernel()?;
    // Once for the locks of this CQ and of the queues that complete in it.
    let disabled = local_interrupt_disable();
    let mut guard = cq.state.lock_with(&disabled);
    let state = &mut *guard;
    let was_broken = state.broken;
    let was_armed = state.armed;
    if !was_broken && take(state, completions, pkeys, &disabled).is_err() {
        state.broken = true;
    }
    let is_due = state.armed != was_armed;
    if !completions.is_full() && cq.device().has_losses() {
        flush(cq.device(), state, completions, &disabled);
    }
    let has_broken = state.broken && !was_broken;
    drop(guard);
    drop(disabled);
    if is_due {
        cq.due();
    }
    if has_broken {
        cq.broke();
    }
    Ok(())
}

/// Takes what the device completed.
#[inline]
fn take(
    state: &mut State,
    completions: &mut Completions<'_>,
    pkeys: u16,
    disabled: &LocalInterruptDisabled,
) -> Result {
    let mut killed = 0;
    let mut cqe = Cqe::default();
    let result = loop {
        if completions.is_full() {
            break Ok(());
        }
        match state.backend.take(&mut cqe) {
            Ok(true) => (),
            Ok(false) => break Ok(()),
            Err(error) => break Err(error),
        }
        if state.backend.is_due(&cqe, state.armed) {
            state.armed = ArmKind::None;
        }
        // The driver marks CQEs of destroyed QPs so, at most as many as there are slots. A device that
        // writes more would keep this loop busy.
        if cqe.qp_num == 0 {
            killed += 1;
            if killed > state.backend.slots() {
                break Err(EIO);
            }
            continue;
        }
        if let Err(error) = deliver(state, &cqe, completions, pkeys, disabled) {
            break Err(error);
        }
    };
    state.backend.publish();
    result
}

/// Checks a CQE and passes it on.
#[inline]
fn deliver(
    state: &State,
    cqe: &Cqe,
    completions: &mut Completions<'_>,
    pkeys: u16,
    disabled: &LocalInterruptDisabled,
) -> Result {
    if cqe.is_receive() {
        if let Some(source) = state.shared.get(&cqe.qp_num) {
            return deliver_shared(source, cqe, completions, pkeys);
        }
    }
    let (place, position) = split(cqe.wr_id)?;
    let source = state.sources.get(place).and_then(Option::as_ref);
    let work = source.ok_or(EIO)?;
    if work.number() != cqe.qp_num {
        return Err(EIO);
    }
    let status = WcStatus::try_from(u32::from(cqe.status))?;
    let (kind, opcode) = match cqe.opcode {
        opcode if cqe.is_receive() => (DoorbellKind::Rq, recv_opcode(opcode)?),
        opcode => match WrOpcode::try_from(u32::from(opcode)).map_err(|_| EIO)? {
            WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::SendWithInv => {
                (DoorbellKind::Sq, WcOpcode::Send)
            }
            WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => {
                (DoorbellKind::Sq, WcOpcode::RdmaWrite)
            }
            WrOpcode::RdmaRead | WrOpcode::RdmaReadWithInv => {
                (DoorbellKind::Sq, WcOpcode::RdmaRead)
            }
            WrOpcode::AtomicCmpAndSwp => (DoorbellKind::Sq, WcOpcode::CompareAndSwap),
            WrOpcode::AtomicFetchAndAdd => (DoorbellKind::Sq, WcOpcode::FetchAndAdd),
            WrOpcode::LocalInv => (DoorbellKind::Sq, WcOpcode::LocalInv),
            WrOpcode::RegMr => (DoorbellKind::Sq, WcOpcode::RegMr),
            // Only processes have these.
            WrOpcode::BindMw | WrOpcode::Flush | WrOpcode::AtomicWrite => return Err(EIO),
        },
    };
    if work.kind != kind {
        return Err(EIO);
    }
    let posted = work
        .state
        .lock_with(disabled)
        .complete(position)
        .map_err(|_| EIO)?;
    let source = Source {
        client: &work.client,
        pkeys,
    };
    source.push(completions, cqe, &posted, status, opcode)
}

/// The same for a receive from an SRQ, which knows the id of the work request.
#[inline(never)]
fn deliver_shared(
    source: &SharedSource,
    cqe: &Cqe,
    completions: &mut Completions<'_>,
    pkeys: u16,
) -> Result {
    let status = WcStatus::try_from(u32::from(cqe.status))?;
    let opcode = recv_opcode(cqe.opcode)?;
    let posted = source.srq.complete(cqe.wr_id).map_err(|_| EIO)?;
    let source = Source {
        client: &source.client,
        pkeys,
    };
    source.push(completions, cqe, &posted, status, opcode)
}

fn recv_opcode(opcode: u8) -> Result<WcOpcode> {
    match opcode {
        OPCODE_RECV => Ok(WcOpcode::Recv),
        OPCODE_RECV_RDMA_WITH_IMM => Ok(WcOpcode::RecvRdmaWithImm),
        _ => Err(EIO),
    }
}

/// The QP that a CQE is of.
struct Source<'a> {
    client: &'a Client,
    /// Entries of the port's P_Key table.
    pkeys: u16,
}

impl Source<'_> {
    /// Passes on a CQE whose work request is known, if it can be true of it.
    #[inline(always)]
    fn push(
        &self,
        completions: &mut Completions<'_>,
        cqe: &Cqe,
        posted: &Posted,
        status: WcStatus,
        opcode: WcOpcode,
    ) -> Result {
        let completion = if status == WcStatus::SUCCESS {
            let service = match self.client.qp_type {
                QpType::Rc => Service::Reliable,
                QpType::Uc => Service::Unreliable,
                QpType::Gsi | QpType::Ud => Service::Datagram,
            };
            let request = Completed {
                service,
                length: posted.length,
                pkeys: self.pkeys,
            };
            if !cqe.fits(&request) {
                return Err(EIO);
            }
            // These bytes lie elsewhere, but clients that expect no such message parse as many of
            // their buffer without a look at the opcode.
            let byte_len = match opcode {
                WcOpcode::RecvRdmaWithImm if !self.client.is_process => {
                    cqe.byte_len.min(posted.length)
                }
                _ => cqe.byte_len,
            };
            let is_datagram = service == Service::Datagram && cqe.is_receive();
            WorkCompletion {
                wr_id: posted.wr_id,
                status,
                opcode,
                vendor_err: cqe.vendor_err,
                byte_len,
                extra: extra(cqe),
                port: PORT.into(),
                source: is_datagram.then(|| datagram_source(cqe)),
            }
        } else {
            WorkCompletion {
                vendor_err: cqe.vendor_err,
                ..failed(posted.wr_id, status, opcode)
            }
        };
        completions.push(&self.client.consumer, &completion);
        Ok(())
    }
}

/// What the message of a work request that succeeded brought beside its bytes.
#[inline]
fn extra(cqe: &Cqe) -> Extra {
    if cqe.wc_flags.contains(WcFlags::WITH_IMM) {
        Extra::Immediate(cqe.ex)
    } else if cqe.wc_flags.contains(WcFlags::WITH_INVALIDATE) {
        Extra::Invalidated(u32::from_le_bytes(cqe.ex))
    } else {
        Extra::None
    }
}

/// Where a datagram came from.
#[inline]
fn datagram_source(cqe: &Cqe) -> DatagramSource {
    DatagramSource {
        qpn: cqe.src_qp,
        pkey_index: cqe.pkey_index,
        sl: cqe.priority(),
        has_grh: cqe.wc_flags.contains(WcFlags::GRH),
        vlan: cqe.vlan(),
    }
}

/// The completion of a work request that failed: nothing else of it means anything.
fn failed(wr_id: u64, status: WcStatus, opcode: WcOpcode) -> WorkCompletion {
    WorkCompletion {
        wr_id,
        status,
        opcode,
        vendor_err: 0,
        byte_len: 0,
        extra: Extra::None,
        port: PORT.into(),
        source: None,
    }
}

/// Completes as flushed what the device will not complete.
#[cold]
fn flush(
    device: &Device,
    state: &State,
    completions: &mut Completions<'_>,
    disabled: &LocalInterruptDisabled,
) {
    let Some(left) = state.left(device) else {
        return;
    };
    for work in state.sources.iter().flatten() {
        while !completions.is_full() {
            let Some(posted) = work.state.lock_with(disabled).flush_one(left) else {
                break;
            };
            let opcode = match work.kind {
                DoorbellKind::Rq => WcOpcode::Recv,
                _ => WcOpcode::Send,
            };
            let flushed = failed(posted.wr_id, WcStatus::WR_FLUSH_ERR, opcode);
            completions.push(&work.client.consumer, &flushed);
        }
    }
}
