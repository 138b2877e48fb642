// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Frames captured from two Linux rxe devices: a frame that is rebuilt from the parsed headers and
//! payload is identical to the captured frame.

mod common;

use std::collections::HashMap;
use std::convert::Infallible;

use common::capture;
use common::setup::opcode;
use roce::headers::{Body, RcRequest, RcResponse};
use roce::icrc::Icrc;
use roce::packet::{build, frame_size};
use roce::Packet;

#[test]
fn every_frame_parses_and_rebuilds() {
    let frames = capture::frames();
    assert_eq!(frames.len(), 270);
    for (number, frame) in frames.iter().enumerate() {
        let packet =
            Packet::parse(frame).unwrap_or_else(|error| panic!("frame {}: {error}", number + 1));
        let mut built =
            vec![0xaa; frame_size(&packet.path, &packet.headers.body, packet.payload.len())];
        let done = build(
            &mut built,
            &packet.path,
            packet.ident,
            &packet.headers,
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

#[test]
fn the_capture_has_the_operations_it_is_meant_to_have() {
    let mut counts: HashMap<u8, usize> = HashMap::new();
    let mut v6 = 0;
    for frame in capture::frames() {
        let packet = Packet::parse(&frame).unwrap();
        *counts.entry(opcode(&frame)).or_default() += 1;
        v6 += usize::from(packet.path.addresses.src().is_ipv6());
        match packet.headers.body {
            Body::Request(RcRequest::Read(reth)) => assert!(reth.rkey != 0),
            Body::Response(RcResponse::Ack(_)) => assert!(packet.payload.is_empty()),
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
