// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Data that the kernel module and the user space provider exchange through uverbs.
//!
//! The structures follow the common part of each uverbs command. They only grow at their end, and
//! structures inside of others never grow: see [`versions`](super::versions).

use super::config::RateLimitConfig;
use super::number::{Cqn, Srqn};
use super::versions::Versions;
use super::wqe::AddressVector;

/// Bytes of an exporter's name, including at least one terminating zero.
pub const PEER_NAME_SIZE: usize = 64;

wire_mask! {
    /// Capabilities that the module offers to the provider.
    pub struct ContextFlags: u32 {
        /// Queues are own rings. Otherwise the kernel holds the queues.
        OWN_RINGS = 1 << 0,
        /// Memory windows are supported.
        MEM_WINDOWS = 1 << 1,
        /// Atomic WRITE is supported.
        ATOMIC_WRITE = 1 << 2,
        /// FLUSH is supported.
        FLUSH = 1 << 3,
        /// Accesses to rings need the platform's device barriers instead of barriers between CPUs.
        ORDER_PLATFORM = 1 << 4,
    }
}

wire_mask! {
    /// Properties of a new context.
    pub struct ContextAttributes: u32 {
        /// The context is attached to an exporter.
        PEER = 1 << 0,
    }
}

wire_struct! {
    /// Request of ALLOC_CONTEXT. May be absent, which means all zero.
    pub struct AllocContextReq: 80 {
        /// The fields below that are valid; other fields are zero.
        0 => attributes: ContextAttributes,
        /// Id of the context, which is passed to the exporter.
        4 => peer_id: u32,
        /// The exporter's name, followed by at least one zero byte.
        8 => peer_name: [u8; PEER_NAME_SIZE],
        /// Versions that the provider supports.
        72 => versions: Versions,
    }
}

wire_struct! {
    /// Response of ALLOC_CONTEXT.
    pub struct AllocContextResp: 48 {
        /// Capabilities.
        0 => flags: ContextFlags,
        /// Largest inline payload of a send work request, in bytes.
        4 => max_inline_data: u32,
        /// mmap offset of the context's doorbell page (shared, write only).
        8 => doorbell_offset: u64,
        /// Maximum number of slots of a send or receive ring.
        16 => max_qp_slots: u32,
        /// Maximum number of slots of a CQ ring.
        20 => max_cq_slots: u32,
        /// Ranges for rate limits of QPs; all zero if they are not supported.
        24 => rate_limits: RateLimitConfig,
        /// Number of bytes to map at `doorbell_offset`.
        40 => doorbell_size: u32,
        /// Version of the context; 0 if the request states none.
        44 => version: u32,
    }
}

wire_struct! {
    /// A ring that a process requests; all zero for no ring.
    pub struct UserRing: 16 {
        /// Page-aligned address of the process's memory for the ring; 0 to have the kernel allocate
        /// it.
        0 => addr: u64,
        /// Number of slots; 0 for no ring.
        8 => slots: u32,
        /// Slots have 2ⁿ bytes.
        12 => slot_shift: u8,
        /// Reserved, zero.
        13 => reserved: [u8; 3],
    }
}

wire_struct! {
    /// The mapping of a ring in kernel memory; all zero for other rings.
    pub struct RingMapping: 16 {
        /// mmap offset.
        0 => offset: u64,
        /// Length in bytes. Only the whole ring can be mapped.
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
        /// Handle, as used in doorbells.
        0 => cqn: Cqn,
        /// Reserved, zero.
        4 => reserved: u32,
        /// The mapping of the CQ's ring.
        8 => ring: RingMapping,
    }
}

wire_struct! {
    /// Request of RESIZE_CQ.
    pub struct ResizeCqReq: 16 {
        /// The new ring. A ring in process memory replaces the current ring immediately. A ring in
        /// kernel memory is only prepared: a further request without a ring moves the CQ to the
        /// ring prepared last.
        0 => ring: UserRing,
    }
}

wire_struct! {
    /// Response of RESIZE_CQ.
    pub struct ResizeCqResp: 24 {
        /// Producer's position at which the old ring ends, if the CQ has moved.
        0 => end: u32,
        /// Reserved, zero.
        4 => reserved: [u8; 4],
        /// The mapping of the prepared ring.
        8 => ring: RingMapping,
    }
}

wire_struct! {
    /// Request of CREATE_QP.
    pub struct CreateQpReq: 32 {
        /// The send queue's ring.
        0 => sq: UserRing,
        /// The receive queue's ring; all zero with an SRQ.
        16 => rq: UserRing,
    }
}

wire_struct! {
    /// Response of CREATE_QP.
    pub struct CreateQpResp: 32 {
        /// The mapping of the send queue's ring.
        0 => sq: RingMapping,
        /// The mapping of the receive queue's ring.
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
        /// Handle, as used in doorbells.
        0 => srqn: Srqn,
        /// Reserved, zero.
        4 => reserved: u32,
        /// The mapping of the SRQ's ring.
        8 => ring: RingMapping,
    }
}

wire_struct! {
    /// Request of MODIFY_SRQ, which has no driver response in uverbs.
    pub struct ModifySrqReq: 24 {
        /// The new ring, as in [`ResizeCqReq`], if `IB_SRQ_MAX_WR` is set; otherwise all zero.
        0 => ring: UserRing,
        /// Address at which the kernel stores the [`RingMapping`] of a prepared ring; otherwise 0.
        16 => mapping_addr: u64,
    }
}

wire_struct! {
    /// Request of MODIFY_QP that sets a rate limit: the shape of the limit. May be absent.
    pub struct ModifyQpReq: 8 {
        /// Burst in bytes, or 0 for the device's default.
        0 => max_burst_size: u32,
        /// Length of a typical packet in bytes, or 0 for the path MTU of the port.
        4 => typical_packet_size: u16,
        /// Reserved, zero.
        6 => reserved: [u8; 2],
    }
}

wire_struct! {
    /// Response of CREATE_AH.
    pub struct CreateAhResp: 48 {
        /// The address vector for UD send work requests that use the AH. The kernel has resolved
        /// the MAC address.
        0 => av: AddressVector,
        /// Reserved, zero.
        43 => reserved: [u8; 5],
    }
}

// Responses are padded or truncated, so they have no minimum length.
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
