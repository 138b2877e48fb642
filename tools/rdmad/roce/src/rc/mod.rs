// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Reliable connections (IBTA 9.7): a [`Requester`] and a [`Responder`] for each QP.
//!
//! Both are state machines without I/O. `on_packet` handles a received packet, `on_timer` expired
//! timers. Only `transmit` sends frames, up to a budget in bytes: the caller decides when and how
//! much a QP sends, and can wait while there are no frame buffers. In a turn for one QP, the caller
//!
//! 1. passes received packets to `on_packet`,
//! 2. posts work requests while there is room,
//! 3. calls `transmit` of the responder, then of the requester,
//! 4. sets its timer to `next_deadline`.
//!
//! # Errors
//! A call that returns [`QpError`](crate::QpError) has ended the connection and completed the
//! failed work request with the status of the IBTA. The caller moves the QP to ERR, raises the
//! event, takes back the remaining work requests with [`Requester::drain`] and
//! [`Responder::drain`], and flushes them. To send the NAK that tells the peer the reason, call
//! [`Responder::transmit`] until [`Responder::has_output`] is false.

mod congestion;
mod requester;
mod responder;
mod timer;

use crate::work::AccessFlags;

pub(crate) use requester::READ_PACKETS;

pub use requester::{Requester, RequesterState};
pub use responder::{Responder, ResponderState};
pub use timer::{ack_timeout, rnr_delay};

/// Maximum number of packets that a requester has unacknowledged, including READ responses in
/// flight.
///
/// The bounded queues between two QPs have room for the windows of a few busy connections.
pub const WINDOW: u32 = 128;

/// Maximum number of READs and atomic operations that a responder queues at a time, even if
/// `max_dest_rd_atomic` is higher.
pub const MAX_RD_ATOMIC: u8 = 128;

/// Value of `rnr_retry` for retries without a limit.
pub const RNR_RETRY_FOREVER: u8 = 7;

/// Attributes of a [`Requester`], in the encodings of the verbs.
#[derive(Clone, Copy, Debug)]
pub struct RequesterAttr {
    /// PSN of the first packet.
    pub sq_psn: u32,
    /// Local ACK timeout n, which stands for 4.096 µs · 2ⁿ; 0 disables the timeout.
    pub timeout: u8,
    /// Maximum number of transport retries without progress, 0 to 7.
    pub retry_cnt: u8,
    /// Maximum number of retries after RNR NAKs without progress, 0 to 6; 7 means no limit.
    pub rnr_retry: u8,
    /// Maximum number of READs and atomic operations outstanding at a time.
    pub max_rd_atomic: u8,
}

/// Attributes of a [`Responder`], in the encodings of the verbs.
#[derive(Clone, Copy, Debug)]
pub struct ResponderAttr {
    /// Expected PSN of the first packet.
    pub rq_psn: u32,
    /// Delay that RNR NAKs request, as a timer code of IBTA table 45.
    pub min_rnr_timer: u8,
    /// Maximum number of READs and atomic operations that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Remote operations that the QP permits.
    pub access: AccessFlags,
}
