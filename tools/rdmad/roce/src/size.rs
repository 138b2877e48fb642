// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! How long the frames of a work request are, without building them.

use virtio_rdma_abi::ib::{FlushLevel, FlushTypes};

use crate::connection::Connection;
use crate::headers::{AtomicEth, Bth, Deth, Feth, Reth, Transport};
use crate::opcode::{Op, Opcode, Service};
use crate::packet::frame_size;
use crate::psn::Psn;
use crate::rc::READ_PACKETS;
use crate::segment::segment;
use crate::work::{Mtu, SendOp, SendWr, ATOMIC_SIZE};

/// Bytes of the message that a frame of the requester stands for, at most: what it carries, or what
/// it asks for.
pub fn frame_span(op: &SendOp, mtu: Mtu) -> u32 {
    match op {
        SendOp::Send { .. } | SendOp::Write { .. } => mtu.bytes(),
        // A request asks for few packets.
        SendOp::Read { .. } => mtu.bytes() * READ_PACKETS as u32,
        SendOp::Atomic { .. }
        | SendOp::AtomicWrite { .. }
        | SendOp::Flush(_)
        | SendOp::Local { .. } => u32::MAX,
    }
}

/// Headers are as long whatever they say.
const SOME_RANGE: Reth = Reth {
    va: 0,
    rkey: 0,
    length: 0,
};

/// Bytes of frame number `index` of those that a requester of `service` carries `wr` out with; 0 if
/// it takes none.
pub fn request_size<L>(
    service: Service,
    connection: &Connection,
    wr: &SendWr<L>,
    index: u32,
) -> usize {
    let path = &connection.path;
    let bare = |op| Transport::new(Bth::new(Opcode { service, op }, 0, 0, Psn::new(0)));
    match wr.op {
        SendOp::Send { .. } | SendOp::Write { .. } => {
            let Some(segment) = segment(service, connection, wr, index, Psn::new(0)) else {
                return 0;
            };
            let mut transport = segment.transport;
            if service == Service::Ud {
                transport.deth = Some(Deth {
                    qkey: 0,
                    src_qpn: 0,
                });
            }
            frame_size(path, &transport, segment.length as usize)
        }
        SendOp::Read { .. } => {
            let mut transport = bare(Op::ReadRequest);
            transport.reth = Some(SOME_RANGE);
            frame_size(path, &transport, 0)
        }
        SendOp::Atomic { .. } => {
            let mut transport = bare(Op::FetchAdd);
            transport.atomic = Some(AtomicEth {
                va: 0,
                rkey: 0,
                swap_add: 0,
                compare: 0,
            });
            frame_size(path, &transport, 0)
        }
        SendOp::AtomicWrite { .. } => {
            let mut transport = bare(Op::AtomicWrite);
            transport.reth = Some(SOME_RANGE);
            frame_size(path, &transport, ATOMIC_SIZE as usize)
        }
        SendOp::Flush(_) => {
            let mut transport = bare(Op::Flush);
            transport.feth = Some(Feth {
                types: FlushTypes::GLOBAL,
                level: FlushLevel::Range,
            });
            transport.reth = Some(SOME_RANGE);
            frame_size(path, &transport, 0)
        }
        SendOp::Local { .. } => 0,
    }
}
