// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! How long the frames of a work request are, without building them.

use virtio_rdma_abi::number::Qpn;

use crate::connection::Connection;
use crate::headers::{Body, Deth, Request};
use crate::opcode::Service;
use crate::packet::frame_size;
use crate::rc::READ_PACKETS;
use crate::segment::segment;
use crate::work::{Mtu, Remote, SendOp, SendWr, ATOMIC_SIZE};

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

/// A range of memory. Headers are as long whatever they say.
const SOME_RANGE: Remote = Remote { va: 0, rkey: 0 };

/// Bytes of frame number `index` with which a requester of `service` executes `wr`; 0 if there is
/// no such frame.
pub fn request_size<L>(
    service: Service,
    connection: &Connection,
    wr: &SendWr<L>,
    index: u32,
) -> usize {
    let (body, payload) = match wr.op {
        SendOp::Send { .. } | SendOp::Write { .. } => {
            let Some(segment) = segment(connection.mtu, wr, index) else {
                return 0;
            };
            let body = match service {
                Service::Rc => Body::Request(Request::Part(segment.part)),
                Service::Uc => Body::Uc(segment.part),
                Service::Ud => Body::Ud {
                    deth: Deth {
                        qkey: 0,
                        src_qpn: Qpn::NONE,
                    },
                    imm: segment.part.with().imm(),
                },
            };
            (body, segment.length)
        }
        SendOp::Read { .. } => (Body::Request(Request::Read(SOME_RANGE.range(0, 0))), 0),
        SendOp::Atomic { remote, op } => (Body::Request(Request::Atomic(remote, op)), 0),
        SendOp::AtomicWrite { .. } => {
            let request = Request::AtomicWrite(SOME_RANGE.range(0, 0));
            (Body::Request(request), ATOMIC_SIZE)
        }
        SendOp::Flush(op) => (Body::Request(Request::flush(&op)), 0),
        SendOp::Local { .. } => return 0,
    };
    frame_size(&connection.path, &body, payload as usize)
}
