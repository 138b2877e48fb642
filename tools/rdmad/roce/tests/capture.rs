// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Every frame that two Linux rxe devices exchanged parses, and is built again from its parts bit
//! for bit.

mod common;

use std::collections::HashMap;
use std::convert::Infallible;

use common::capture;
use roce::headers::{Aeth, AtomicEth, Deth, Feth, Reth, Syndrome, Transport};
use roce::icrc::Icrc;
use roce::opcode::{Op, Service};
use roce::packet::{build, frame_size};
use roce::work::{FlushLevel, FlushTypes};
use roce::Packet;

#[test]
fn every_frame_parses_and_rebuilds() {
    let frames = capture::frames();
    assert_eq!(frames.len(), 270);
    for (number, frame) in frames.iter().enumerate() {
        let packet =
            Packet::parse(frame).unwrap_or_else(|error| panic!("frame {}: {error}", number + 1));
        assert!(packet.transport.is_complete());
        let mut built =
            vec![0xaa; frame_size(&packet.path, &packet.transport, packet.payload.len())];
        let done = build(
            &mut built,
            &packet.path,
            packet.ident,
            &packet.transport,
            packet.payload.len(),
            |out| {
                out.copy_from_slice(packet.payload);
                Ok::<_, Infallible>(())
            },
        );
        assert_eq!(done, Ok(()));
        assert_eq!(&built, frame, "frame {}", number + 1);
    }
}

/// Takes a header away, or adds it if it is not there.
type Change = fn(&mut Transport);

#[test]
fn headers_are_complete_as_they_come_and_not_otherwise() {
    let changes: [Change; 8] = [
        |with| {
            with.deth = with.deth.xor(Some(Deth {
                qkey: 0,
                src_qpn: 0,
            }))
        },
        |with| {
            with.feth = with.feth.xor(Some(Feth {
                types: FlushTypes::GLOBAL,
                level: FlushLevel::Mr,
            }))
        },
        |with| {
            with.reth = with.reth.xor(Some(Reth {
                va: 0,
                rkey: 0,
                length: 0,
            }))
        },
        |with| {
            with.atomic = with.atomic.xor(Some(AtomicEth {
                va: 0,
                rkey: 0,
                swap_add: 0,
                compare: 0,
            }))
        },
        |with| {
            with.aeth = with.aeth.xor(Some(Aeth {
                syndrome: Syndrome::ACK,
                msn: 0,
            }))
        },
        |with| with.atomic_ack = with.atomic_ack.xor(Some(0)),
        |with| with.imm = with.imm.xor(Some([0; 4])),
        |with| with.invalidate = with.invalidate.xor(Some(0)),
    ];
    for frame in capture::frames() {
        let transport = Packet::parse(&frame).unwrap().transport;
        for change in changes {
            let mut other = transport;
            change(&mut other);
            assert!(!other.is_complete(), "{other:?}");
        }
    }
}

#[test]
fn the_capture_has_the_operations_it_is_meant_to_have() {
    let mut counts: HashMap<u8, usize> = HashMap::new();
    let mut v6 = 0;
    for frame in capture::frames() {
        let packet = Packet::parse(&frame).unwrap();
        *counts.entry(packet.opcode().encode()).or_default() += 1;
        v6 += usize::from(packet.path.addresses.src().is_ipv6());
        match (packet.opcode().service, packet.opcode().op) {
            (Service::Ud, _) => assert!(packet.transport.deth.is_some()),
            (_, Op::ReadRequest) => assert!(packet.transport.reth.unwrap().rkey != 0),
            (_, Op::Ack) => assert!(packet.payload.is_empty()),
            _ => {}
        }
    }
    assert_eq!(v6, 29);
    for opcode in [
        0x00, 0x01, 0x02, 0x04, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x11,
        0x12, 0x13, 0x14,
    ] {
        assert!(counts.contains_key(&opcode), "{opcode:#04x}");
    }
}

#[test]
fn icrc_over_pieces_equals_icrc_over_the_whole() {
    for frame in capture::frames() {
        let ip = if frame[12..14] == [0x08, 0x00] {
            20
        } else {
            40
        };
        let (covered, icrc) = frame.split_last_chunk::<4>().unwrap();
        let (headers, rest) = covered[14..].split_at(ip + 8 + 12);
        for piece in [1, 3, 64] {
            let mut crc = Icrc::new(headers);
            rest.chunks(piece).for_each(|bytes| crc.update(bytes));
            assert_eq!(crc.finish(), *icrc);
        }
    }
}
