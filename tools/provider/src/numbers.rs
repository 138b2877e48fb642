// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Checks that some constants of the ABI equal those of libibverbs, so that they need no
//! conversion. All other constants are converted.

use virtio_rdma_abi::ib::AccessFlags;
use virtio_rdma_abi::ib::FlushLevel;
use virtio_rdma_abi::ib::FlushTypes;
use virtio_rdma_abi::ib::SendFlags;
use virtio_rdma_abi::ib::WcStatus;
use virtio_rdma_abi::ib::WrOpcode;

use crate::ffi;

macro_rules! assert_same {
    ($($abi:expr => $verbs:ident,)*) => {
        $(const _: () = assert!($abi as u64 == ffi::$verbs as u64);)*
    };
}

assert_same! {
    WrOpcode::RdmaWrite => IBV_WR_RDMA_WRITE,
    WrOpcode::RdmaWriteWithImm => IBV_WR_RDMA_WRITE_WITH_IMM,
    WrOpcode::Send => IBV_WR_SEND,
    WrOpcode::SendWithImm => IBV_WR_SEND_WITH_IMM,
    WrOpcode::RdmaRead => IBV_WR_RDMA_READ,
    WrOpcode::AtomicCmpAndSwp => IBV_WR_ATOMIC_CMP_AND_SWP,
    WrOpcode::AtomicFetchAndAdd => IBV_WR_ATOMIC_FETCH_AND_ADD,
    WrOpcode::LocalInv => IBV_WR_LOCAL_INV,
    WrOpcode::BindMw => IBV_WR_BIND_MW,
    WrOpcode::SendWithInv => IBV_WR_SEND_WITH_INV,
    WrOpcode::Flush => IBV_WR_FLUSH,
    WrOpcode::AtomicWrite => IBV_WR_ATOMIC_WRITE,
    SendFlags::FENCE.0 => IBV_SEND_FENCE,
    SendFlags::SIGNALED.0 => IBV_SEND_SIGNALED,
    SendFlags::SOLICITED.0 => IBV_SEND_SOLICITED,
    SendFlags::INLINE.0 => IBV_SEND_INLINE,
    SendFlags::IP_CSUM.0 => IBV_SEND_IP_CSUM,
    AccessFlags::LOCAL_WRITE.0 => IBV_ACCESS_LOCAL_WRITE,
    AccessFlags::REMOTE_WRITE.0 => IBV_ACCESS_REMOTE_WRITE,
    AccessFlags::REMOTE_READ.0 => IBV_ACCESS_REMOTE_READ,
    AccessFlags::REMOTE_ATOMIC.0 => IBV_ACCESS_REMOTE_ATOMIC,
    AccessFlags::MW_BIND.0 => IBV_ACCESS_MW_BIND,
    AccessFlags::ZERO_BASED.0 => IBV_ACCESS_ZERO_BASED,
    AccessFlags::ON_DEMAND.0 => IBV_ACCESS_ON_DEMAND,
    AccessFlags::HUGETLB.0 => IBV_ACCESS_HUGETLB,
    AccessFlags::FLUSH_GLOBAL.0 => IBV_ACCESS_FLUSH_GLOBAL,
    AccessFlags::FLUSH_PERSISTENT.0 => IBV_ACCESS_FLUSH_PERSISTENT,
    AccessFlags::RELAXED_ORDERING.0 => IBV_ACCESS_RELAXED_ORDERING,
    FlushTypes::GLOBAL.0 => IBV_FLUSH_GLOBAL,
    FlushTypes::PERSISTENT.0 => IBV_FLUSH_PERSISTENT,
    FlushLevel::Range => IBV_FLUSH_RANGE,
    FlushLevel::Mr => IBV_FLUSH_MR,
    WcStatus::Success => IBV_WC_SUCCESS,
    WcStatus::LocLenErr => IBV_WC_LOC_LEN_ERR,
    WcStatus::LocQpOpErr => IBV_WC_LOC_QP_OP_ERR,
    WcStatus::LocEecOpErr => IBV_WC_LOC_EEC_OP_ERR,
    WcStatus::LocProtErr => IBV_WC_LOC_PROT_ERR,
    WcStatus::WrFlushErr => IBV_WC_WR_FLUSH_ERR,
    WcStatus::MwBindErr => IBV_WC_MW_BIND_ERR,
    WcStatus::BadRespErr => IBV_WC_BAD_RESP_ERR,
    WcStatus::LocAccessErr => IBV_WC_LOC_ACCESS_ERR,
    WcStatus::RemInvReqErr => IBV_WC_REM_INV_REQ_ERR,
    WcStatus::RemAccessErr => IBV_WC_REM_ACCESS_ERR,
    WcStatus::RemOpErr => IBV_WC_REM_OP_ERR,
    WcStatus::RetryExcErr => IBV_WC_RETRY_EXC_ERR,
    WcStatus::RnrRetryExcErr => IBV_WC_RNR_RETRY_EXC_ERR,
    WcStatus::LocRddViolErr => IBV_WC_LOC_RDD_VIOL_ERR,
    WcStatus::RemInvRdReqErr => IBV_WC_REM_INV_RD_REQ_ERR,
    WcStatus::RemAbortErr => IBV_WC_REM_ABORT_ERR,
    WcStatus::InvEecnErr => IBV_WC_INV_EECN_ERR,
    WcStatus::InvEecStateErr => IBV_WC_INV_EEC_STATE_ERR,
    WcStatus::FatalErr => IBV_WC_FATAL_ERR,
    WcStatus::RespTimeoutErr => IBV_WC_RESP_TIMEOUT_ERR,
    WcStatus::GeneralErr => IBV_WC_GENERAL_ERR,
}
