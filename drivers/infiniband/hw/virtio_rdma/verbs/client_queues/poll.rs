// SPDX-License-Identifier: GPL-2.0

//! Work completions of the kernel's CQs.
//!
//! A CQE names a QP and carries the id that the kernel gave the work request: the queue's index
//! among the sources of the CQ and the work request's position in the queue. [`completion`] checks
//! all of it against the sources and against the work request.

use super::{
    cq::{
        State,
        INVALID_CQE, //
    },
    qp::{
        Client,
        FlushScope,
        OutstandingWr, //
    },
    srq::SharedSource, //
};
use crate::{
    abi::{
        cqe::{
            Cqe,
            WcReason, //
        },
        ib::{
            self,
            PORT, //
        },
        number::Qpn,
        ring::{
            ArmKind,
            DoorbellKind, //
        }, //
    },
    decode::completion::{
        self,
        CheckedCqe,
        Operation,
        PostedWr, //
    },
    rdma::{
        cq::Cq,
        wc::{
            ClientCompletionQueues,
            Completions,
            DatagramSource,
            Extra,
            Notify,
            Wc, //
            WcOpcode,
            WcStatus,
        }, //
    },
    verbs::device::IbDevice, //
};
use kernel::prelude::*;

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

impl ClientCompletionQueues for IbDevice {
    #[inline]
    fn poll_cq(cq: &Cq<Self>, completions: &mut Completions<'_>) -> Result {
        let pkeys = cq.device().port.pkey_tbl_len;
        let cq = cq.kernel()?;
        let mut guard = cq.state.lock();
        let state = &mut *guard;
        let was_broken = state.broken;
        let was_armed = state.armed;
        if !was_broken && take(state, completions, pkeys).is_err() {
            state.broken = true;
        }
        let is_due = state.armed != was_armed;
        if !completions.is_full() {
            if let Some(scope) = state.flush_scope(cq.device()) {
                flush(scope, state, completions);
            }
        }
        let has_broken = state.broken && !was_broken;
        drop(guard);
        if is_due {
            cq.notify_later();
        }
        if has_broken {
            cq.report_broken(INVALID_CQE);
        }
        Ok(())
    }

    fn req_notify_cq(cq: &Cq<Self>, notify: Notify) -> Result<bool> {
        Ok(cq.kernel()?.arm(cq.device().bound_device(), notify))
    }
}

/// Polls CQEs that the device wrote.
#[inline]
fn take(state: &mut State, completions: &mut Completions<'_>, pkeys: u16) -> Result {
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
        // The driver wrote this number into CQEs of destroyed QPs, at most one in each slot. A
        // device that writes this number itself could keep the loop busy indefinitely.
        if cqe.qp_num == Qpn::NONE {
            killed += 1;
            if killed > state.backend.slots() {
                break Err(EIO);
            }
            continue;
        }
        if let Err(error) = deliver(state, &cqe, completions, pkeys) {
            break Err(error);
        }
    };
    state.backend.publish();
    result
}

/// Checks a CQE and delivers its completion.
#[inline]
fn deliver(state: &State, cqe: &Cqe, completions: &mut Completions<'_>, pkeys: u16) -> Result {
    if cqe.is_receive() {
        if let Some(source) = state.shared.get(&cqe.qp_num) {
            return deliver_shared(source, cqe, completions, pkeys);
        }
    }
    let (source_index, position) = completion::split_wr_id(cqe.wr_id);
    let source = state.sources.get(source_index).and_then(Option::as_ref);
    let work = source.ok_or(EIO)?;
    // This is done before the lock is taken, so that there is no call between the checks and the
    // write of the completion.
    let slot = completions.slot(&work.client.consumer);
    let mut queue = work.state.lock();
    if queue.qpn != cqe.qp_num {
        return Err(EIO);
    }
    let completion = queue.complete(position, |posted| {
        work.client.completion(cqe, work.kind, posted, pkeys)
    })?;
    if let Some(slot) = slot {
        slot.write(&completion);
    }
    Ok(())
}

/// Checks the CQE of a receive from an SRQ, and delivers its completion.
#[inline(never)]
fn deliver_shared(
    source: &SharedSource,
    cqe: &Cqe,
    completions: &mut Completions<'_>,
    pkeys: u16,
) -> Result {
    let posted = source.srq.complete(cqe.wr_id).map_err(|_| EIO)?;
    let client = &source.client;
    let completion = client.completion(cqe, DoorbellKind::Rq, &posted, pkeys)?;
    if let Some(slot) = completions.slot(&client.consumer) {
        slot.write(&completion);
    }
    Ok(())
}

impl Client {
    /// The completion of a posted work request; an error if the CQE is not possible for this work
    /// request.
    #[inline(always)]
    fn completion(
        &self,
        cqe: &Cqe,
        kind: DoorbellKind,
        posted: &OutstandingWr,
        pkeys: u16,
    ) -> Result<Wc> {
        let wr = PostedWr {
            kind,
            service: self.service,
            is_process: self.is_process,
            length: posted.length,
            pkeys,
        };
        let checked = wr.check(cqe).map_err(|_| EIO)?;
        work_completion(posted.wr_id, &checked)
    }
}

/// The `ib_wc` of a completion.
#[inline(always)]
fn work_completion(wr_id: u64, cqe: &CheckedCqe<'_>) -> Result<Wc> {
    let mut wc = Wc {
        wr_id,
        status: WcStatus::try_from(u32::from(cqe.status()))?,
        opcode: match cqe.operation() {
            Operation::Send => WcOpcode::Send,
            Operation::RdmaWrite => WcOpcode::RdmaWrite,
            Operation::RdmaRead => WcOpcode::RdmaRead,
            Operation::CompareAndSwap => WcOpcode::CompareAndSwap,
            Operation::FetchAndAdd => WcOpcode::FetchAndAdd,
            Operation::LocalInv => WcOpcode::LocalInv,
            Operation::RegMr => WcOpcode::RegMr,
            Operation::Recv => WcOpcode::Recv,
            Operation::RecvRdmaWithImm => WcOpcode::RecvRdmaWithImm,
        },
        vendor_err: cqe.vendor_err(),
        byte_len: cqe.byte_len(),
        extra: Extra::None,
        port: PORT.into(),
        source: None,
    };
    // One branch for all that only a success has.
    if cqe.is_success() {
        if let Some(data) = cqe.immediate() {
            wc.extra = Extra::Immediate(data);
        } else if let Some(key) = cqe.invalidated() {
            wc.extra = Extra::Invalidated(key);
        }
        wc.source = cqe.datagram().map(|cqe| DatagramSource {
            qpn: cqe.src_qp.get(),
            pkey_index: cqe.pkey_index,
            sl: cqe.priority(),
            has_grh: cqe.wc_flags.contains(ib::WcFlags::GRH),
            vlan: cqe.vlan(),
        });
    }
    Ok(wc)
}

/// Completes, as flushed, the work requests that the device will not complete.
#[cold]
fn flush(scope: FlushScope, state: &State, completions: &mut Completions<'_>) {
    for work in state.sources.iter().flatten() {
        while !completions.is_full() {
            let Some(posted) = work.state.lock().flush_one(scope) else {
                break;
            };
            let opcode = match work.kind {
                DoorbellKind::Rq => WcOpcode::Recv,
                _ => WcOpcode::Send,
            };
            let flushed = Wc {
                wr_id: posted.wr_id,
                status: WcStatus::WR_FLUSH_ERR,
                opcode,
                vendor_err: WcReason::Flushed.value().into(),
                byte_len: 0,
                extra: Extra::None,
                port: PORT.into(),
                source: None,
            };
            if let Some(slot) = completions.slot(&work.client.consumer) {
                slot.write(&flushed);
            }
        }
    }
}
