// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A common interface to the requesters' state machines of the connected transport services.

use std::time::Instant;

use budget::{Exhausted, MemoryBudget};
use roce::env::RequesterEnv;
use roce::work::SendWr;
use roce::{rc, uc, Connection, Packet, Path, Psn, QpError, Sent};
use virtio_rdma_abi::ib::QpType;
use virtio_rdma_abi::qp::QpAttr;

use crate::port_load::Outstanding;
use crate::qp::attr;
use crate::wqe::{Fetched, PostedSend};

/// Proof that the requester waits for an acknowledgement by the peer. The QP gets a turn when the
/// acknowledgement arrives.
#[derive(Debug)]
#[must_use]
pub(crate) struct ForAnswer(());

/// The state machine of a connection's requester.
#[derive(Debug)]
pub(crate) enum RequesterMachine {
    Rc(rc::Requester<PostedSend>),
    Uc(uc::Requester<PostedSend>),
}

impl RequesterMachine {
    /// Creates the requester of an unreliable connection (UC), or of a reliable one (RC).
    pub(in crate::qp) fn new(qp_type: QpType, connection: Connection, attr: &QpAttr) -> Self {
        match qp_type {
            QpType::Uc => Self::Uc(uc::Requester::new(connection, attr.sq_psn)),
            _ => Self::Rc(rc::Requester::new(connection, attr::requester(attr))),
        }
    }

    /// Allocates memory for `depth` work requests in progress, charged to `budget`.
    pub(in crate::qp) fn make_room(
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
    pub(in crate::qp) fn has_room(&self) -> bool {
        match self {
            Self::Rc(requester) => requester.has_room(),
            Self::Uc(requester) => requester.has_room(),
        }
    }

    /// Whether the requester holds no work request.
    pub(in crate::qp) fn is_empty(&self) -> bool {
        match self {
            Self::Rc(requester) => requester.is_empty(),
            Self::Uc(requester) => requester.is_empty(),
        }
    }

    /// Whether every work request whose execution was started is complete.
    pub(in crate::qp) fn is_drained(&self) -> bool {
        match self {
            Self::Rc(requester) => requester.is_drained(),
            Self::Uc(requester) => requester.is_drained(),
        }
    }

    /// Sets whether work requests are held back. If they are, no further one is started.
    pub(in crate::qp) fn hold(&mut self, held: bool) {
        match self {
            Self::Rc(requester) => requester.hold(held),
            Self::Uc(requester) => requester.hold(held),
        }
    }

    /// `Some` if a sent packet awaits its acknowledgement.
    pub(in crate::qp) fn await_answer(&self) -> Option<ForAnswer> {
        match self {
            Self::Rc(requester) => requester.is_unacknowledged().then_some(ForAnswer(())),
            Self::Uc(_) => None,
        }
    }

    /// Accepts a work request. The requester must have [room](Self::has_room).
    pub(in crate::qp) fn post(&mut self, Fetched { wr, failed }: Fetched) {
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
    pub(in crate::qp) fn update(&mut self, attr: &QpAttr, path: Path) {
        match self {
            Self::Rc(requester) => {
                requester.set_attr(attr::requester(attr));
                requester.set_path(path);
            }
            Self::Uc(requester) => requester.set_path(path),
        }
    }

    /// The packets that the peer has yet to answer.
    pub(in crate::qp) fn outstanding(&self) -> Outstanding {
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
    pub(in crate::qp) fn window(&self) -> Option<u64> {
        match self {
            Self::Rc(requester) => Some(requester.window()),
            Self::Uc(_) => None,
        }
    }

    /// Time at which the requester needs a turn, if no event occurs first.
    pub(in crate::qp) fn next_deadline(&self) -> Option<Instant> {
        match self {
            Self::Rc(requester) => requester.next_deadline(),
            Self::Uc(_) => None,
        }
    }

    /// Sends packets of up to `budget` bytes.
    pub(in crate::qp) fn transmit(
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
    pub(in crate::qp) fn drain(&mut self, each: impl FnMut(SendWr<PostedSend>)) {
        match self {
            Self::Rc(requester) => requester.drain().for_each(each),
            Self::Uc(requester) => requester.drain().for_each(each),
        }
    }
}
