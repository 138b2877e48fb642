// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Receiving datagrams.

use crate::connection::QpError;
use crate::env::ResponderEnv;
use crate::headers::Body;
use crate::net::vlan_id;
use crate::packet::Packet;
use crate::work::{RecvCompletion, RecvWr, Source, WcStatus, With};

use super::grh::{self, GRH_SIZE};

/// The verdict on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It completed a receive.
    Delivered,
    /// It is of another transport service.
    NotUd,
    /// Dropped: it does not have the QP's Q_Key.
    BadQkey,
    /// Dropped: no receive is posted.
    NoReceive,
    /// Dropped: it does not fit into the receive, which waits for the next datagram.
    TooLong,
}

/// Takes the datagrams of one QP. `R` finds the local memory of a receive work request.
#[derive(Debug)]
pub struct Receiver<R> {
    /// The receive that a datagram did not fit into.
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
    /// Takes the receive that is held for the next datagram, for one that comes by another path
    /// than packets.
    pub fn take_receive(&mut self) -> Option<RecvWr<R>> {
        self.recv.take()
    }

    /// The receive that is held for the next datagram.
    pub fn held(&self) -> Option<&RecvWr<R>> {
        self.recv.as_ref()
    }

    /// Whether it has stopped.
    pub fn is_stopped(&self) -> bool {
        self.dead
    }

    /// A receiver that goes on with the receive that another one held, or that has stopped.
    pub fn restored(recv: Option<RecvWr<R>>, is_stopped: bool) -> Self {
        Self {
            recv,
            dead: is_stopped,
        }
    }

    /// Stops, and takes back a receive that is held.
    pub fn drain(&mut self) -> Option<RecvWr<R>> {
        self.dead = true;
        self.recv.take()
    }

    /// Takes a packet to this QP, whose Q_Key is `qkey`. An error has the QP fail; its receive is
    /// completed.
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
        // A frame is much shorter than 2^32 bytes.
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
            status: scattered.err().unwrap_or(WcStatus::Success),
            rdma_write: false,
            byte_len,
            with: imm.map_or(With::Nothing, With::Imm),
            solicited: bth.solicited,
            source: Some(Source {
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
