// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Malformed frames are refused. No frame causes a panic.

// Local memory is a list of ranges. Many lists have a single range, such as `vec![0..8]`.
#![allow(clippy::single_range_in_vec_init)]

mod common;

use std::time::Instant;

use common::capture;
use common::endpoint::{Endpoint, Pieces, Settings, BASE, RKEY};
use common::setup::sealed;
use proptest::prelude::*;
use roce::headers::{
    Body, Bth, Deth, Headers, Part, RcRequest, RcResponse, Reth, SendPart, WritePart,
};
use roce::icrc::Icrc;
use roce::net::{is_roce, NetError};
use roce::packet::PacketError;
use roce::ud::GSI_QKEY;
use roce::work::{AccessFlags, Mtu, With};
use roce::{uc, ud, Packet, Psn};
use virtio_rdma_abi::number::Qpn;

/// Corrects the lengths, the IPv4 checksum and the ICRC of a frame, if the frame has these fields.
fn reseal(frame: &mut [u8]) {
    let ip = 14;
    let header = if frame[12..14] == [0x08, 0x00] {
        20
    } else {
        40
    };
    if frame.len() < ip + header + 8 {
        return;
    }
    let udp_length = (frame.len() - ip - header) as u16;
    let at = ip + header;
    frame[at + 4..at + 6].copy_from_slice(&udp_length.to_be_bytes());
    frame[at + 6..at + 8].fill(0);
    if header == 20 {
        frame[ip + 2..ip + 4].copy_from_slice(&(udp_length + 20).to_be_bytes());
        frame[ip + 10..ip + 12].fill(0);
        let sum: u32 = frame[ip..ip + 20]
            .chunks(2)
            .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
            .sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame[ip + 4..ip + 6].copy_from_slice(&udp_length.to_be_bytes());
    }
    if frame.len() < ip + header + 8 + 12 + 4 {
        return;
    }
    let (covered, icrc) = frame.split_last_chunk_mut::<4>().unwrap();
    let (headers, rest) = covered[ip..].split_at(header + 8 + 12);
    let mut crc = Icrc::new(headers);
    crc.update(rest);
    *icrc = crc.finish();
}

/// Frames of the kinds of requests that the capture does not contain.
fn uncaptured() -> Vec<Vec<u8>> {
    let range = Reth {
        va: BASE,
        rkey: RKEY,
        length: 1025,
    };
    let imm = [1, 2, 3, 4];
    let invalidate = [SendPart::Last(With::Inv(9)), SendPart::Only(With::Inv(9))];
    let invalidate = invalidate.map(|part| Body::Request(part.into()));
    let sends = [
        SendPart::First,
        SendPart::Middle,
        SendPart::Last(With::Nothing),
        SendPart::Last(With::Imm(imm)),
        SendPart::Only(With::Nothing),
        SendPart::Only(With::Imm(imm)),
    ];
    let writes = [
        WritePart::First(range),
        WritePart::Middle,
        WritePart::Last(None),
        WritePart::Last(Some(imm)),
        WritePart::Only(range, None),
        WritePart::Only(range, Some(imm)),
    ];
    let deth = Deth {
        qkey: GSI_QKEY,
        src_qpn: Qpn::new(3),
    };
    let datagram = Body::Ud {
        deth,
        imm: Some(imm),
    };
    (invalidate.into_iter())
        .chain(sends.map(|part| Body::Uc(Part::Send(part))))
        .chain(writes.map(|part| Body::Uc(Part::Write(part))))
        .chain([datagram])
        .map(|body| {
            let headers = Headers::new(Bth::new(0xffff, Qpn::new(1), Psn::new(0)), body);
            sealed(&headers, &[5; 1024])
        })
        .collect()
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    let frames = [capture::frames(), uncaptured()].concat();
    proptest::sample::select(frames)
}

#[test]
fn every_truncation_is_refused() {
    for frame in capture::frames().iter().step_by(7) {
        for len in 0..frame.len() {
            assert!(Packet::parse(&frame[..len]).is_err());
            let _ = is_roce(&frame[..len]);
        }
    }
}

#[test]
fn headers_that_end_early_are_refused() {
    for frame in uncaptured() {
        let whole = Packet::parse(&frame).unwrap();
        let headers = frame.len() - 4 - whole.payload.len();
        // Lengths and ICRC are correct, but the last header is cut off.
        for cut in (14 + 40 + 8 + 12..headers).step_by(4) {
            let mut short = frame[..cut].to_vec();
            short.extend([0; 4]);
            reseal(&mut short);
            assert_eq!(Packet::parse(&short), Err(PacketError::Headers));
        }
        let mut empty = frame[..headers].to_vec();
        empty.extend([0; 4]);
        reseal(&mut empty);
        assert_eq!(Packet::parse(&empty).unwrap().payload, [0; 0]);
    }
    // Atomic requests and responses have no payload.
    let atomics = capture::frames().into_iter().filter(|frame| {
        let packet = Packet::parse(frame).unwrap();
        matches!(
            packet.headers.body,
            Body::Request(RcRequest::Atomic(..)) | Body::Response(RcResponse::Atomic(..))
        )
    });
    for mut frame in atomics {
        frame.extend([0; 4]);
        reseal(&mut frame);
        assert_eq!(Packet::parse(&frame), Err(PacketError::Payload));
    }
}

#[test]
fn datagrams_without_room_for_a_bth_and_an_icrc_are_refused() {
    for (frame, header) in [(&capture::frames()[0], 20), (&uncaptured()[0], 40)] {
        assert!(Packet::parse(frame).is_ok());
        // Lengths and checksum of the IP header are correct for the short payload.
        for payload in 0..12 + 4 {
            let mut short = frame[..14 + header + 8 + payload].to_vec();
            reseal(&mut short);
            assert_eq!(
                Packet::parse(&short),
                Err(PacketError::Headers),
                "{payload} bytes"
            );
        }
    }
}

#[test]
fn frames_may_be_padded_by_ethernet() {
    for frame in capture::frames() {
        let mut padded = frame.clone();
        padded.extend([0xee; 18]);
        assert_eq!(Packet::parse(&padded), Packet::parse(&frame));
    }
}

#[test]
fn every_wrong_bit_is_noticed_or_meaningless() {
    // Changes of the Ethernet addresses, of the BTH byte with FECN and BECN and, for IPv6, of
    // traffic class, flow label and hop limit are not detected: no checksum covers them.
    for frame in [&capture::frames()[0], &capture::frames()[246]] {
        let header = if frame[12..14] == [0x08, 0x00] {
            20
        } else {
            40
        };
        let whole = Packet::parse(frame).unwrap();
        for bit in 0..frame.len() * 8 {
            let mut broken = frame.clone();
            broken[bit / 8] ^= 1 << (bit % 8);
            let Ok(packet) = Packet::parse(&broken) else {
                continue;
            };
            let at = bit / 8;
            let variant = at < 12
                || (header == 40 && matches!(at - 14, 0..=3 | 7))
                || at == 14 + header + 8 + 4;
            assert!(variant, "bit {bit}");
            assert_eq!(packet.payload, whole.payload);
            assert_eq!(packet.headers.bth.psn, whole.headers.bth.psn);
        }
    }
}

#[test]
fn the_reason_is_named() {
    let v4 = capture::frames()[3].clone();
    let broken = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = v4.clone();
        change(&mut frame);
        Packet::parse(&frame).unwrap_err()
    };
    assert_eq!(
        broken(&|frame| frame.truncate(40)),
        PacketError::Net(NetError::Truncated)
    );
    assert_eq!(
        broken(&|frame| frame[13] = 6),
        PacketError::Net(NetError::NotRoce)
    );
    assert_eq!(
        broken(&|frame| frame[22] ^= 1),
        PacketError::Net(NetError::IpChecksum)
    );
    assert_eq!(
        broken(&|frame| frame[37] ^= 1),
        PacketError::Net(NetError::NotRoce)
    );
    assert_eq!(
        broken(&|frame| frame[39] ^= 4),
        PacketError::Net(NetError::Length)
    );
    assert_eq!(
        broken(&|frame| frame[41] = 1),
        PacketError::Net(NetError::UdpChecksum)
    );
    assert_eq!(
        broken(&|frame| frame[20] |= 0x20),
        PacketError::Net(NetError::NotRoce),
        "a fragment"
    );
    assert_eq!(
        broken(&|frame| {
            // The IPv4 checksum stays valid: the two changes cancel out.
            frame[23] = 6;
            frame[25] = frame[25].wrapping_add(11);
        }),
        PacketError::Net(NetError::NotRoce),
        "TCP"
    );
    assert_eq!(
        broken(&|frame| {
            let checksum = u16::from_be_bytes([frame[24], frame[25]]);
            let total = u16::from_be_bytes([frame[16], frame[17]]);
            frame[16..18].copy_from_slice(&19u16.to_be_bytes());
            frame[24..26].copy_from_slice(&(checksum + total - 19).to_be_bytes());
        }),
        PacketError::Net(NetError::Length),
        "shorter than its header"
    );
    assert_eq!(broken(&|frame| frame[42] = 0x15), PacketError::Opcode(0x15));
    assert_eq!(broken(&|frame| frame[43] |= 0x05), PacketError::Version(5));
    assert_eq!(
        broken(&|frame| frame[43] |= 0x10),
        PacketError::Payload,
        "padding of a packet without payload"
    );
    assert_eq!(
        broken(&|frame| frame[54] = 0x47),
        PacketError::Headers,
        "a reserved syndrome"
    );
    assert_eq!(
        broken(&|frame| *frame.last_mut().unwrap() ^= 1),
        PacketError::Icrc
    );
}

#[test]
fn vlan_tags_are_understood() {
    for frame in capture::frames() {
        let mut tagged = frame[..12].to_vec();
        tagged.extend([0x81, 0x00, 0x60, 0x05]);
        tagged.extend(&frame[12..]);
        assert!(is_roce(&tagged) && is_roce(&frame));
        let packet = Packet::parse(&tagged).unwrap();
        assert_eq!(packet.path.vlan, Some(0x6005));
        assert_eq!(packet.payload, Packet::parse(&frame).unwrap().payload);
    }
}

#[test]
fn udp_checksums_are_verified_if_there() {
    let v4 = (capture::frames().remove(0), 26, 34);
    let v6 = (uncaptured().remove(0), 22, 54);
    let word = |frame: &[u8], at: usize| u32::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    for (mut frame, addresses, udp) in [v4, v6] {
        let length = frame.len() - udp;
        let mut sum = 17 + length as u32;
        sum += (addresses..frame.len())
            .step_by(2)
            .map(|at| word(&frame, at))
            .sum::<u32>();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        frame[udp + 6..udp + 8].copy_from_slice(&(!sum as u16).to_be_bytes());
        assert!(Packet::parse(&frame).is_ok());
        frame[udp + 6] ^= 0x10;
        assert_eq!(
            Packet::parse(&frame),
            Err(PacketError::Net(NetError::UdpChecksum))
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn noise_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Packet::parse(&bytes).is_err());
        let _ = is_roce(&bytes);
    }

    #[test]
    fn sound_frames_with_any_contents_do_no_harm(
        mut frame in frame(),
        changes in proptest::collection::vec((34usize..120, any::<u8>()), 0..6),
        cut in 0usize..40,
        ahead in prop_oneof![Just(0u32), 0..0x100_0000u32],
        to_responder: bool,
    ) {
        let mut end = Endpoint::new(1, 2, 1 << 16, Settings::default());
        for id in 0..3 {
            end.post_recv(id, vec![0..5000]);
        }
        end.world.keys.push(9);
        end.post(0, common::setup::SEND, vec![0..5000]);
        let remote = roce::work::Remote { va: 0, rkey: 0 };
        end.post(1, roce::work::SendOp::Read { remote }, vec![0..5000]);
        let now = Instant::now();
        let op = roce::work::AtomicOp::FetchAdd { add: 1 };
        end.post(2, roce::work::SendOp::Atomic { remote, op }, vec![0..8]);
        end.transmit(1 << 20, now);
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        frame.truncate(frame.len() - cut);
        // Addresses the packet to this QP, with a PSN near the expected one.
        let bth = if frame[12..14] == [0x08, 0x00] { 42 } else { 62 };
        let psn = match to_responder {
            true => end.responder.expected_psn(),
            false => end.requester.next_psn(),
        };
        if frame.len() > bth + 12 {
            frame[bth + 5..bth + 8].copy_from_slice(&[0, 0, 1]);
            let psn = psn.add(ahead).value().to_be_bytes();
            frame[bth + 9..bth + 12].copy_from_slice(&psn[1..]);
        }
        reseal(&mut frame);
        let mut connection: uc::Responder<Pieces> =
            {
                let psn = end.responder.expected_psn().value();
                uc::Responder::new(Mtu::Mtu1024, psn, AccessFlags::ALL)
            };
        let mut datagrams = ud::Receiver::default();
        for _ in 0..2 {
            end.deliver(&frame, now);
            end.transmit(1 << 20, now);
            if let Ok(packet) = Packet::parse(&frame) {
                let _ = connection.on_packet(&packet, &mut end.world);
                let _ = datagrams.on_packet(&packet, GSI_QKEY, &mut end.world);
            }
        }
    }
}
