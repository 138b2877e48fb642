// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Reliable connections (IBTA 9.7): a [`Requester`] and a [`Responder`] for each QP.
//!
//! Both are pure state machines. Packets go in by `on_packet`, time by `on_timer`; every frame goes
//! out in `transmit`, bounded by a budget, so that the caller decides when and how much a QP may
//! send and can wait when the way out is full. A caller's turn for one QP is: feed the packets that
//! arrived, post work while there is room, `transmit` of the responder, then of the requester, and
//! note `next_deadline`.
//!
//! # Errors
//! A call that returns [`QpError`](crate::QpError) has ended the connection: the work request at
//! fault is already completed with the status that the IBTA names. The caller moves the QP to ERR,
//! raises the event, takes back what is left with [`Requester::drain`] and [`Responder::drain`] and
//! flushes it. [`Responder::transmit`] still has the NAK that tells the peer why: call it until
//! [`Responder::has_output`] is false.

mod congestion;
mod requester;
mod responder;
mod timer;

use crate::work::AccessFlags;

pub(crate) use requester::READ_PACKETS;

pub use requester::{Requester, RequesterState};
pub use responder::{Responder, ResponderState};
pub use timer::{ack_timeout, rnr_delay};

/// Packets that a requester keeps unacknowledged, READ responses on their way included.
///
/// Small enough that the bounded queues between two QPs hold what a few busy connections have in
/// flight.
pub const WINDOW: u32 = 128;

/// Most READs and atomic operations that a responder holds at a time, whatever was negotiated.
pub const MAX_RD_ATOMIC: u8 = 128;

/// `rnr_retry` without a limit.
pub const RNR_RETRY_FOREVER: u8 = 7;

/// Attributes of a [`Requester`], in the encodings of the verbs.
#[derive(Clone, Copy, Debug)]
pub struct RequesterAttr {
    /// PSN of the first packet.
    pub sq_psn: u32,
    /// Local ACK timeout, 4.096 µs · 2ⁿ; 0 waits for ever.
    pub timeout: u8,
    /// Transport retries without progress, 0 to 7.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs without progress; 7 has no limit.
    pub rnr_retry: u8,
    /// READs and atomic operations outstanding at a time.
    pub max_rd_atomic: u8,
}

/// Attributes of a [`Responder`], in the encodings of the verbs.
#[derive(Clone, Copy, Debug)]
pub struct ResponderAttr {
    /// Expected PSN of the first packet.
    pub rq_psn: u32,
    /// Delay that RNR NAKs ask for, code of IBTA table 45.
    pub min_rnr_timer: u8,
    /// READs and atomic operations that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Remote operations that the QP admits.
    pub access: AccessFlags,
}
