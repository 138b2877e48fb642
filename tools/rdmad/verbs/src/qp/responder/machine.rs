// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A common interface to the responders' state machines of the transport services.

use roce::env::ResponderEnv;
use roce::work::{AccessFlags, Mtu, RecvWr};
use roce::{rc, uc, ud, Connection, Path, Pause, QpError, Sent};
use virtio_rdma_abi::ib::QpType;
use virtio_rdma_abi::qp::QpAttr;

use crate::qp::attr;
use crate::wqe::PostedRecv;

/// Proof that the responder waits for a request of the peer. The QP gets a turn when the request
/// arrives.
#[derive(Debug)]
#[must_use]
pub(crate) struct ForRequest(());

/// The state machine of a responder.
#[allow(
    clippy::large_enum_variant,
    reason = "most QPs are RC, whose packets would all take another indirection"
)]
#[derive(Debug)]
pub(crate) enum ResponderMachine {
    Rc(rc::Responder<PostedRecv>),
    Uc(uc::Responder<PostedRecv>),
    Ud(ud::Receiver<PostedRecv>),
}

impl ResponderMachine {
    /// Creates the responder of an unreliable connection (UC), or of a reliable one (RC).
    pub(in crate::qp) fn connected(qp_type: QpType, connection: Connection, attr: &QpAttr) -> Self {
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
    pub(in crate::qp) fn update(&mut self, attr: &QpAttr, path: Path) {
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
    pub(in crate::qp) fn take_receive(&mut self) -> Option<RecvWr<PostedRecv>> {
        match self {
            Self::Rc(_) => None,
            Self::Uc(responder) => responder.take_receive(),
            Self::Ud(receiver) => receiver.take_receive(),
        }
    }

    /// Stops the machine and returns the receive that it holds: that of an unfinished message, or
    /// of a datagram that did not fit.
    pub(in crate::qp) fn drain(&mut self) -> Option<RecvWr<PostedRecv>> {
        match self {
            Self::Rc(responder) => responder.drain(),
            Self::Uc(responder) => responder.drain(),
            Self::Ud(receiver) => receiver.drain(),
        }
    }

    /// Sends answers of up to `budget` bytes.
    pub(in crate::qp) fn transmit(
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
    pub(in crate::qp) fn await_request(&self) -> Option<ForRequest> {
        (!self.has_output()).then_some(ForRequest(()))
    }

    /// Whether the responder has answers to send.
    pub(crate) fn has_output(&self) -> bool {
        matches!(self, Self::Rc(responder) if responder.has_output())
    }
}
