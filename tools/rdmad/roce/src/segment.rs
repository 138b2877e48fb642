// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Segmentation of SENDs and RDMA WRITEs into packets (IBTA 9.4.1, 9.4.3).

use crate::headers::{Part, SendPart, WritePart};
use crate::opcode::Position;
use crate::work::{Mtu, SendFlags, SendOp, SendWr};

/// A packet of a message.
pub(crate) struct Segment {
    pub part: Part,
    /// Whether the receiver raises a solicited event when the message completes.
    pub solicited: bool,
    /// Offset of the payload in the message, in bytes.
    pub offset: u32,
    /// Length of the payload in bytes.
    pub length: u32,
    /// Whether the message ends with this packet.
    pub last: bool,
}

/// Packet number `index` of a SEND or RDMA WRITE; `None` if `wr` is neither.
pub(crate) fn segment<L>(mtu: Mtu, wr: &SendWr<L>, index: u32) -> Option<Segment> {
    let mtu = mtu.bytes();
    // A message has at most 2^31 bytes, so the product does not overflow.
    let offset = index * mtu;
    let left = wr.length - offset;
    let last = left <= mtu;
    let position = Position::of(index == 0, last);
    // A WRITE without immediate data completes no receive, so it raises no solicited event.
    let (part, completes) = match wr.op {
        SendOp::Send { with } => (Part::Send(SendPart::new(position, with)), true),
        SendOp::Write { remote, imm } => {
            let reth = remote.range(0, wr.length);
            let part = WritePart::new(position, reth, imm);
            (Part::Write(part), imm.is_some())
        }
        SendOp::Read { .. }
        | SendOp::Atomic { .. }
        | SendOp::AtomicWrite { .. }
        | SendOp::Flush(_)
        | SendOp::Local { .. } => return None,
    };
    Some(Segment {
        part,
        solicited: last && completes && wr.flags.contains(SendFlags::SOLICITED),
        offset,
        length: left.min(mtu),
        last,
    })
}
