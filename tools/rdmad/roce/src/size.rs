// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Computes the sizes of the frames of a work request.

use virtio_rdma_abi::number::Qpn;

use crate::connection::Connection;
use crate::headers::{Body, Deth, RcRequest};
use crate::opcode::Service;
use crate::packet::frame_size;
use crate::rc::READ_PACKETS;
use crate::segment::segment;
use crate::work::{Mtu, Remote, SendOp, SendWr, ATOMIC_SIZE};

/// Maximum number of bytes of a message that one frame of the requester transfers as its payload,
/// or requests from the peer.
pub fn frame_span(op: &SendOp, mtu: Mtu) -> u32 {
    match op {
        SendOp::Send { .. } | SendOp::Write { .. } => mtu.bytes(),
        // A long READ is split into requests of this length.
        SendOp::Read { .. } => mtu.bytes() * READ_PACKETS as u32,
        SendOp::Atomic { .. }
        | SendOp::AtomicWrite { .. }
        | SendOp::Flush(_)
        | SendOp::Local { .. } => u32::MAX,
    }
}

/// An arbitrary range: the size of a header does not depend on its fields.
const SOME_RANGE: Remote = Remote { va: 0, rkey: 0 };

/// Size in bytes of the frame with number `index` among the frames that a requester of `service`
/// sends for `wr`; 0 if there is no such frame.
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
                Service::Rc => Body::Request(RcRequest::Part(segment.part)),
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
        SendOp::Read { .. } => (Body::Request(RcRequest::Read(SOME_RANGE.range(0, 0))), 0),
        SendOp::Atomic { remote, op } => (Body::Request(RcRequest::Atomic(remote, op)), 0),
        SendOp::AtomicWrite { .. } => {
            let request = RcRequest::AtomicWrite(SOME_RANGE.range(0, 0));
            (Body::Request(request), ATOMIC_SIZE)
        }
        SendOp::Flush(op) => (Body::Request(RcRequest::flush(&op)), 0),
        SendOp::Local { .. } => return 0,
    };
    frame_size(&connection.path, &body, payload as usize)
}
