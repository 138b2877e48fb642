// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Receiving datagrams.

use crate::connection::QpError;
use crate::env::ResponderEnv;
use crate::headers::Body;
use crate::net::vlan_id;
use crate::packet::Packet;
use crate::work::{DatagramSender, RecvCompletion, RecvWr, With};

use super::grh::{self, GRH_SIZE};

/// Result of [`Receiver::on_packet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Delivered: the packet completed a receive.
    Delivered,
    /// Dropped: the packet belongs to another transport service.
    NotUd,
    /// Dropped: the packet does not have the QP's Q_Key.
    BadQkey,
    /// Dropped: no receive is posted, or the receiver has stopped.
    NoReceive,
    /// Dropped: the datagram does not fit into the receive. The receive is held for the next one.
    TooLong,
}

/// Receives the datagrams of one QP. `R` describes the local memory of a receive work request.
#[derive(Debug)]
pub struct Receiver<R> {
    /// The held receive: the last datagram did not fit into it.
    recv: Option<RecvWr<R>>,
    dead: bool,
}

impl<R> Default for Receiver<R> {
    fn default() -> Self {
        Self {
            recv: None,
            dead: false,
        }
    }
}

impl<R> Receiver<R> {
    /// Takes the held receive for a datagram that is transferred without a packet.
    pub fn take_receive(&mut self) -> Option<RecvWr<R>> {
        self.recv.take()
    }

    /// The held receive, which the next datagram uses.
    pub fn held(&self) -> Option<&RecvWr<R>> {
        self.recv.as_ref()
    }

    /// Whether the receiver has stopped.
    pub fn is_stopped(&self) -> bool {
        self.dead
    }

    /// A receiver with the saved state of another one: its held receive `recv` and whether it
    /// had stopped.
    pub fn restored(recv: Option<RecvWr<R>>, is_stopped: bool) -> Self {
        Self {
            recv,
            dead: is_stopped,
        }
    }

    /// Stops the receiver and returns the held receive.
    pub fn drain(&mut self) -> Option<RecvWr<R>> {
        self.dead = true;
        self.recv.take()
    }

    /// Handles a packet to this QP, whose Q_Key is `qkey`. On an error, the QP has failed and the
    /// receive is already completed.
    pub fn on_packet<E: ResponderEnv<Recv = R>>(
        &mut self,
        packet: &Packet<'_>,
        qkey: u32,
        env: &mut E,
    ) -> Result<Verdict, QpError> {
        let bth = &packet.headers.bth;
        let Body::Ud { deth, imm } = packet.headers.body else {
            return Ok(Verdict::NotUd);
        };
        if self.dead {
            return Ok(Verdict::NoReceive);
        }
        if deth.qkey != qkey {
            return Ok(Verdict::BadQkey);
        }
        let taken = match self.recv.take() {
            Some(recv) => Some(recv),
            None => env.take_receive().map_err(|_| QpError { event: None })?,
        };
        let Some(recv) = taken else {
            return Ok(Verdict::NoReceive);
        };
        // A frame is much shorter than 2^32 bytes, so the cast does not truncate.
        let byte_len = (GRH_SIZE + packet.payload.len()) as u32;
        if byte_len > recv.length {
            self.recv = Some(recv);
            return Ok(Verdict::TooLong);
        }
        let header = grh::received(packet.ip_header);
        let last = packet.payload.is_empty();
        let scattered = env
            .scatter_recv(&recv.local, 0, &header, last)
            .and_then(|()| match packet.payload {
                [] => Ok(()),
                payload => env.scatter_recv(&recv.local, GRH_SIZE as u32, payload, true),
            });
        let completion = RecvCompletion {
            result: scattered,
            rdma_write: false,
            byte_len,
            with: imm.map_or(With::Nothing, With::Imm),
            solicited: bth.solicited,
            source: Some(DatagramSender {
                qpn: deth.src_qpn,
                pkey: bth.pkey,
                sl: packet.path.service_level(),
                mac: packet.path.src_mac,
                vlan: packet.path.vlan.map(vlan_id),
            }),
        };
        env.complete_recv(recv, completion);
        match scattered {
            Ok(()) => Ok(Verdict::Delivered),
            Err(_) => Err(QpError { event: None }),
        }
    }
}
