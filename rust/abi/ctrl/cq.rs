// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Commands about CQs.

use super::super::number::Cqn;
use super::super::ring::RingAddr;
use super::super::wire::Wire;
use super::{Command, CreateFlags, Empty, Request, MAX_REQUEST, MAX_RESPONSE};

wire_struct! {
    /// `struct cmd_create_cq`.
    pub struct CmdCreateCq: 4 {
        /// Number of entries.
        0 => cqe: u32,
    }
}

wire_struct! {
    /// `struct rsp_create_cq`.
    pub struct RspCreateCq: 4 {
        /// Handle.
        0 => cqn: Cqn,
    }
}
request!(CmdCreateCq, CreateCq, RspCreateCq);

wire_struct! {
    /// CREATE_CQ in own rings: the RFC's structure and the ring.
    pub struct CmdCreateCqRing: 56 {
        /// The RFC's fields.
        0 => base: CmdCreateCq,
        /// Flags.
        4 => flags: CreateFlags,
        /// Where the ring is.
        8 => ring: RingAddr,
        /// Doorbell page that rings the CQ.
        32 => doorbell_page: u32,
        /// Event queue of its completion events, from 1 up to `num_event_queues`.
        36 => event_queue: u32,
        /// Cookie of its events.
        40 => cookie: u64,
        /// Reserved, zero.
        48 => reserved: [u8; 8],
    }
}
request!(CmdCreateCqRing, CreateCq, RspCreateCq);

wire_struct! {
    /// `struct cmd_destroy_cq`.
    pub struct CmdDestroyCq: 4 {
        /// Handle.
        0 => cqn: Cqn,
    }
}
request!(CmdDestroyCq, DestroyCq, Empty);

wire_mask! {
    /// Flags of REQ_NOTIFY_CQ.
    pub struct NotifyFlags: u32 {
        /// The next solicited completion.
        SOLICITED = 1 << 0,
        /// The next completion.
        NEXT_COMPLETION = 1 << 1,
    }
}

wire_struct! {
    /// `struct cmd_req_notify`.
    pub struct CmdReqNotify: 8 {
        /// CQ.
        0 => cqn: Cqn,
        /// The completions to notify of.
        4 => flags: NotifyFlags,
    }
}
request!(CmdReqNotify, ReqNotifyCq, Empty);

wire_struct! {
    /// RESIZE_CQ.
    pub struct CmdResizeCq: 32 {
        /// Handle.
        0 => cqn: Cqn,
        /// Number of entries.
        4 => cqe: u32,
        /// The ring that takes the place of the present one.
        8 => ring: RingAddr,
    }
}

wire_struct! {
    /// Answer to RESIZE_CQ.
    pub struct RspResizeCq: 4 {
        /// Producer's position that the old ring ends with: what completes later is in the new one.
        0 => end: u32,
    }
}
request!(CmdResizeCq, ResizeCq, RspResizeCq);
