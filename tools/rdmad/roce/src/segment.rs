// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! How SENDs and RDMA WRITEs are divided into packets (IBTA 9.4.1, 9.4.3).

use crate::connection::Connection;
use crate::headers::{Bth, Reth, Transport};
use crate::opcode::{Extra, Op, Opcode, Position, Service};
use crate::psn::Psn;
use crate::work::{Remote, SendFlags, SendOp, SendWr, With};

/// A packet of a message.
pub(crate) struct Segment {
    pub transport: Transport,
    /// Payload, as a part of the message.
    pub offset: u32,
    pub length: u32,
    /// The message ends with it.
    pub last: bool,
}

/// Packet number `index` of a SEND or RDMA WRITE; `None` if `wr` is neither.
pub(crate) fn segment<L>(
    service: Service,
    connection: &Connection,
    wr: &SendWr<L>,
    index: u32,
    psn: Psn,
) -> Option<Segment> {
    let (remote, with) = match wr.op {
        SendOp::Send { with } => (None, with),
        SendOp::Write { remote, imm } => (Some(remote), imm.map_or(With::Nothing, With::Imm)),
        SendOp::Read { .. }
        | SendOp::Atomic { .. }
        | SendOp::AtomicWrite { .. }
        | SendOp::Flush(_)
        | SendOp::Local { .. } => return None,
    };
    let mtu = connection.mtu.bytes();
    // A message has at most 2^31 bytes.
    let offset = index * mtu;
    let left = wr.length - offset;
    let last = left <= mtu;
    let position = Position::of(index == 0, last);
    let (extra, imm, invalidate) = match with {
        With::Imm(imm) if last => (Extra::Imm, Some(imm), None),
        With::Inv(rkey) if last => (Extra::Inv, None, Some(rkey)),
        With::Nothing | With::Imm(_) | With::Inv(_) => (Extra::None, None, None),
    };
    let op = match remote {
        Some(_) => Op::Write(position, extra),
        None => Op::Send(position, extra),
    };
    let opcode = Opcode { service, op };
    let mut transport = Transport::new(Bth::new(opcode, connection.pkey, connection.dest_qpn, psn));
    transport.imm = imm;
    transport.invalidate = invalidate;
    transport.reth = remote
        .filter(|_| index == 0)
        .map(|remote| reth(remote, 0, wr.length));
    // A WRITE without immediate data completes no receive that could be solicited.
    transport.bth.solicited =
        last && wr.flags.contains(SendFlags::SOLICITED) && (imm.is_some() || remote.is_none());
    Some(Segment {
        transport,
        offset,
        length: left.min(mtu),
        last,
    })
}

/// The RETH for `length` bytes from `offset` of a remote range. The responder checks that it does
/// not wrap.
pub(crate) fn reth(remote: Remote, offset: u32, length: u32) -> Reth {
    Reth {
        va: remote.va.wrapping_add(u64::from(offset)),
        rkey: remote.rkey,
        length,
    }
}
