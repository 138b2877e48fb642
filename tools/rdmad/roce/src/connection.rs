// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Types that the state machines of several transport services use.

use std::ops::Deref;

use virtio_rdma_abi::ib::DEFAULT_PKEY;
use virtio_rdma_abi::number::Qpn;

use crate::headers::Bth;
use crate::net::{Path, Template};
use crate::psn::Psn;
use crate::work::{AsyncEvent, Mtu};

/// Attributes of a connection that requester and responder share.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Addresses and other header fields of packets to the peer.
    pub path: Path,
    /// QPN of the peer.
    pub dest_qpn: Qpn,
    /// P_Key that packets carry.
    pub pkey: u16,
    /// Path MTU.
    pub mtu: Mtu,
}

impl Connection {
    /// A connection with the default partition.
    pub fn new(path: Path, dest_qpn: Qpn, mtu: Mtu) -> Self {
        Self {
            path,
            dest_qpn,
            pkey: DEFAULT_PKEY,
            mtu,
        }
    }

    /// The base header of a packet to the peer, without flags.
    pub(crate) fn bth(&self, psn: Psn) -> Bth {
        Bth::new(self.pkey, self.dest_qpn, psn)
    }
}

/// A connection as its state machines hold it, with the template of the headers of its packets.
#[derive(Clone, Debug)]
pub(crate) struct TemplatedConnection {
    connection: Connection,
    template: Template,
}

impl TemplatedConnection {
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            template: Template::of(&connection.path),
            connection,
        }
    }

    /// Changes the path of packets to the peer.
    pub(crate) fn set_path(&mut self, path: Path) {
        self.connection.path = path;
        self.template = Template::of(&path);
    }

    /// Ethernet, IP and UDP headers of packets to the peer.
    pub(crate) const fn template(&self) -> &Template {
        &self.template
    }
}

impl Deref for TemplatedConnection {
    type Target = Connection;
    fn deref(&self) -> &Connection {
        &self.connection
    }
}

/// An error that ended the connection. The documentation of [`rc`](crate::rc) and
/// [`uc`](crate::uc) says how the caller handles the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct QpError {
    /// Asynchronous event to raise; `None` if a completion already reports the error.
    pub event: Option<AsyncEvent>,
}

/// Why `transmit` stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Nothing to send until a packet arrives, work is posted or a deadline passes.
    Idle,
    /// The budget is used up and there are more packets to send.
    Budget,
    /// [`Output::frame`](crate::env::Output::frame) had no buffer for the next packet.
    NoFrame,
}

/// Outcome of a call of `transmit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Total size of the frames sent, in bytes.
    pub bytes: usize,
    /// Why `transmit` sent no more frames.
    pub pause: Pause,
}

/// IPv4 identification of a packet: the low 16 bits of its PSN.
pub(crate) fn ident(psn: Psn) -> u16 {
    psn.value() as u16
}
