// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Datagrams.

// Local memory is a list of ranges. Many lists have a single range, such as `vec![0..8]`.
#![allow(clippy::single_range_in_vec_init)]

mod common;

use common::capture;
use common::endpoint::{length, Pieces, World};
use common::setup::{at, SEND};
use proptest::prelude::*;
use roce::headers::{Body, Bth, Deth, Headers, Part, RcRequest, SendPart};
use roce::icrc::Icrc;
use roce::net::{ip_to_gid, vlan_tag, Addresses};
use roce::packet::{build, frame_size};
use roce::ud::{
    grh, transport_size, Destination, Receiver, Sender, Verdict, GRH_SIZE, GSI_QKEY, GSI_QPN,
};
use roce::work::{
    AtomicOp, DatagramSender, Mtu, RecvWr, SendFlags, SendOp, SendWr, WcStatus, With,
};
use roce::{Packet, Path, Psn, QpError};
use virtio_rdma_abi::number::Qpn;

const QKEY: u32 = 0x1234_5678;

fn v4() -> Path {
    let addresses = Addresses::V4([10, 9, 0, 1].into(), [10, 9, 0, 2].into());
    Path::new([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], addresses)
}

fn v6() -> Path {
    let address = |last| [0xfd09, 0, 0, 0, 0, 0, 0, last].into();
    Path {
        addresses: Addresses::V6(address(1), address(2)),
        traffic_class: 0x6a,
        flow_label: 0x5_4321,
        hop_limit: 9,
        ..v4()
    }
}

fn to(path: Path) -> Destination {
    Destination {
        path,
        qpn: Qpn::new(0x00ab_cdef),
        qkey: QKEY,
        pkey: 0x8001,
    }
}

fn wr(op: SendOp, local: Pieces) -> SendWr<Pieces> {
    SendWr {
        id: 0,
        op,
        length: length(&local),
        flags: SendFlags::SOLICITED,
        local,
    }
}

fn sender() -> Sender {
    Sender::new(Qpn::new(0x0011_2233), 0xff_ffff, Mtu::Mtu1024)
}

fn world() -> World {
    let mut world = World::new(16 << 10);
    for (at, byte) in world.memory.iter_mut().enumerate() {
        *byte = (at % 251) as u8;
    }
    world
}

/// The frame of a datagram.
fn sent(op: SendOp, local: Pieces, path: Path) -> Vec<u8> {
    let mut world = world();
    let size = sender().send(&wr(op, local), &to(path), &mut world);
    let frame = world.out.pop_front().expect("a frame").to_vec();
    assert_eq!(size, Ok(Some(frame.len())));
    frame
}

fn post_recv(world: &mut World, id: u64, local: Pieces) {
    world.receives.push_back(RecvWr {
        id,
        length: length(&local),
        local,
    });
}

fn deliver(
    receiver: &mut Receiver<Pieces>,
    world: &mut World,
    frame: &[u8],
) -> Result<Verdict, QpError> {
    receiver.on_packet(&Packet::parse(frame).unwrap(), QKEY, world)
}

#[test]
fn bytes_of_a_datagram() {
    let imm = [0xca, 0xfe, 0xba, 0xbe];
    let op = SendOp::Send {
        with: With::Imm(imm),
    };
    let frame = sent(op, vec![1..4, 9..11], v4());
    let expected = [
        // BTH: opcode UD SEND Only with Immediate, solicited event, 3 bytes of padding.
        &[
            0x65, 0xf0, 0x80, 0x01, 0, 0xab, 0xcd, 0xef, 0, 0xff, 0xff, 0xff,
        ][..],
        &[0x12, 0x34, 0x56, 0x78, 0, 0x11, 0x22, 0x33],
        &imm,
        &[1, 2, 3, 9, 10],
        &[0; 3],
    ];
    assert_eq!(frame[42..frame.len() - 4], expected.concat());
    assert_eq!(frame.len() - 42, transport_size(5, true));

    let frame = sent(SEND, vec![], v6());
    let bth = [
        0x64, 0xc0, 0x80, 0x01, 0, 0xab, 0xcd, 0xef, 0, 0xff, 0xff, 0xff,
    ];
    let deth = [0x12, 0x34, 0x56, 0x78, 0, 0x11, 0x22, 0x33];
    assert_eq!(frame[62..frame.len() - 4], [&bth[..], &deth].concat());
    assert_eq!(frame.len() - 62, transport_size(0, false));
}

#[test]
fn psns_advance_with_what_is_sent() {
    let mut sender = sender();
    let mut world = world();
    let wr = wr(SEND, vec![0..4]);
    world.frames = Some(1);
    assert!(matches!(
        sender.send(&wr, &to(v4()), &mut world),
        Ok(Some(_))
    ));
    assert_eq!(sender.next_psn(), Psn::new(0));
    assert_eq!(sender.send(&wr, &to(v4()), &mut world), Ok(None));
    assert_eq!(sender.next_psn(), Psn::new(0), "no frame, no packet");
    sender.advance();
    assert_eq!(sender.next_psn(), Psn::new(1));
    assert_eq!(world.sent, [], "the caller completes");
}

#[test]
fn what_can_not_be_sent() {
    let remote = at(0);
    let add = AtomicOp::FetchAdd { add: 1 };
    for (op, len, status) in [
        (SEND, 1025, WcStatus::LocLenErr),
        (SendOp::Send { with: With::Inv(3) }, 4, WcStatus::LocQpOpErr),
        (SendOp::Write { remote, imm: None }, 4, WcStatus::LocQpOpErr),
        (SendOp::Read { remote }, 4, WcStatus::LocQpOpErr),
        (SendOp::Atomic { remote, op: add }, 8, WcStatus::LocQpOpErr),
        (SendOp::Local { drained: false }, 0, WcStatus::LocQpOpErr),
        (SEND, 1024, WcStatus::LocProtErr),
    ] {
        let mut sender = sender();
        let mut world = world();
        world.local_fault = true;
        let wr = wr(op, vec![0..len]);
        let checked = sender.check(&wr);
        assert_eq!(checked.is_ok(), status == WcStatus::LocProtErr);
        let sent = sender.send(&wr, &to(v4()), &mut world);
        assert_eq!(sent.map_err(|fault| fault.status), Err(status));
        assert!(world.out.is_empty());
        assert_eq!(sender.next_psn(), Psn::new(0xff_ffff));
    }
}

// abi
#[test]
fn a_datagram_arrives_after_its_header() {
    for (path, image, sl) in [
        (v4(), [&[0; 20][..], &[0x45]].concat(), 10),
        (v6(), vec![0x66], 9),
    ] {
        let with = With::Imm([9, 8, 7, 6]);
        let frame = sent(SendOp::Send { with }, vec![100..1124], path);
        let (mut world, mut receiver) = (World::new(4096), Receiver::default());
        // The GRH does not fit into the first piece, so it is also split.
        post_recv(&mut world, 5, vec![0..21, 64..64 + 1043]);
        assert_eq!(
            deliver(&mut receiver, &mut world, &frame),
            Ok(Verdict::Delivered)
        );
        let (id, how) = world.received[0];
        assert_eq!(
            (id, how.status(), how.byte_len),
            (5, WcStatus::Success, 1064)
        );
        assert_eq!(
            (how.with, how.solicited, how.rdma_write),
            (with, true, false)
        );
        let source = DatagramSender {
            qpn: Qpn::new(0x0011_2233),
            pkey: 0x8001,
            sl,
            mac: [2, 0, 0, 0, 0, 1],
            vlan: None,
        };
        assert_eq!(how.source, Some(source));
        let bytes = [&world.memory[..21], &world.memory[64..64 + 1043]].concat();
        let (header, message) = bytes.split_at(GRH_SIZE);
        assert_eq!(header[..image.len()], image);
        assert_eq!(header, grh(&path, 0xffff, transport_size(1024, true)));
        assert_eq!(message, &self::world().memory[100..1124]);
    }
}

// abi: R-679
#[test]
fn a_grh_is_the_header_on_the_wire() {
    let frame = sent(SEND, vec![0..7], v6());
    let image = grh(&v6(), 0xffff, transport_size(7, false));
    assert_eq!(image, frame[14..54]);
    let gid = |last| ip_to_gid(std::net::IpAddr::from([0xfd09, 0, 0, 0, 0, 0, 0, last]));
    assert_eq!(image[8..24], gid(1));
    assert_eq!(image[24..40], gid(2));
    let frame = sent(SEND, vec![0..7], v4());
    let image = grh(&v4(), 0xffff, transport_size(7, false));
    assert_eq!(image[..20], [0; 20]);
    assert_eq!(image[20..], frame[14..34]);
}

/// The GRH is a copy of the received IP header, also if the sender sets other header fields than
/// this crate.
#[test]
fn a_receive_has_the_header_as_it_came() {
    let mut frame = sent(SEND, vec![0..7], v4());
    // Clears the flag "don't fragment" and corrects the checksum.
    frame[20] = 0;
    let checksum = u16::from_be_bytes([frame[24], frame[25]]);
    let checksum = u32::from(checksum) + 0x4000;
    let checksum = (checksum & 0xffff) as u16 + (checksum >> 16) as u16;
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    let end = frame.len() - 4;
    let mut icrc = Icrc::new(&frame[14..54]);
    icrc.update(&frame[54..end]);
    frame[end..].copy_from_slice(&icrc.finish());
    let (mut world, mut receiver) = (world(), Receiver::default());
    post_recv(&mut world, 1, vec![0..GRH_SIZE + 8]);
    let verdict = deliver(&mut receiver, &mut world, &frame);
    assert_eq!(verdict, Ok(Verdict::Delivered));
    assert_eq!(world.memory[..20], [0; 20]);
    assert_eq!(world.memory[20..40], frame[14..34]);
}

#[test]
fn vlan_and_priority_of_the_sender() {
    let path = Path {
        vlan: Some(vlan_tag(0x123, 5)),
        ..v4()
    };
    let frame = sent(SEND, vec![0..4], path);
    assert_eq!(frame[12..16], [0x81, 0x00, 0xa1, 0x23]);
    let (mut world, mut receiver) = (World::new(4096), Receiver::default());
    post_recv(&mut world, 0, vec![0..100]);
    deliver(&mut receiver, &mut world, &frame).unwrap();
    let source = world.received[0].1.source.unwrap();
    assert_eq!((source.vlan, source.sl), (Some(0x123), 5));
}

// abi
#[test]
fn datagrams_that_are_dropped() {
    let (mut world, mut receiver) = (World::new(4096), Receiver::default());
    let frame = sent(SEND, vec![0..16], v4());
    let packet = Packet::parse(&frame).unwrap();
    assert_eq!(
        receiver.on_packet(&packet, QKEY, &mut world),
        Ok(Verdict::NoReceive)
    );
    post_recv(&mut world, 1, vec![0..GRH_SIZE + 15]);
    post_recv(&mut world, 2, vec![0..GRH_SIZE + 16]);
    for qkey in [QKEY + 1, QKEY ^ 0x8000_0000] {
        assert_eq!(
            receiver.on_packet(&packet, qkey, &mut world),
            Ok(Verdict::BadQkey)
        );
    }
    assert_eq!(world.receives.len(), 2);
    for _ in 0..2 {
        assert_eq!(
            receiver.on_packet(&packet, QKEY, &mut world),
            Ok(Verdict::TooLong)
        );
    }
    assert_eq!(world.receives.len(), 1, "the first one is held");
    let short = sent(SEND, vec![0..15], v4());
    assert_eq!(
        deliver(&mut receiver, &mut world, &short),
        Ok(Verdict::Delivered)
    );
    assert_eq!(
        deliver(&mut receiver, &mut world, &frame),
        Ok(Verdict::Delivered)
    );
    let ids: Vec<_> = world.received.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [1, 2]);

    let part = SendPart::Only(With::Nothing);
    for body in [RcRequest::from(part).into(), Body::Uc(Part::Send(part))] {
        let headers = Headers::new(Bth::new(0xffff, Qpn::new(2), Psn::new(0)), body);
        let other = common::setup::sealed(&headers, b"text");
        assert_eq!(
            deliver(&mut receiver, &mut world, &other),
            Ok(Verdict::NotUd)
        );
    }
}

#[test]
fn receives_that_are_held_or_bad() {
    let frame = sent(SEND, vec![0..16], v4());
    let (mut world, mut receiver) = (World::new(4096), Receiver::default());
    for id in 0..2 {
        post_recv(&mut world, id, vec![0..GRH_SIZE]);
        deliver(&mut receiver, &mut world, &frame).unwrap();
        let held = if id == 0 {
            receiver.take_receive()
        } else {
            receiver.drain()
        };
        assert_eq!(held.map(|recv| recv.id), Some(id));
    }
    post_recv(&mut world, 3, vec![0..100]);
    assert_eq!(
        deliver(&mut receiver, &mut world, &frame),
        Ok(Verdict::NoReceive),
        "it is stopped"
    );

    let mut receiver = Receiver::default();
    world.local_fault = true;
    let error = Err(QpError { event: None });
    assert_eq!(deliver(&mut receiver, &mut world, &frame), error);
    let (id, how) = world.received[0];
    assert_eq!((id, how.status()), (3, WcStatus::LocProtErr));
    world.bad_receive = true;
    assert_eq!(deliver(&mut receiver, &mut world, &frame), error);
}

/// Receives the captured MADs that two Linux rxe devices sent to each other's GSI QP.
#[test]
fn management_datagrams_of_rxe() {
    let frames = capture::frames();
    let mut count = 0;
    for frame in &frames {
        let packet = Packet::parse(frame).unwrap();
        let is_datagram = matches!(packet.headers.body, Body::Ud { .. });
        if !is_datagram || packet.headers.bth.dest_qpn != GSI_QPN {
            continue;
        }
        let (mut world, mut receiver) = (World::new(4096), Receiver::default());
        post_recv(&mut world, 0, vec![0..GRH_SIZE + 256]);
        assert_eq!(
            receiver.on_packet(&packet, GSI_QKEY, &mut world),
            Ok(Verdict::Delivered)
        );
        let how = world.received[0].1;
        assert_eq!(how.byte_len as usize, GRH_SIZE + 256);
        assert_eq!(how.source.unwrap().qpn, GSI_QPN);
        let ip = frame.len() - 4 - 256 - 20 - 8;
        let header = &frame[14..ip];
        assert_eq!(&world.memory[GRH_SIZE - header.len()..GRH_SIZE], header);
        assert_eq!(world.memory[GRH_SIZE..GRH_SIZE + 256], *packet.payload);
        count += 1;
    }
    assert_eq!(count, 10);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A datagram with the right Q_Key that fits into the receive is received completely. Any other
    /// datagram changes no memory.
    #[test]
    fn any_datagram_and_any_receive(
        payload in proptest::collection::vec(any::<u8>(), 0..600),
        room in 0usize..700,
        qkey in prop_oneof![Just(QKEY), any::<u32>()],
        imm in any::<Option<[u8; 4]>>(),
        is_v6: bool,
        tag in any::<Option<u16>>(),
    ) {
        let deth = Deth { qkey, src_qpn: Qpn::new(7) };
        let bth = Bth::new(0xffff, Qpn::new(2), Psn::new(0));
        let headers = Headers::new(bth, Body::Ud { deth, imm });
        let path = Path { vlan: tag, ..if is_v6 { v6() } else { v4() } };
        let mut frame = vec![0; frame_size(&path, &headers.body, payload.len())];
        let built: Result<(), ()> = build(&mut frame, &path, 0, &headers, payload.len(), |out| {
            out.copy_from_slice(&payload);
            Ok(())
        });
        prop_assert_eq!(built, Ok(()));
        let (mut world, mut receiver) = (World::new(2048), Receiver::default());
        post_recv(&mut world, 0, vec![0..room]);
        let verdict = deliver(&mut receiver, &mut world, &frame).unwrap();
        let needed = GRH_SIZE + payload.len();
        if qkey != QKEY {
            prop_assert_eq!(verdict, Verdict::BadQkey);
        } else if needed > room {
            prop_assert_eq!(verdict, Verdict::TooLong);
        } else {
            prop_assert_eq!(verdict, Verdict::Delivered);
            prop_assert_eq!(&world.memory[GRH_SIZE..needed], payload);
            prop_assert!(world.memory[needed..].iter().all(|&byte| byte == 0));
            return Ok(());
        }
        prop_assert!(world.received.is_empty());
        prop_assert!(world.memory.iter().all(|&byte| byte == 0));
    }
}
