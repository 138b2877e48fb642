// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Commands for CQs.

use super::super::number::Cqn;
use super::super::ring::RingAddr;
use super::super::wire::Wire;
use super::{Command, ControlCommand, CreateFlags, Empty, MAX_REQUEST, MAX_RESPONSE};

wire_struct! {
    /// Request of CREATE_CQ (RFC: `struct cmd_create_cq`).
    pub struct CmdCreateCq: 4 {
        /// Number of entries.
        0 => cqe: u32,
    }
}

wire_struct! {
    /// Response of CREATE_CQ (RFC: `struct rsp_create_cq`).
    pub struct RspCreateCq: 4 {
        /// Handle.
        0 => cqn: Cqn,
    }
}
request!(CmdCreateCq, CreateCq, RspCreateCq, new cqn);

wire_struct! {
    /// CREATE_CQ with own rings: the RFC's structure and the ring.
    pub struct CmdCreateCqRing: 56 {
        /// The RFC's fields.
        0 => base: CmdCreateCq,
        /// Flags.
        4 => flags: CreateFlags,
        /// The CQ's ring.
        8 => ring: RingAddr,
        /// Doorbell page from which the CQ may be rung.
        32 => doorbell_page: u32,
        /// Event queue for its completion events, from 1 to `num_event_queues`.
        36 => event_queue: u32,
        /// The driver's cookie, which the CQ's events carry.
        40 => cookie: u64,
        /// Reserved, zero.
        48 => reserved: [u8; 8],
    }
}
request!(CmdCreateCqRing, CreateCq, RspCreateCq, new cqn);

wire_struct! {
    /// Request of DESTROY_CQ (RFC: `struct cmd_destroy_cq`).
    pub struct CmdDestroyCq: 4 {
        /// Handle.
        0 => cqn: Cqn,
    }
}
request!(CmdDestroyCq, DestroyCq, Empty, of cqn);

wire_mask! {
    /// Completions for which REQ_NOTIFY_CQ requests a notification.
    pub struct NotifyFlags: u32 {
        /// The next solicited completion.
        SOLICITED = 1 << 0,
        /// The next completion.
        NEXT_COMPLETION = 1 << 1,
    }
}

wire_struct! {
    /// Request of REQ_NOTIFY_CQ (RFC: `struct cmd_req_notify`).
    pub struct CmdReqNotify: 8 {
        /// CQ.
        0 => cqn: Cqn,
        /// The completions for which a notification is requested.
        4 => flags: NotifyFlags,
    }
}
request!(CmdReqNotify, ReqNotifyCq, Empty, of cqn);

wire_struct! {
    /// Request of RESIZE_CQ.
    pub struct CmdResizeCq: 32 {
        /// Handle.
        0 => cqn: Cqn,
        /// Number of entries.
        4 => cqe: u32,
        /// The new ring.
        8 => ring: RingAddr,
    }
}

wire_struct! {
    /// Response of RESIZE_CQ.
    pub struct RspResizeCq: 4 {
        /// Producer's position at which the old ring ends. Later completions are in the new ring.
        0 => end: u32,
    }
}
request!(CmdResizeCq, ResizeCq, RspResizeCq, of cqn);

wire_struct! {
    /// MODIFY_CQ: sets the moderation of a CQ. The CQ's event is sent `period` microseconds after
    /// it is due, or as soon as `count` completions are published. If either is 0, or if `count` is
    /// 1, the event is sent at once.
    pub struct CmdModifyCq: 12 {
        /// Handle.
        0 => cqn: Cqn,
        /// Number of completions, at most `CqModerationConfig::max_count`.
        4 => count: u32,
        /// Microseconds, at most `CqModerationConfig::max_period`.
        8 => period: u32,
    }
}
request!(CmdModifyCq, ModifyCq, Empty, of cqn);
