// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The state machines of the services behind one face.

use std::time::Instant;

use budget::{Budget, Exhausted};
use roce::env::{RequesterEnv, ResponderEnv};
use roce::work::{AccessFlags, Mtu, RecvWr, SendWr};
use roce::{rc, uc, ud, Connection, Packet, Path, Pause, Psn, QpError, Sent};
use virtio_rdma_abi::ib::QpType;
use virtio_rdma_abi::qp::QpAttr;

use super::attr;
use crate::wqe::{Fetched, Posted, Received};

/// Packets of the peer acknowledge what was sent.
#[derive(Debug)]
#[must_use]
pub(crate) struct ForAnswer(());

/// The responder has an answer to a request of the peer.
#[derive(Debug)]
#[must_use]
pub(crate) struct ForRequest(());

/// The requester of a connection.
#[derive(Debug)]
pub(crate) enum Requester {
    Rc(rc::Requester<Posted>),
    Uc(uc::Requester<Posted>),
}

impl Requester {
    /// A requester of an unreliable connection or else of a reliable one.
    pub(super) fn new(qp_type: QpType, connection: Connection, attr: &QpAttr) -> Self {
        match qp_type {
            QpType::Uc => Self::Uc(uc::Requester::new(connection, attr.sq_psn)),
            _ => Self::Rc(rc::Requester::new(connection, attr::requester(attr))),
        }
    }

    /// Makes room for `depth` work requests at a time, charged to `budget`.
    pub(super) fn make_room(&mut self, budget: &Budget, depth: usize) -> Result<(), Exhausted> {
        match self {
            Self::Rc(requester) => requester.make_room(budget, depth),
            Self::Uc(requester) => requester.make_room(budget, depth),
        }
    }

    /// Whether it takes a work request.
    pub(super) fn has_room(&self) -> bool {
        match self {
            Self::Rc(requester) => requester.has_room(),
            Self::Uc(requester) => requester.has_room(),
        }
    }

    /// Whether every work request has ended.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Rc(requester) => requester.is_empty(),
            Self::Uc(requester) => requester.is_empty(),
        }
    }

    /// Whether no work request is between its beginning and its end.
    pub(super) fn is_drained(&self) -> bool {
        match self {
            Self::Rc(requester) => requester.is_drained(),
            Self::Uc(requester) => requester.is_drained(),
        }
    }

    /// Keeps work requests from beginning, or no longer.
    pub(super) fn hold(&mut self, held: bool) {
        match self {
            Self::Rc(requester) => requester.hold(held),
            Self::Uc(requester) => requester.hold(held),
        }
    }

    /// The answer that it waits for, if something was sent that is to be acknowledged.
    pub(super) fn await_answer(&self) -> Option<ForAnswer> {
        match self {
            Self::Rc(requester) => requester.is_unacknowledged().then_some(ForAnswer(())),
            Self::Uc(_) => None,
        }
    }

    /// Takes a work request, if there is [room](Self::has_room).
    pub(super) fn post(&mut self, Fetched { wr, failed }: Fetched) {
        let posted = match (self, failed) {
            (Self::Rc(requester), None) => requester.post(wr),
            (Self::Rc(requester), Some(status)) => requester.post_failed(wr, status),
            (Self::Uc(requester), None) => requester.post(wr),
            (Self::Uc(requester), Some(status)) => requester.post_failed(wr, status),
        };
        debug_assert!(posted.is_ok(), "there was room");
    }

    /// PSN of the next packet.
    pub(crate) fn next_psn(&self) -> Psn {
        match self {
            Self::Rc(requester) => requester.next_psn(),
            Self::Uc(requester) => requester.next_psn(),
        }
    }

    /// Counts packets that another path carried.
    pub(crate) fn advance(&mut self, packets: u32) {
        match self {
            Self::Rc(requester) => requester.advance(packets),
            Self::Uc(requester) => requester.advance(packets),
        }
    }

    /// Takes new attributes and a new path over.
    pub(super) fn update(&mut self, attr: &QpAttr, path: Path) {
        match self {
            Self::Rc(requester) => {
                requester.set_attr(attr::requester(attr));
                requester.set_path(path);
            }
            Self::Uc(requester) => requester.set_path(path),
        }
    }

    /// When it wants a turn at the latest.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match self {
            Self::Rc(requester) => requester.next_deadline(),
            Self::Uc(_) => None,
        }
    }

    /// Sends packets.
    pub(super) fn transmit(
        &mut self,
        budget: usize,
        now: Instant,
        env: &mut impl RequesterEnv<Send = Posted>,
    ) -> Result<Sent, QpError> {
        match self {
            Self::Rc(requester) => {
                requester.on_timer(now, env)?;
                requester.transmit(budget, now, env)
            }
            Self::Uc(requester) => requester.transmit(budget, env),
        }
    }

    /// Takes a packet of the peer, which is a response.
    pub(crate) fn on_packet(
        &mut self,
        packet: &Packet<'_>,
        now: Instant,
        env: &mut impl RequesterEnv<Send = Posted>,
    ) -> Result<(), QpError> {
        match self {
            Self::Rc(requester) => requester.on_packet(packet, now, env),
            Self::Uc(_) => Ok(()),
        }
    }

    /// Ends, and gives `each` work request that has not ended.
    pub(super) fn drain(&mut self, each: impl FnMut(SendWr<Posted>)) {
        match self {
            Self::Rc(requester) => requester.drain().for_each(each),
            Self::Uc(requester) => requester.drain().for_each(each),
        }
    }
}

/// The service that takes the packets of requesters.
#[derive(Debug)]
pub(crate) enum Responder {
    Rc(rc::Responder<Received>),
    Uc(uc::Responder<Received>),
    Ud(ud::Receiver<Received>),
}

impl Responder {
    /// The responder of a connection, unreliable or else reliable.
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

    /// Takes new attributes and a new path over.
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

    /// Path MTU of a connection.
    pub(crate) fn mtu(&self) -> Option<Mtu> {
        match self {
            Self::Rc(responder) => Some(responder.mtu()),
            Self::Uc(responder) => Some(responder.mtu()),
            Self::Ud(_) => None,
        }
    }

    /// Remote operations that the QP admits.
    pub(crate) fn access(&self) -> AccessFlags {
        match self {
            Self::Rc(responder) => responder.attr().access,
            Self::Uc(responder) => responder.access(),
            Self::Ud(_) => AccessFlags::NONE,
        }
    }

    /// Takes the receive work request that it holds for the next message, which comes without
    /// packets.
    pub(super) fn take_receive(&mut self) -> Option<RecvWr<Received>> {
        match self {
            Self::Rc(_) => None,
            Self::Uc(responder) => responder.take_receive(),
            Self::Ud(receiver) => receiver.take_receive(),
        }
    }

    /// Ends, and takes back the receive work request that it holds: one of an unfinished message,
    /// or one that a datagram did not fit.
    pub(super) fn drain(&mut self) -> Option<RecvWr<Received>> {
        match self {
            Self::Rc(responder) => responder.drain(),
            Self::Uc(responder) => responder.drain(),
            Self::Ud(receiver) => receiver.drain(),
        }
    }

    /// Sends answers.
    pub(super) fn transmit(
        &mut self,
        budget: usize,
        env: &mut impl ResponderEnv<Recv = Received>,
    ) -> Result<Sent, QpError> {
        match self {
            Self::Rc(responder) => responder.transmit(budget, env),
            Self::Uc(_) | Self::Ud(_) => Ok(Sent {
                bytes: 0,
                pause: Pause::Idle,
            }),
        }
    }

    /// The next request, if all before it are answered.
    pub(super) fn await_request(&self) -> Option<ForRequest> {
        (!self.has_output()).then_some(ForRequest(()))
    }

    /// Whether it has something to say.
    pub(crate) fn has_output(&self) -> bool {
        matches!(self, Self::Rc(responder) if responder.has_output())
    }
}
