// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Work requests and completions in the form that the state machines use.
//!
//! Local memory is opaque to the state machines. The caller chooses the type `L` that describes it,
//! for example by a copy of the SGEs, inline data and a ring slot. The state machines pass `L` to
//! the environment with offsets into the message.

use virtio_rdma_abi::number::Qpn;

use crate::headers::{Feth, Reth};
use crate::net::Mac;

pub use virtio_rdma_abi::cqe::WcReason;
pub use virtio_rdma_abi::ib::{
    AccessFlags, AsyncEvent, FlushLevel, FlushTypes, Mtu, SendFlags, WcStatus,
};

/// Longest message of a connected QP in bytes (IBTA 9.4.3: 2^31).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// Why a work request fails: the status of its completion, and the reason for the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WcFault {
    /// Status, not [`WcStatus::Success`].
    pub status: WcStatus,
    /// The check that failed.
    pub reason: WcReason,
}

impl WcFault {
    /// The work request was flushed.
    pub const FLUSHED: Self = Self::new(WcStatus::WrFlushErr, WcReason::Flushed);
    /// The QP can't execute the operation.
    pub const NOT_PERMITTED: Self = Self::new(WcStatus::LocQpOpErr, WcReason::OpcodeNotPermitted);
    /// The driver has changed a WQE that was being executed.
    pub const CHANGED: Self = Self::NOT_PERMITTED;
    /// The QP permits no READs and atomic operations.
    pub const NO_READS: Self = Self::new(WcStatus::LocQpOpErr, WcReason::NoReads);
    /// The message is too long.
    pub const TOO_LONG: Self = Self::new(WcStatus::LocLenErr, WcReason::MessageTooLong);
    /// The memory of an atomic operation has a wrong length.
    pub const BAD_ATOMIC_LENGTH: Self = Self::new(WcStatus::LocLenErr, WcReason::BadAtomicLength);
    /// The message does not fit its receive.
    pub const RECEIVE_TOO_SHORT: Self = Self::new(WcStatus::LocLenErr, WcReason::ReceiveTooShort);
    /// A response has a wrong length.
    pub const BAD_RESPONSE_LENGTH: Self =
        Self::new(WcStatus::LocLenErr, WcReason::BadResponseLength);
    /// A response does not fit the request.
    pub const BAD_RESPONSE: Self = Self::new(WcStatus::BadRespErr, WcReason::UnexpectedResponse);
    /// The peer's QP does not admit the request.
    pub const PEER_INVALID_REQUEST: Self =
        Self::new(WcStatus::RemInvReqErr, WcReason::PeerInvalidRequest);
    /// The peer's memory does not admit the request. A peer is not told more than the NAK code of
    /// the IBTA says: it could tell keys that exist from those that do not.
    pub const PEER_ACCESS: Self = Self::new(WcStatus::RemAccessErr, WcReason::PeerAccess);
    /// The peer failed to execute the request.
    pub const PEER_OPERATION: Self = Self::new(WcStatus::RemOpErr, WcReason::PeerOperation);
    /// The peer does not answer.
    pub const PEER_SILENT: Self = Self::new(WcStatus::RetryExcErr, WcReason::PeerSilent);
    /// The peer has no receive.
    pub const PEER_NOT_READY: Self = Self::new(WcStatus::RnrRetryExcErr, WcReason::PeerNotReady);

    /// A fault with this status and reason.
    pub const fn new(status: WcStatus, reason: WcReason) -> Self {
        Self { status, reason }
    }
}

/// The end of a work request.
pub type WcResult = Result<(), WcFault>;

/// The status of a work request that ends so.
pub fn status(result: WcResult) -> WcStatus {
    result.err().map_or(WcStatus::Success, |fault| fault.status)
}

/// Start of a remote memory range: address and R_Key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Virtual address in the MR or window.
    pub va: u64,
    /// R_Key.
    pub rkey: u32,
}

impl Remote {
    /// The RETH for `length` bytes from `offset` on. The address may wrap: the peer's responder
    /// refuses such a range.
    pub const fn range(&self, offset: u32, length: u32) -> Reth {
        Reth {
            // A cast instead of `u64::from`, which is not const.
            va: self.va.wrapping_add(offset as u64),
            rkey: self.rkey,
            length,
        }
    }
}

/// Extended header of the last packet of a SEND.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum With {
    /// No extended header.
    #[default]
    Nothing,
    /// Immediate data in network byte order.
    Imm([u8; 4]),
    /// An R_Key that the receiver invalidates; only RC.
    Inv(u32),
}

impl With {
    /// Immediate data in network byte order, if any.
    pub(crate) const fn imm(self) -> Option<[u8; 4]> {
        match self {
            Self::Imm(imm) => Some(imm),
            Self::Nothing | Self::Inv(_) => None,
        }
    }
}

/// An atomic operation on a 64-bit word (IBTA 9.4.5). Its result is the original value of the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` if the word equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds `add` to the word, modulo 2^64.
    FetchAdd {
        /// Addend.
        add: u64,
    },
}

/// A FLUSH (IBTA A19.4.1): earlier WRITEs to this memory are globally visible or persistent, as
/// `types` says, before the response is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushOp {
    /// Start of the range.
    pub remote: Remote,
    /// Length of the range in bytes; `None` for the whole MR or window.
    pub length: Option<u32>,
    /// Placement types: global visibility, persistence or both.
    pub types: FlushTypes,
}

impl FlushOp {
    /// The FLUSH of a request with the headers `feth` and `reth`.
    pub(crate) fn new(feth: Feth, reth: Reth) -> Self {
        Self {
            remote: reth.remote(),
            length: match feth.level {
                FlushLevel::Range => Some(reth.length),
                FlushLevel::Mr => None,
            },
            types: feth.types,
        }
    }

    /// The access flags that the FLUSH needs.
    pub fn access(&self) -> AccessFlags {
        let flag = |flush_type, access| {
            if self.types.contains(flush_type) {
                access
            } else {
                AccessFlags::NONE
            }
        };
        flag(FlushTypes::GLOBAL, AccessFlags::FLUSH_GLOBAL)
            | flag(FlushTypes::PERSISTENT, AccessFlags::FLUSH_PERSISTENT)
    }
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND, the only operation of a UD QP.
    Send {
        /// Immediate data or R_Key to invalidate.
        with: With,
    },
    /// RDMA WRITE.
    Write {
        /// Destination.
        remote: Remote,
        /// Immediate data in network byte order, if any.
        imm: Option<[u8; 4]>,
    },
    /// RDMA READ into the local memory of the work request; only RC. For a READ with invalidate,
    /// the environment invalidates the local key when the READ completes.
    Read {
        /// Source.
        remote: Remote,
    },
    /// Atomic operation; only RC. The original value is stored in the work request's local memory
    /// of 8 bytes.
    Atomic {
        /// Address and R_Key of the word.
        remote: Remote,
        /// Operation on the word.
        op: AtomicOp,
    },
    /// Atomic WRITE of 8 bytes; only RC.
    AtomicWrite {
        /// Address and R_Key of the word.
        remote: Remote,
        /// The data to write.
        data: [u8; ATOMIC_SIZE as usize],
    },
    /// FLUSH; only RC.
    Flush(FlushOp),
    /// An operation on local keys (REG_MR, BIND_MW, LOCAL_INV), which sends no packet. The
    /// environment executes it in the order of posting.
    Local {
        /// Whether the operation waits until all earlier work requests have ended. LOCAL_INV must
        /// wait, because retransmissions of earlier work requests may still use the memory of the
        /// key.
        drained: bool,
    },
}

impl SendOp {
    /// The memory of the peer that the operation names; `None` for a SEND or a local operation.
    pub const fn remote(&self) -> Option<Remote> {
        match self {
            Self::Write { remote, .. }
            | Self::Read { remote }
            | Self::Atomic { remote, .. }
            | Self::AtomicWrite { remote, .. } => Some(*remote),
            Self::Flush(flush) => Some(flush.remote),
            Self::Send {
                with: With::Inv(rkey),
            } => Some(Remote { va: 0, rkey: *rkey }),
            Self::Send { .. } | Self::Local { .. } => None,
        }
    }
}

/// A validated send work request.
#[derive(Clone, Debug)]
pub struct SendWr<L> {
    /// Work request id of the caller.
    pub id: u64,
    /// Operation.
    pub op: SendOp,
    /// Message length in bytes, at most [`MAX_MESSAGE`].
    pub length: u32,
    /// Flags. The state machines use only `SOLICITED` and `FENCE`.
    pub flags: SendFlags,
    /// Description of the local memory.
    pub local: L,
}

/// A receive work request.
#[derive(Clone, Debug)]
pub struct RecvWr<L> {
    /// Work request id of the caller.
    pub id: u64,
    /// Total length of the buffers in bytes.
    pub length: u32,
    /// Description of the local memory.
    pub local: L,
}

/// Completion of a receive work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvCompletion {
    /// The end of the work request.
    pub result: WcResult,
    /// Whether the message is an RDMA WRITE with immediate data. The receive's buffers then hold no
    /// data of the message.
    pub rdma_write: bool,
    /// Length of the message in bytes, including the 40 bytes of the GRH of a datagram.
    pub byte_len: u32,
    /// Immediate data, or the R_Key that was invalidated.
    pub with: With,
    /// The sender requested a solicited event.
    pub solicited: bool,
    /// Sender of a datagram; `None` for connected QPs.
    pub source: Option<DatagramSender>,
}

impl RecvCompletion {
    /// The status.
    pub fn status(&self) -> WcStatus {
        status(self.result)
    }

    /// The completion of a SEND of `byte_len` bytes to a connected QP.
    pub(crate) fn sent(byte_len: u32, with: With, solicited: bool) -> Self {
        Self {
            result: Ok(()),
            rdma_write: false,
            byte_len,
            with,
            solicited,
            source: None,
        }
    }

    /// The completion of an RDMA WRITE of `byte_len` bytes with immediate data.
    pub(crate) fn written(byte_len: u32, imm: [u8; 4], solicited: bool) -> Self {
        Self {
            rdma_write: true,
            ..Self::sent(byte_len, With::Imm(imm), solicited)
        }
    }
}

/// Sender of a datagram. The IP addresses are in the GRH ahead of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramSender {
    /// QPN of the sender.
    pub qpn: Qpn,
    /// P_Key of the packet.
    pub pkey: u16,
    /// Service level, see [`Path::service_level`](crate::Path::service_level).
    pub sl: u8,
    /// Source MAC address of the frame.
    pub mac: Mac,
    /// VLAN id of the frame's VLAN tag; `None` without a tag.
    pub vlan: Option<u16>,
}

/// Size of the word of an atomic operation in bytes.
pub const ATOMIC_SIZE: u32 = 8;

/// Number of packets, and thus of PSNs, of a message of `length` bytes. An empty message has one
/// packet.
pub fn packets(length: u32, mtu: Mtu) -> u32 {
    length.div_ceil(mtu.bytes()).max(1)
}
