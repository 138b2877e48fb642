// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Reliable connections (IBTA 9.7): a [`Requester`] and a [`Responder`] for each QP.
//!
//! Both are pure state machines. Packets go in by `on_packet`, time by `on_timer`; every frame goes out in
//! `transmit`, bounded by a budget, so that the caller decides when and how much a QP may send and can wait when the
//! way out is full. A caller's turn for one QP is: feed the packets that arrived, post work while there is room,
//! `transmit` of the responder, then of the requester, and note `next_deadline`.
//!
//! # Errors
//! A call that returns [`QpError`] has ended the connection: the work request at fault is already completed with the
//! status that the IBTA names. The caller moves the QP to ERR, raises the event, takes back what is left with
//! [`Requester::drain`] and [`Responder::drain`] and flushes it. [`Responder::transmit`] still has the NAK that tells the peer
//! why: call it until [`Responder::has_output`] is false.

mod env;
mod requester;
mod responder;
mod timer;

use virtio_rdma_abi::ib::DEFAULT_PKEY;

use crate::net::Path;
use crate::psn::Psn;
use crate::work::{AccessFlags, AsyncEvent, Mtu};

pub use env::{BadReceive, Output, RemoteFault, RequesterEnv, ResponderEnv};
pub use requester::Requester;
pub use responder::Responder;
pub use timer::{ack_timeout, rnr_delay};

/// Packets that a requester keeps unacknowledged, READ responses on their way included.
///
/// Small enough that the bounded queues between two QPs hold what a few busy connections have in flight.
pub const WINDOW: u32 = 128;

/// Most READs that a responder holds at a time, whatever was negotiated.
pub const MAX_RD_ATOMIC: u8 = 128;

/// What both halves of a connection know of their peer.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Addresses of the packets.
    pub path: Path,
    /// QPN of the peer.
    pub dest_qpn: u32,
    /// P_Key that packets carry.
    pub pkey: u16,
    /// Path MTU.
    pub mtu: Mtu,
}

impl Connection {
    /// A connection with the default partition.
    pub fn new(path: Path, dest_qpn: u32, mtu: Mtu) -> Self {
        Self {
            path,
            dest_qpn,
            pkey: DEFAULT_PKEY,
            mtu,
        }
    }
}

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
    /// READs outstanding at a time.
    pub max_rd_atomic: u8,
}

/// Attributes of a [`Responder`], in the encodings of the verbs.
#[derive(Clone, Copy, Debug)]
pub struct ResponderAttr {
    /// Expected PSN of the first packet.
    pub rq_psn: u32,
    /// Delay that RNR NAKs ask for, code of IBTA table 45.
    pub min_rnr_timer: u8,
    /// READs that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Remote operations that the QP admits.
    pub access: AccessFlags,
}

/// The connection ended; see the [module documentation](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct QpError {
    /// Asynchronous event to raise; none when a completion tells what happened.
    pub event: Option<AsyncEvent>,
}

/// Why `transmit` stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Nothing to send before a packet arrives, work is posted or a deadline passes.
    Idle,
    /// The budget is used up; there is more.
    Budget,
    /// [`Output::frame`] had no buffer; there is more.
    NoFrame,
}

/// Outcome of a call of `transmit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Bytes of the frames sent.
    pub bytes: usize,
    /// Why no more were.
    pub pause: Pause,
}

/// IPv4 identification of a packet: the low bits of its PSN.
fn ident(psn: Psn) -> u16 {
    psn.value() as u16
}
