// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Commands for QPs: creation, attributes, rate limits, multicast groups.

use super::super::ib::QpAttrMask;
use super::super::number::{Cqn, Pdn, Qpn, Srqn};
use super::super::qp::QpAttr;
use super::super::ring::RingAddr;
use super::super::wire::Wire;
use super::{Command, ControlCommand, Empty, MAX_REQUEST, MAX_RESPONSE};

wire_mask! {
    /// Flags of the commands that create a queue with own rings.
    pub struct CreateFlags: u32 {
        /// The ring belongs to a process: kernel-only opcodes are refused.
        USER = 1 << 0,
        /// A UD QP does not receive its own multicast datagrams; needs
        /// [`Feature::Multicast`](super::super::feature::Feature::Multicast).
        BLOCK_MULTICAST_LOOPBACK = 1 << 1,
        /// CREATE_QP: the QP takes its receives from SRQ `srqn`; needs
        /// [`Feature::Srq`](super::super::feature::Feature::Srq).
        SRQ = 1 << 2,
    }
}

wire_struct! {
    /// Request of CREATE_QP (RFC: `struct cmd_create_qp`).
    pub struct CmdCreateQp: 66 {
        /// PD.
        0 => pdn: Pdn,
        /// [`QpType`](super::super::ib::QpType).
        4 => qp_type: u8,
        /// [`SigType`](super::super::ib::SigType).
        5 => sq_sig_type: u8,
        /// Maximum number of outstanding work requests of the SQ.
        6 => max_send_wr: u32,
        /// Maximum number of SGEs of a send work request.
        10 => max_send_sge: u32,
        /// CQ of the SQ.
        14 => send_cqn: Cqn,
        /// Maximum number of outstanding work requests of the RQ.
        18 => max_recv_wr: u32,
        /// Maximum number of SGEs of a receive work request.
        22 => max_recv_sge: u32,
        /// CQ of the RQ.
        26 => recv_cqn: Cqn,
        /// Largest inline payload in bytes.
        30 => max_inline_data: u32,
        /// Flags if queues are own rings, else zero (the RFC's first reserved word).
        34 => flags: CreateFlags,
        /// SRQ if `flags` contains [`CreateFlags::SRQ`], else zero (the RFC's second reserved
        /// word).
        38 => srqn: Srqn,
        /// Reserved, zero.
        42 => reserved: [u8; 24],
    }
}

wire_struct! {
    /// Response of CREATE_QP (RFC: `struct rsp_create_qp`).
    pub struct RspCreateQp: 4 {
        /// Handle.
        0 => qpn: Qpn,
    }
}
request!(CmdCreateQp, CreateQp, RspCreateQp, new qpn);

wire_struct! {
    /// CREATE_QP with own rings: the RFC's structure and the rings.
    pub struct CmdCreateQpRings: 126 {
        /// The RFC's fields.
        0 => base: CmdCreateQp,
        /// The SQ's ring.
        66 => sq: RingAddr,
        /// The RQ's ring; all zero for a QP without RQ.
        90 => rq: RingAddr,
        /// Doorbell page from which the queues may be rung.
        114 => doorbell_page: u32,
        /// The driver's cookie, which the QP's asynchronous events carry.
        118 => cookie: u64,
    }
}
request!(CmdCreateQpRings, CreateQp, RspCreateQp, new qpn);

wire_struct! {
    /// Request of MODIFY_QP (RFC: `struct cmd_modify_qp`).
    pub struct CmdModifyQp: 137 {
        /// Handle.
        0 => qpn: Qpn,
        /// Attributes to change.
        4 => attr_mask: QpAttrMask,
        /// New values of these attributes.
        8 => attrs: QpAttr,
    }
}
request!(CmdModifyQp, ModifyQp, Empty, of qpn);

wire_struct! {
    /// Request of QUERY_QP (RFC: `struct cmd_query_qp`).
    pub struct CmdQueryQp: 8 {
        /// Handle.
        0 => qpn: Qpn,
        /// Requested attributes.
        4 => attr_mask: QpAttrMask,
    }
}

wire_struct! {
    /// Response of QUERY_QP (RFC: `struct rsp_query_qp`).
    pub struct RspQueryQp: 129 {
        /// Attributes.
        0 => attr: QpAttr,
    }
}
request!(CmdQueryQp, QueryQp, RspQueryQp, of qpn);

wire_struct! {
    /// Request of DESTROY_QP (RFC: `struct cmd_destroy_qp`).
    pub struct CmdDestroyQp: 4 {
        /// Handle.
        0 => qpn: Qpn,
    }
}
request!(CmdDestroyQp, DestroyQp, Empty, of qpn);

wire_struct! {
    /// Request of SET_RATE_LIMIT. Needs
    /// [`Feature::RateLimit`](super::super::feature::Feature::RateLimit).
    pub struct CmdSetRateLimit: 16 {
        /// QP.
        0 => qpn: Qpn,
        /// Rate in kb/s (1,000 bits per second), or 0 for no limit.
        4 => rate_limit: u32,
        /// Burst in bytes, or 0 for the device's default.
        8 => max_burst_size: u32,
        /// Length of a typical packet in bytes, or 0 for the path MTU of the port.
        12 => typical_packet_size: u16,
        /// Reserved, zero.
        14 => reserved: [u8; 2],
    }
}
request!(CmdSetRateLimit, SetRateLimit, Empty, of qpn);

wire_struct! {
    /// Request of ATTACH_MCAST. Needs
    /// [`Feature::Multicast`](super::super::feature::Feature::Multicast).
    pub struct CmdAttachMcast: 20 {
        /// QP.
        0 => qpn: Qpn,
        /// The group's GID, in network byte order.
        4 => mgid: [u8; 16],
    }
}
request!(CmdAttachMcast, AttachMcast, Empty, of qpn);

wire_struct! {
    /// Request of DETACH_MCAST. Needs
    /// [`Feature::Multicast`](super::super::feature::Feature::Multicast).
    pub struct CmdDetachMcast: 20 {
        /// QP.
        0 => qpn: Qpn,
        /// The group's GID, in network byte order.
        4 => mgid: [u8; 16],
    }
}
request!(CmdDetachMcast, DetachMcast, Empty, of qpn);
