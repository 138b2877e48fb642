// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Commands for SRQs.

use super::super::number::{Pdn, Srqn};
use super::super::ring::RingAddr;
use super::super::wire::Wire;
use super::{Command, ControlCommand, CreateFlags, Empty, MAX_REQUEST, MAX_RESPONSE};

wire_struct! {
    /// Request of CREATE_SRQ.
    pub struct CmdCreateSrq: 52 {
        /// PD against which the local keys of work requests are checked.
        0 => pdn: Pdn,
        /// Maximum number of outstanding work requests.
        4 => max_wr: u32,
        /// Maximum number of SGEs of a work request.
        8 => max_sge: u32,
        /// Flags: [`CreateFlags::USER`].
        12 => flags: CreateFlags,
        /// The SRQ's ring.
        16 => ring: RingAddr,
        /// Doorbell page from which the SRQ may be rung.
        40 => doorbell_page: u32,
        /// The driver's cookie, which the SRQ's events carry.
        44 => cookie: u64,
    }
}

wire_struct! {
    /// Response of CREATE_SRQ.
    pub struct RspCreateSrq: 4 {
        /// Handle.
        0 => srqn: Srqn,
    }
}
request!(CmdCreateSrq, CreateSrq, RspCreateSrq, new srqn);

wire_mask! {
    /// Attributes that MODIFY_SRQ changes.
    pub struct SrqAttrMask: u32 {
        /// `max_wr` and the ring.
        MAX_WR = 1 << 0,
        /// `limit`.
        LIMIT = 1 << 1,
    }
}

wire_struct! {
    /// Request of MODIFY_SRQ. Fields outside of the mask are zero.
    pub struct CmdModifySrq: 40 {
        /// Handle.
        0 => srqn: Srqn,
        /// Attributes to change.
        4 => attr_mask: SrqAttrMask,
        /// Maximum number of outstanding work requests.
        8 => max_wr: u32,
        /// The limit event is raised once fewer work requests than this are left; 0 disarms it.
        12 => limit: u32,
        /// The new ring.
        16 => ring: RingAddr,
    }
}
request!(CmdModifySrq, ModifySrq, Empty, of srqn);

wire_struct! {
    /// Request of QUERY_SRQ.
    pub struct CmdQuerySrq: 4 {
        /// Handle.
        0 => srqn: Srqn,
    }
}

wire_struct! {
    /// Response of QUERY_SRQ.
    pub struct RspQuerySrq: 12 {
        /// Maximum number of outstanding work requests.
        0 => max_wr: u32,
        /// Maximum number of SGEs of a work request.
        4 => max_sge: u32,
        /// The armed limit; 0 after its event was raised.
        8 => limit: u32,
    }
}
request!(CmdQuerySrq, QuerySrq, RspQuerySrq, of srqn);

wire_struct! {
    /// Request of DESTROY_SRQ.
    pub struct CmdDestroySrq: 4 {
        /// Handle.
        0 => srqn: Srqn,
    }
}
request!(CmdDestroySrq, DestroySrq, Empty, of srqn);
