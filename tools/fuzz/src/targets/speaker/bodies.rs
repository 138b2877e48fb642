// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Transport headers that the speaker modifies or forges.

use roce::headers::{
    Aeth, Body, Deth, Feth, NakCode, Part, RcRequest, RcResponse, ReadPart, Reth, SendPart,
    Syndrome, WritePart,
};
use roce::opcode::Position;
use roce::work::{AtomicOp, With};
use testkit::engine::Mr;
use virtio_rdma_abi::ib::{FlushLevel, FlushTypes};
use virtio_rdma_abi::number::Qpn;

use crate::input::Input;

/// The RETH of a body, if it has one.
pub fn reth_of(body: &mut Body) -> Option<&mut Reth> {
    match body {
        Body::Request(RcRequest::Read(reth))
        | Body::Request(RcRequest::AtomicWrite(reth))
        | Body::Request(RcRequest::Flush(_, reth)) => Some(reth),
        Body::Request(RcRequest::Part(Part::Write(part))) | Body::Uc(Part::Write(part)) => {
            match part {
                WritePart::First(reth) | WritePart::Only(reth, _) => Some(reth),
                WritePart::Middle | WritePart::Last(_) => None,
            }
        }
        _ => None,
    }
}

/// The AETH of a body, if it has one.
pub fn aeth_of(body: &mut Body) -> Option<&mut Aeth> {
    match body {
        Body::Response(RcResponse::Ack(aeth) | RcResponse::Atomic(aeth, _)) => Some(aeth),
        Body::Response(RcResponse::Read(part)) => match part {
            ReadPart::First(aeth) | ReadPart::Last(aeth) | ReadPart::Only(aeth) => Some(aeth),
            ReadPart::Middle => None,
        },
        _ => None,
    }
}

/// Another body in place of `old`. If it has an RETH, this addresses memory of `mr`.
pub fn other_body(old: Body, mr: &Mr, input: &mut Input<'_>) -> Body {
    let reth = Reth {
        va: input.edge(mr.addr),
        rkey: input.edge32(mr.key),
        length: input.edge32(300),
    };
    let position = match input.below(4) {
        0 => Position::First,
        1 => Position::Middle,
        2 => Position::Last,
        _ => Position::Only,
    };
    let imm = input.once_in(4).then_some([7; 4]);
    let write = Part::Write(WritePart::new(position, reth, imm));
    let imm = imm.map_or(With::Nothing, With::Imm);
    let send = |with| Part::Send(SendPart::new(position, with));
    match input.below(12) {
        0 => Body::Request(RcRequest::Part(send(imm))),
        1 => Body::Request(RcRequest::Part(send(With::Inv(mr.key)))),
        2 => Body::Request(RcRequest::Part(write)),
        3 => Body::Request(RcRequest::Read(reth)),
        4 => {
            let op = match input.once_in(2) {
                true => AtomicOp::FetchAdd { add: 1 },
                false => AtomicOp::CompareSwap {
                    compare: 0,
                    swap: 1,
                },
            };
            Body::Request(RcRequest::Atomic(reth.remote(), op))
        }
        5 => Body::Request(RcRequest::AtomicWrite(reth)),
        6 => {
            let feth = Feth {
                types: FlushTypes(input.any::<u8>() & 3),
                level: FlushLevel::Range,
            };
            Body::Request(RcRequest::Flush(feth, reth))
        }
        7 => Body::Response(other_response(old, position, input)),
        8 => Body::Response(RcResponse::Ack(other_aeth(old, input))),
        9 => Body::Uc(send(imm)),
        10 => Body::Uc(write),
        _ => {
            let unknown = Deth {
                qkey: 0x1234_5678,
                src_qpn: Qpn::new(2),
            };
            let deth = match old {
                Body::Ud { deth, .. } => deth,
                _ => unknown,
            };
            Body::Ud {
                deth,
                imm: input.once_in(4).then_some([7; 4]),
            }
        }
    }
}

/// A READ response, or the response to an atomic operation.
fn other_response(old: Body, position: Position, input: &mut Input<'_>) -> RcResponse {
    let aeth = other_aeth(old, input);
    match input.once_in(3) {
        true => RcResponse::Atomic(aeth, input.any()),
        false => RcResponse::Read(ReadPart::new(position, aeth)),
    }
}

fn other_aeth(mut old: Body, input: &mut Input<'_>) -> Aeth {
    let syndrome = match input.below(8) {
        0 => Syndrome::Rnr(1),
        1 => Syndrome::Nak(NakCode::PsnSequence),
        2 => Syndrome::Nak(NakCode::RemoteAccess),
        3 => Syndrome::Nak(NakCode::InvalidRequest),
        _ => Syndrome::ACK,
    };
    aeth_of(&mut old)
        .copied()
        .unwrap_or(Aeth { syndrome, msn: 1 })
}
