// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A common interface to the protocol machines of the transport services.

use std::time::Instant;

use budget::{Exhausted, MemoryBudget};
use roce::env::{RequesterEnv, ResponderEnv};
use roce::work::{AccessFlags, Mtu, RecvWr, SendWr};
use roce::{rc, uc, ud, Connection, Packet, Path, Pause, Psn, QpError, Sent};
use virtio_rdma_abi::ib::QpType;
use virtio_rdma_abi::qp::QpAttr;

use super::attr;
use crate::port_load::Outstanding;
use crate::wqe::{Fetched, PostedRecv, PostedSend};

/// Proof that the requester waits for an acknowledgement by the peer. The QP gets a turn when the
/// acknowledgement arrives.
#[derive(Debug)]
#[must_use]
pub(crate) struct ForAnswer(());

/// Proof that the responder waits for a request of the peer. The QP gets a turn when the request
/// arrives.
#[derive(Debug)]
#[must_use]
pub(crate) struct ForRequest(());

/// The protocol machine of a connection's requester.
#[derive(Debug)]
pub(crate) enum Requester {
    Rc(rc::Requester<PostedSend>),
    Uc(uc::Requester<PostedSend>),
}

impl Requester {
    /// Creates the requester of an unreliable connection (UC), or of a reliable one (RC).
    pub(super) fn new(qp_type: QpType, connection: Connection, attr: &QpAttr) -> Self {
        match qp_type {
            QpType::Uc => Self::Uc(uc::Requester::new(connection, attr.sq_psn)),
            _ => Self::Rc(rc::Requester::new(connection, attr::requester(attr))),
        }
    }

    /// Allocates memory for `depth` work requests in progress, charged to `budget`.
    pub(super) fn make_room(
        &mut self,
        budget: &MemoryBudget,
        depth: usize,
    ) -> Result<(), Exhausted> {
        match self {
            Self::Rc(requester) => requester.make_room(budget, depth),
            Self::Uc(requester) => requester.make_room(budget, depth),
        }
    }

    /// Whether the requester can accept another work request.
    pub(super) fn has_room(&self) -> bool {
        match self {
            Self::Rc(requester) => requester.has_room(),
            Self::Uc(requester) => requester.has_room(),
        }
    }

    /// Whether the requester holds no work request.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Rc(requester) => requester.is_empty(),
            Self::Uc(requester) => requester.is_empty(),
        }
    }

    /// Whether every work request whose execution was started is complete.
    pub(super) fn is_drained(&self) -> bool {
        match self {
            Self::Rc(requester) => requester.is_drained(),
            Self::Uc(requester) => requester.is_drained(),
        }
    }

    /// Sets whether work requests are held back. If they are, no further one is started.
    pub(super) fn hold(&mut self, held: bool) {
        match self {
            Self::Rc(requester) => requester.hold(held),
            Self::Uc(requester) => requester.hold(held),
        }
    }

    /// `Some` if a sent packet awaits its acknowledgement.
    pub(super) fn await_answer(&self) -> Option<ForAnswer> {
        match self {
            Self::Rc(requester) => requester.is_unacknowledged().then_some(ForAnswer(())),
            Self::Uc(_) => None,
        }
    }

    /// Accepts a work request. The requester must have [room](Self::has_room).
    pub(super) fn post(&mut self, Fetched { wr, failed }: Fetched) {
        let posted = match (self, failed) {
            (Self::Rc(requester), None) => requester.post(wr),
            (Self::Rc(requester), Some(status)) => requester.post_failed(wr, status),
            (Self::Uc(requester), None) => requester.post(wr),
            (Self::Uc(requester), Some(status)) => requester.post_failed(wr, status),
        };
        debug_assert!(posted.is_ok(), "there was room");
    }

    /// PSN of the next packet to send.
    pub(crate) fn next_psn(&self) -> Psn {
        match self {
            Self::Rc(requester) => requester.next_psn(),
            Self::Uc(requester) => requester.next_psn(),
        }
    }

    /// Advances the PSN by `packets`, for a message that the direct path transferred.
    pub(crate) fn advance(&mut self, packets: u32) {
        match self {
            Self::Rc(requester) => requester.advance(packets),
            Self::Uc(requester) => requester.advance(packets),
        }
    }

    /// Applies new attributes and a new path.
    pub(super) fn update(&mut self, attr: &QpAttr, path: Path) {
        match self {
            Self::Rc(requester) => {
                requester.set_attr(attr::requester(attr));
                requester.set_path(path);
            }
            Self::Uc(requester) => requester.set_path(path),
        }
    }

    /// The packets that the peer has yet to answer.
    pub(super) fn outstanding(&self) -> Outstanding {
        match self {
            Self::Rc(requester) => Outstanding {
                responses: requester.requested(),
                is_busy: requester.is_unacknowledged(),
                acknowledged: requester.acknowledged(),
            },
            Self::Uc(_) => Outstanding::default(),
        }
    }

    /// Number of packets that the requester may have unacknowledged; `None` without a window.
    pub(super) fn window(&self) -> Option<u64> {
        match self {
            Self::Rc(requester) => Some(requester.window()),
            Self::Uc(_) => None,
        }
    }

    /// Time at which the requester needs a turn, if no event occurs first.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match self {
            Self::Rc(requester) => requester.next_deadline(),
            Self::Uc(_) => None,
        }
    }

    /// Sends packets of up to `budget` bytes.
    pub(super) fn transmit(
        &mut self,
        budget: usize,
        now: Instant,
        env: &mut impl RequesterEnv<Send = PostedSend>,
    ) -> Result<Sent, QpError> {
        match self {
            Self::Rc(requester) => {
                requester.on_timer(now, env)?;
                requester.transmit(budget, now, env)
            }
            Self::Uc(requester) => requester.transmit(budget, env),
        }
    }

    /// Handles a response of the peer.
    pub(crate) fn on_packet(
        &mut self,
        packet: &Packet<'_>,
        now: Instant,
        env: &mut impl RequesterEnv<Send = PostedSend>,
    ) -> Result<(), QpError> {
        match self {
            Self::Rc(requester) => requester.on_packet(packet, now, env),
            Self::Uc(_) => Ok(()),
        }
    }

    /// Stops the requester, and calls `each` for each incomplete work request.
    pub(super) fn drain(&mut self, each: impl FnMut(SendWr<PostedSend>)) {
        match self {
            Self::Rc(requester) => requester.drain().for_each(each),
            Self::Uc(requester) => requester.drain().for_each(each),
        }
    }
}

/// The protocol machine of a QP's receive side.
#[allow(
    clippy::large_enum_variant,
    reason = "most QPs are RC, whose packets would all take another indirection"
)]
#[derive(Debug)]
pub(crate) enum Responder {
    Rc(rc::Responder<PostedRecv>),
    Uc(uc::Responder<PostedRecv>),
    Ud(ud::Receiver<PostedRecv>),
}

impl Responder {
    /// Creates the responder of an unreliable connection (UC), or of a reliable one (RC).
    pub(super) fn connected(qp_type: QpType, connection: Connection, attr: &QpAttr) -> Self {
        match qp_type {
            QpType::Uc => Self::Uc(uc::Responder::new(
                connection.mtu,
                attr.rq_psn,
                AccessFlags(attr.qp_access_flags.0),
            )),
            _ => Self::Rc(rc::Responder::new(connection, attr::responder(attr))),
        }
    }

    /// Applies new attributes and a new path.
    pub(super) fn update(&mut self, attr: &QpAttr, path: Path) {
        match self {
            Self::Rc(responder) => {
                responder.set_attr(attr::responder(attr));
                responder.set_path(path);
            }
            Self::Uc(responder) => responder.set_access(AccessFlags(attr.qp_access_flags.0)),
            Self::Ud(_) => {}
        }
    }

    /// Path MTU of a connection; `None` for datagrams.
    pub(crate) fn mtu(&self) -> Option<Mtu> {
        match self {
            Self::Rc(responder) => Some(responder.mtu()),
            Self::Uc(responder) => Some(responder.mtu()),
            Self::Ud(_) => None,
        }
    }

    /// Access flags that the QP grants to its peer.
    pub(crate) fn access(&self) -> AccessFlags {
        match self {
            Self::Rc(responder) => responder.attr().access,
            Self::Uc(responder) => responder.access(),
            Self::Ud(_) => AccessFlags::NONE,
        }
    }

    /// Takes the receive that the machine has kept for the next message, since that message arrives
    /// on the direct path.
    pub(super) fn take_receive(&mut self) -> Option<RecvWr<PostedRecv>> {
        match self {
            Self::Rc(_) => None,
            Self::Uc(responder) => responder.take_receive(),
            Self::Ud(receiver) => receiver.take_receive(),
        }
    }

    /// Stops the machine and returns the receive that it holds: that of an unfinished message, or
    /// of a datagram that did not fit.
    pub(super) fn drain(&mut self) -> Option<RecvWr<PostedRecv>> {
        match self {
            Self::Rc(responder) => responder.drain(),
            Self::Uc(responder) => responder.drain(),
            Self::Ud(receiver) => receiver.drain(),
        }
    }

    /// Sends answers of up to `budget` bytes.
    pub(super) fn transmit(
        &mut self,
        budget: usize,
        env: &mut impl ResponderEnv<Recv = PostedRecv>,
    ) -> Result<Sent, QpError> {
        match self {
            Self::Rc(responder) => responder.transmit(budget, env),
            Self::Uc(_) | Self::Ud(_) => Ok(Sent {
                bytes: 0,
                pause: Pause::Idle,
            }),
        }
    }

    /// `Some` if all requests are answered, so the responder waits for the next request.
    pub(super) fn await_request(&self) -> Option<ForRequest> {
        (!self.has_output()).then_some(ForRequest(()))
    }

    /// Whether the responder has answers to send.
    pub(crate) fn has_output(&self) -> bool {
        matches!(self, Self::Rc(responder) if responder.has_output())
    }
}
