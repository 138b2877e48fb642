// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Work requests, and their conversion to the structures of libibverbs.

use std::mem::zeroed;
use std::ptr;

use super::{check, ffi, Ah, Sge};

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Send,
    /// SEND with immediate data.
    SendImm(u32),
    /// RDMA WRITE to an address and key.
    Write(u64, u32),
    /// RDMA WRITE with immediate data.
    WriteImm(u64, u32, u32),
    /// RDMA READ from an address and key.
    Read(u64, u32),
    /// Atomic compare-and-swap: address and key of the word, compare value, swap value.
    CompareSwap(u64, u32, u64, u64),
    /// Atomic fetch-and-add: address and key of the word, addend.
    FetchAdd(u64, u32, u64),
    /// SEND that invalidates a key of the peer.
    SendInvalidate(u32),
    /// Invalidation of a local key.
    LocalInvalidate(u32),
    /// Atomic WRITE: address and key of the word, its 8 bytes. Only
    /// [`Qp::build`](super::Qp::build) accepts it.
    AtomicWrite(u64, u32, [u8; 8]),
    /// FLUSH: address, key and length of the range, type, level. Only
    /// [`Qp::build`](super::Qp::build) accepts it.
    Flush(u64, u32, usize, u8, u8),
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct To<'a> {
    /// AH with the path to the destination.
    pub ah: &'a Ah,
    /// QPN of the destination.
    pub qpn: u32,
    /// Q_Key of the destination.
    pub qkey: u32,
}

/// The payload of a send work request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory.
    Sges(&'a [Sge]),
    /// Bytes that are copied when the request is posted. Without bytes, the request has no SGE.
    Inline(&'a [u8]),
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Id in the completion.
    pub id: u64,
    /// The operation.
    pub op: Op,
    pub payload: Payload<'a>,
    /// Whether success completes with a CQE.
    pub signaled: bool,
    /// Whether the peer's completion is solicited.
    pub solicited: bool,
    /// Whether to wait for earlier READs.
    pub fence: bool,
    /// Destination of a datagram.
    pub to: Option<To<'a>>,
}

impl<'a> SendWr<'a> {
    /// A signaled request with registered memory as payload.
    pub fn new(id: u64, op: Op, sges: &'a [Sge]) -> Self {
        Self {
            id,
            op,
            payload: Payload::Sges(sges),
            signaled: true,
            solicited: false,
            fence: false,
            to: None,
        }
    }

    /// Send flags other than INLINE.
    pub(super) fn flags(&self) -> u32 {
        let flags = [
            (self.signaled, ffi::IBV_SEND_SIGNALED),
            (self.solicited, ffi::IBV_SEND_SOLICITED),
            (self.fence, ffi::IBV_SEND_FENCE),
        ];
        flags.iter().filter(|flag| flag.0).map(|flag| flag.1).sum()
    }
}

/// A post that was refused.
#[derive(Debug)]
pub struct PostError {
    /// Index of the first request that was not posted.
    pub index: usize,
    /// The errno.
    pub error: std::io::Error,
}

impl std::fmt::Display for PostError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "post of request {} refused: {}", self.index, self.error)
    }
}

impl std::error::Error for PostError {}

pub(super) fn sges_of(payload: Payload<'_>) -> Vec<ffi::ibv_sge> {
    match payload {
        Payload::Sges(sges) => sges
            .iter()
            .map(|sge| ffi::ibv_sge {
                addr: sge.addr,
                length: sge.length,
                lkey: sge.lkey,
            })
            .collect(),
        Payload::Inline([]) => Vec::new(),
        Payload::Inline(bytes) => vec![ffi::ibv_sge {
            addr: bytes.as_ptr().addr() as u64,
            length: bytes.len() as u32,
            lkey: 0,
        }],
    }
}

pub(super) fn raw_send(wr: &SendWr<'_>, list: &mut [ffi::ibv_sge]) -> ffi::ibv_send_wr {
    // SAFETY: All-zero bytes are a valid ibv_send_wr.
    let mut raw: ffi::ibv_send_wr = unsafe { zeroed() };
    raw.wr_id = wr.id;
    raw.sg_list = list.as_mut_ptr();
    raw.num_sge = list.len() as i32;
    let rdma = |remote_addr, rkey| ffi::ibv_send_wr__bindgen_ty_2 {
        rdma: ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey },
    };
    let atomic = |remote_addr, rkey, compare_add, swap| ffi::ibv_send_wr__bindgen_ty_2 {
        atomic: ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr,
            compare_add,
            swap,
            rkey,
        },
    };
    let extra = &mut raw.__bindgen_anon_1;
    match wr.op {
        Op::Send => raw.opcode = ffi::IBV_WR_SEND,
        Op::SendImm(imm) => {
            raw.opcode = ffi::IBV_WR_SEND_WITH_IMM;
            extra.imm_data = imm.to_be();
        }
        Op::SendInvalidate(key) => {
            raw.opcode = ffi::IBV_WR_SEND_WITH_INV;
            extra.invalidate_rkey = key;
        }
        // `struct ibv_send_wr` has no fields for these operations.
        Op::AtomicWrite(..) => raw.opcode = ffi::IBV_WR_ATOMIC_WRITE,
        Op::Flush(..) => raw.opcode = ffi::IBV_WR_FLUSH,
        Op::LocalInvalidate(key) => {
            raw.opcode = ffi::IBV_WR_LOCAL_INV;
            extra.invalidate_rkey = key;
        }
        Op::Write(addr, key) => {
            raw.opcode = ffi::IBV_WR_RDMA_WRITE;
            raw.wr = rdma(addr, key);
        }
        Op::WriteImm(addr, key, imm) => {
            raw.opcode = ffi::IBV_WR_RDMA_WRITE_WITH_IMM;
            raw.wr = rdma(addr, key);
            extra.imm_data = imm.to_be();
        }
        Op::Read(addr, key) => {
            raw.opcode = ffi::IBV_WR_RDMA_READ;
            raw.wr = rdma(addr, key);
        }
        Op::CompareSwap(addr, key, compare, swap) => {
            raw.opcode = ffi::IBV_WR_ATOMIC_CMP_AND_SWP;
            raw.wr = atomic(addr, key, compare, swap);
        }
        Op::FetchAdd(addr, key, add) => {
            raw.opcode = ffi::IBV_WR_ATOMIC_FETCH_AND_ADD;
            raw.wr = atomic(addr, key, add, 0);
        }
    }
    if let Some(to) = wr.to {
        raw.wr.ud = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
            ah: to.ah.raw(),
            remote_qpn: to.qpn,
            remote_qkey: to.qkey,
        };
    }
    raw.send_flags = wr.flags();
    if matches!(wr.payload, Payload::Inline(_)) {
        raw.send_flags |= ffi::IBV_SEND_INLINE;
    }
    raw
}

/// Links the requests of a slice to a list.
pub(super) fn link<T>(wrs: &mut [T], set: impl Fn(&mut T, *mut T)) {
    let first = wrs.as_mut_ptr();
    for index in 1..wrs.len() {
        // SAFETY: Both indices are in the slice, and no other reference to it exists.
        unsafe { set(&mut *first.add(index - 1), first.add(index)) };
    }
}

/// The result of a post. An error has the index of the bad request.
pub(super) fn posted<T>(code: i32, wrs: &[T], bad: *mut T) -> Result<(), PostError> {
    check(code).map_err(|error| PostError {
        index: wrs
            .iter()
            .position(|wr| ptr::eq(wr, bad))
            .unwrap_or(wrs.len()),
        error,
    })
}
