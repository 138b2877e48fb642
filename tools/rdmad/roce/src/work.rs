// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Work requests and completions as the transport sees them.
//!
//! Local memory is opaque: `L` is whatever the caller needs to find the bytes again (a snapshot of
//! the SGEs, inline data, the ring slot to give back). The transport hands it to the environment
//! with offsets into the message.

use virtio_rdma_abi::number::Qpn;

use crate::headers::{Feth, Reth};
use crate::net::Mac;

pub use virtio_rdma_abi::ib::{
    AccessFlags, AsyncEvent, FlushLevel, FlushTypes, Mtu, SendFlags, WcStatus,
};

/// Longest message of a connected QP in bytes (IBTA 9.4.3: 2^31).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// Memory of the peer that an RDMA operation names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Virtual address, as registered.
    pub va: u64,
    /// R_Key.
    pub rkey: u32,
}

impl Remote {
    /// The header for `length` bytes from `offset`. The responder checks that the range does not
    /// wrap.
    pub const fn range(&self, offset: u32, length: u32) -> Reth {
        Reth {
            // `u64::from` is not const; a u32 fits.
            va: self.va.wrapping_add(offset as u64),
            rkey: self.rkey,
            length,
        }
    }
}

/// Additions to the message of a SEND.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum With {
    /// Nothing.
    #[default]
    Nothing,
    /// Immediate data in network byte order.
    Imm([u8; 4]),
    /// An R_Key that the receiver invalidates; RC alone.
    Inv(u32),
}

impl With {
    /// Immediate data.
    pub(crate) const fn imm(self) -> Option<[u8; 4]> {
        match self {
            Self::Imm(imm) => Some(imm),
            Self::Nothing | Self::Inv(_) => None,
        }
    }
}

/// An atomic operation on a 64-bit word (IBTA 9.4.5). Its result is the word as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Stores `swap` if the word equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds, modulo 2^64.
    FetchAdd {
        /// Addend.
        add: u64,
    },
}

/// A FLUSH (IBTA A19.4.1): earlier WRITEs to this memory are where it says before the answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushOp {
    /// Where the range starts.
    pub remote: Remote,
    /// Its length in bytes; all of the MR or window if `None`.
    pub length: Option<u32>,
    /// The actions.
    pub types: FlushTypes,
}

impl FlushOp {
    /// The operation that these headers ask for.
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

    /// The rights that it takes.
    pub fn access(&self) -> AccessFlags {
        let right = |flag, right| {
            if self.types.contains(flag) {
                right
            } else {
                AccessFlags::NONE
            }
        };
        right(FlushTypes::GLOBAL, AccessFlags::FLUSH_GLOBAL)
            | right(FlushTypes::PERSISTENT, AccessFlags::FLUSH_PERSISTENT)
    }
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND. The only one of a UD QP.
    Send {
        /// Additions to the message.
        with: With,
    },
    /// RDMA WRITE, with immediate data in network byte order if any.
    Write {
        /// Destination.
        remote: Remote,
        /// Immediate data.
        imm: Option<[u8; 4]>,
    },
    /// RDMA READ into the local memory of the work request; RC alone. A READ that also invalidates
    /// a local key does so in the environment, when it completes.
    Read {
        /// Source.
        remote: Remote,
    },
    /// Atomic operation; RC alone. The original value goes to the 8 bytes of the work request's
    /// local memory.
    Atomic {
        /// The word.
        remote: Remote,
        /// Operation.
        op: AtomicOp,
    },
    /// Atomic WRITE of 8 bytes; RC alone.
    AtomicWrite {
        /// The word.
        remote: Remote,
        /// The data to write.
        data: [u8; ATOMIC_SIZE as usize],
    },
    /// FLUSH; RC alone.
    Flush(FlushOp),
    /// An operation on local keys (REG_MR, BIND_MW, LOCAL_INV). It sends nothing; the environment
    /// executes it in its turn.
    Local {
        /// Not before all earlier work requests have ended. Needed when it takes memory away that
        /// they may use, also for packets that have to be repeated.
        drained: bool,
    },
}

/// A validated send work request.
#[derive(Clone, Debug)]
pub struct SendWr<L> {
    /// Id, for the caller.
    pub id: u64,
    /// Operation.
    pub op: SendOp,
    /// Message length in bytes, at most [`MAX_MESSAGE`].
    pub length: u32,
    /// `SOLICITED` and `FENCE` are heeded here, the rest is for the caller.
    pub flags: SendFlags,
    /// Local memory.
    pub local: L,
}

/// A receive work request.
#[derive(Clone, Debug)]
pub struct RecvWr<L> {
    /// Id, for the caller.
    pub id: u64,
    /// Bytes that fit into its buffers.
    pub length: u32,
    /// Local memory.
    pub local: L,
}

/// How a receive work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvCompletion {
    /// Status.
    pub status: WcStatus,
    /// Completed by an RDMA WRITE with immediate data; its data did not go to the receive's
    /// buffers.
    pub rdma_write: bool,
    /// Length of the message in bytes, of a datagram with the 40 bytes of its GRH.
    pub byte_len: u32,
    /// Immediate data, or the R_Key that was invalidated.
    pub with: With,
    /// The sender asked for a solicited event.
    pub solicited: bool,
    /// Where a datagram came from; none for connected QPs.
    pub source: Option<Source>,
}

impl RecvCompletion {
    /// The completion of a SEND of `byte_len` bytes of a connected QP.
    pub(crate) fn sent(byte_len: u32, with: With, solicited: bool) -> Self {
        Self {
            status: WcStatus::Success,
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

/// Where a datagram came from. Its addresses are in the GRH ahead of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// QPN of the sender.
    pub qpn: Qpn,
    /// P_Key of the packet.
    pub pkey: u16,
    /// Service level: the priority of its VLAN tag, or, without one, the type of its headers: see
    /// [`Path::service_level`](crate::Path::service_level).
    pub sl: u8,
    /// MAC address it came from.
    pub mac: Mac,
    /// VLAN id of its tag.
    pub vlan: Option<u16>,
}

/// Bytes of the word of an atomic operation.
pub const ATOMIC_SIZE: u32 = 8;

/// Number of packets, and so of PSNs, of a message of `length` bytes: one even for an empty
/// message.
pub fn packets(length: u32, mtu: Mtu) -> u32 {
    length.div_ceil(mtu.bytes()).max(1)
}
