// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Work requests and completions as the transport sees them.
//!
//! Local memory is opaque: `L` is whatever the caller needs to find the bytes again (a snapshot of the SGEs, inline
//! data, the ring slot to give back). The transport hands it to the environment with offsets into the message.

pub use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent, Mtu, SendFlags, WcStatus};

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

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND, with immediate data in network byte order if any.
    Send {
        /// Immediate data.
        imm: Option<[u8; 4]>,
    },
    /// RDMA WRITE, with immediate data in network byte order if any.
    Write {
        /// Destination.
        remote: Remote,
        /// Immediate data.
        imm: Option<[u8; 4]>,
    },
    /// RDMA READ into the local memory of the work request.
    Read {
        /// Source.
        remote: Remote,
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
    /// Completed by an RDMA WRITE with immediate data; its data did not go to the receive's buffers.
    pub rdma_write: bool,
    /// Length of the message in bytes.
    pub byte_len: u32,
    /// Immediate data in network byte order.
    pub imm: Option<[u8; 4]>,
    /// The sender asked for a solicited event.
    pub solicited: bool,
}

/// Number of packets, and so of PSNs, of a message of `length` bytes: one even for an empty message.
pub fn packets(length: u32, mtu: Mtu) -> u32 {
    length.div_ceil(mtu.bytes()).max(1)
}
