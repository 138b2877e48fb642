// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Data that the kernel module and the user space provider exchange through uverbs.
//!
//! The structures follow the common part of each uverbs command. They grow at their end only, and
//! those inside of others do not grow: see [`versions`](super::versions).

use super::config::RateLimitConfig;
use super::number::{Cqn, Srqn};
use super::versions::Versions;
use super::wqe::AddressVector;

/// Bytes of a peer's name, with the zero that ends it.
pub const PEER_NAME_SIZE: usize = 64;

wire_mask! {
    /// Abilities that the module offers to the provider.
    pub struct ContextFlags: u32 {
        /// Queues are own rings; without it they live in the kernel.
        OWN_RINGS = 1 << 0,
        /// There are memory windows.
        MEM_WINDOWS = 1 << 1,
        /// There are atomic WRITEs.
        ATOMIC_WRITE = 1 << 2,
        /// There are FLUSHes.
        FLUSH = 1 << 3,
        /// Rings are ordered by the barriers of the platform instead of those between CPUs.
        ORDER_PLATFORM = 1 << 4,
    }
}

wire_mask! {
    /// Properties of a new context.
    pub struct ContextAttributes: u32 {
        /// It is attached to a peer.
        PEER = 1 << 0,
    }
}

wire_struct! {
    /// Request of ALLOC_CONTEXT. There may be none: then it is all zero.
    pub struct AllocContextReq: 80 {
        /// The fields below that count; the others are zero.
        0 => attributes: ContextAttributes,
        /// The number that the peer is told.
        4 => peer_id: u32,
        /// The peer's name, filled up with zeroes, one at least.
        8 => peer_name: [u8; PEER_NAME_SIZE],
        /// Versions that the provider speaks.
        72 => versions: Versions,
    }
}

wire_struct! {
    /// Response of ALLOC_CONTEXT.
    pub struct AllocContextResp: 48 {
        /// The abilities that are offered.
        0 => flags: ContextFlags,
        /// Inline payload of a send work request in bytes at most.
        4 => max_inline_data: u32,
        /// Offset for mmap of the context's doorbell page (shared, write only).
        8 => doorbell_offset: u64,
        /// Slots of a send or receive ring at most.
        16 => max_qp_slots: u32,
        /// Slots of a CQ ring at most.
        20 => max_cq_slots: u32,
        /// Rates that a QP's sends can be limited to; all zero if they can not.
        24 => rate_limits: RateLimitConfig,
        /// Bytes to map there.
        40 => doorbell_size: u32,
        /// Version of the context; 0 if the request states none.
        44 => version: u32,
    }
}

wire_struct! {
    /// A ring that a process asks for. Without slots it is none, and all zero.
    pub struct UserRing: 16 {
        /// Address of the process's memory for it, aligned to the page size; 0 for memory of the
        /// kernel.
        0 => addr: u64,
        /// Number of slots; 0 for no ring.
        8 => slots: u32,
        /// Slot size is 2ⁿ bytes.
        12 => slot_shift: u8,
        /// Reserved, zero.
        13 => reserved: [u8; 3],
    }
}

wire_struct! {
    /// Where the process maps a ring in memory of the kernel; all zero for any other ring.
    pub struct RingMapping: 16 {
        /// Offset for mmap.
        0 => offset: u64,
        /// Length in bytes of the whole, which is what can be mapped.
        8 => length: u64,
    }
}

wire_struct! {
    /// Request of CREATE_CQ.
    pub struct CreateCqReq: 16 {
        /// The CQ's ring.
        0 => ring: UserRing,
    }
}

wire_struct! {
    /// Response of CREATE_CQ.
    pub struct CreateCqResp: 24 {
        /// Handle, as the doorbell takes it.
        0 => cqn: Cqn,
        /// Reserved, zero.
        4 => reserved: u32,
        /// Where the process maps the CQ's ring.
        8 => ring: RingMapping,
    }
}

wire_struct! {
    /// Request of RESIZE_CQ.
    pub struct ResizeCqReq: 16 {
        /// The ring that takes the place of the present one at once, if that is memory of the
        /// process. In memory of the kernel it is prepared only; the CQ moves to the ring that was
        /// prepared last with a request of no ring.
        0 => ring: UserRing,
    }
}

wire_struct! {
    /// Response of RESIZE_CQ.
    pub struct ResizeCqResp: 24 {
        /// Producer's position that the old ring ends with, if the CQ has moved.
        0 => end: u32,
        /// Reserved, zero.
        4 => reserved: [u8; 4],
        /// Where the process maps the ring that was prepared.
        8 => ring: RingMapping,
    }
}

wire_struct! {
    /// Request of CREATE_QP.
    pub struct CreateQpReq: 32 {
        /// The send queue's ring.
        0 => sq: UserRing,
        /// The receive queue's ring; none with an SRQ.
        16 => rq: UserRing,
    }
}

wire_struct! {
    /// Response of CREATE_QP.
    pub struct CreateQpResp: 32 {
        /// Where the process maps the send queue's ring.
        0 => sq: RingMapping,
        /// Where the process maps the receive queue's ring.
        16 => rq: RingMapping,
    }
}

wire_struct! {
    /// Request of CREATE_SRQ.
    pub struct CreateSrqReq: 16 {
        /// The SRQ's ring.
        0 => ring: UserRing,
    }
}

wire_struct! {
    /// Response of CREATE_SRQ.
    pub struct CreateSrqResp: 24 {
        /// Handle, as the doorbell takes it.
        0 => srqn: Srqn,
        /// Reserved, zero.
        4 => reserved: u32,
        /// Where the process maps the SRQ's ring.
        8 => ring: RingMapping,
    }
}

wire_struct! {
    /// Request of MODIFY_SRQ, which has no response in uverbs.
    pub struct ModifySrqReq: 24 {
        /// With `IB_SRQ_MAX_WR`, as in [`ResizeCqReq`]; else none.
        0 => ring: UserRing,
        /// Where the process wants the [`RingMapping`] of a ring that is prepared; else 0.
        16 => mapping_addr: u64,
    }
}

wire_struct! {
    /// Request of MODIFY_QP, with a rate limit alone: how it is shaped. There may be none.
    pub struct ModifyQpReq: 8 {
        /// Burst in bytes, 0 for the device's default.
        0 => max_burst_size: u32,
        /// Typical length of a packet in bytes, 0 for the port's MTU.
        4 => typical_packet_size: u16,
        /// Reserved, zero.
        6 => reserved: [u8; 2],
    }
}

wire_struct! {
    /// Response of CREATE_AH.
    pub struct CreateAhResp: 48 {
        /// The address vector that a UD send work request to the AH carries. The kernel has
        /// resolved the MAC address.
        0 => av: AddressVector,
        /// Reserved, zero.
        43 => reserved: [u8; 5],
    }
}

// Responses are filled up or cut off, so they have no least length.
extensible! {
    AllocContextReq from 0,
    AllocContextResp from 0,
    CreateAhResp from 0,
    CreateCqReq from 16,
    CreateCqResp from 0,
    CreateQpReq from 32,
    CreateQpResp from 0,
    CreateSrqReq from 16,
    CreateSrqResp from 0,
    ModifyQpReq from 0,
    ModifySrqReq from 24,
    ResizeCqReq from 16,
    ResizeCqResp from 0,
}
