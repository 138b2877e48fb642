// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Ethernet, IP and UDP headers of a path. Congestion marks do not change the results of requests.

// Local memory is a list of ranges. Many lists have a single range, such as `vec![0..8]`.
#![allow(clippy::single_range_in_vec_init)]

mod common;

use common::endpoint::Settings;
use common::setup::{at, sim, statuses, SEND};
use common::sim::Sim;
use proptest::prelude::*;
use roce::headers::{Body, RcResponse};
use roce::icrc::Icrc;
use roce::net::{flow_label, udp_source_port, vlan_id, vlan_priority, vlan_tag, Addresses, Ecn};
use roce::work::{AtomicOp, SendOp, WcStatus};
use roce::{Packet, Path};
use virtio_rdma_abi::number::Qpn;

// abi
#[test]
fn bytes_of_an_ipv4_path() {
    let addresses = Addresses::V4([10, 9, 0, 1].into(), [10, 9, 0, 2].into());
    let path = Path {
        vlan: Some(vlan_tag(100, 3)),
        // DSCP 26 and ECT(0).
        traffic_class: (26 << 2) | 2,
        hop_limit: 17,
        src_port: udp_source_port(flow_label(Qpn::new(0x11), Qpn::new(0x12))),
        ..Path::new([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], addresses)
    };
    let frame = one_frame(path);
    let expected = [
        &[
            2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0x00, 0x60, 100, 0x08, 0x00,
        ][..],
        &[0x45, 0x6a, 0, 44],
    ];
    let expected = expected.concat();
    assert_eq!(frame[..expected.len()], expected);
    assert_eq!((frame[18 + 8], frame[18 + 9]), (17, 17), "TTL, UDP");
    // The source port is 0xc000 + 0x132, since 0x11 · 0x12 = 0x132.
    assert_eq!(frame[38..42], [0xc1, 0x32, 0x12, 0xb7]);
    assert_eq!(Packet::parse(&frame).unwrap().path, path);
}

// abi: R-784
#[test]
fn bytes_of_an_ipv6_path() {
    let address = |last| [0xfd09, 0, 0, 0, 0, 0, 0, last].into();
    let path = Path {
        traffic_class: 0xb8,
        flow_label: 0x9_1234,
        hop_limit: 1,
        src_port: udp_source_port(0x9_1234),
        ..Path::new([2; 6], [4; 6], Addresses::V6(address(1), address(2)))
    };
    let frame = one_frame(path);
    assert_eq!(frame[12..14], [0x86, 0xdd]);
    // The traffic class of the path, with the ECN field ECT(0).
    assert_eq!(frame[14..22], [0x6b, 0xa9, 0x12, 0x34, 0, 24, 17, 1]);
    // The source port is 0xc000 + (0x1234 ^ (0x91234 >> 14)).
    assert_eq!(frame[54..56], [0xd2, 0x10]);
    let sent = Path {
        traffic_class: 0xba,
        ..path
    };
    assert_eq!(Packet::parse(&frame).unwrap().path, sent);
}

/// The frame of an empty SEND along `path`.
fn one_frame(path: Path) -> Vec<u8> {
    let mut sim = sim(Settings::default());
    sim.ends[0].requester.set_path(path);
    sim.ends[0].post(0, SEND, vec![]);
    let now = sim.now;
    sim.ends[0].transmit(usize::MAX, now);
    sim.ends[0].world.out.pop_front().unwrap().to_vec()
}

// abi: R-795
#[test]
fn priorities_are_the_low_bits_of_the_service_level() {
    for sl in 0..16 {
        let tag = vlan_tag(0xfff, sl);
        assert_eq!((vlan_id(tag), vlan_priority(tag)), (0xfff, sl & 7));
        assert_eq!(vlan_tag(0xf001, sl), vlan_tag(1, sl), "12 bits");
    }
}

/// Sets the congestion marks of a frame in the IP header and the BTH, and corrects the IPv4
/// checksum.
fn mark(frame: &mut [u8]) {
    frame[15] |= 3;
    frame[42 + 4] |= 0xc0;
    frame[24..26].fill(0);
    let words = frame[14..34].chunks(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// Lets both sides send in turn. Each frame is passed to `change` with the index of its receiver.
/// `change` must deliver the frame.
fn exchange(sim: &mut Sim, mut change: impl FnMut(&mut Sim, usize, Vec<u8>)) {
    let now = sim.now;
    for round in 0..20 {
        let from = round % 2;
        sim.ends[from].transmit(usize::MAX, now);
        while let Some(frame) = sim.ends[from].world.out.pop_front() {
            change(sim, 1 - from, frame.to_vec());
        }
    }
}

fn post_everything(sim: &mut Sim) -> [WcStatus; 4] {
    let remote = at(0);
    let op = AtomicOp::FetchAdd { add: 1 };
    sim.ends[1].post_recv(0, vec![0..4000]);
    sim.ends[0].post(0, SEND, vec![0..3000]);
    sim.ends[0].post(1, SendOp::Write { remote, imm: None }, vec![0..3000]);
    sim.ends[0].post(2, SendOp::Read { remote }, vec![0..3000]);
    sim.ends[0].post(3, SendOp::Atomic { remote, op }, vec![0..8]);
    [WcStatus::Success; 4]
}

#[test]
fn congestion_marks_change_nothing() {
    let mut sim = sim(Settings::default());
    let expected = post_everything(&mut sim);
    exchange(&mut sim, |sim, to, mut frame| {
        mark(&mut frame);
        let packet = Packet::parse(&frame).unwrap();
        assert!(packet.headers.bth.fecn && packet.headers.bth.becn);
        assert_eq!(packet.path.traffic_class & 3, 3);
        let now = sim.now;
        sim.ends[to].deliver(&frame, now);
    });
    assert_eq!(statuses(&sim), expected);
}

/// A congestion notification packet to QPN `qpn` (annex A17): opcode 0x81, BECN, 16 bytes of zero.
fn notification(qpn: u8) -> Vec<u8> {
    let mut frame = one_frame(Path::new(
        [2; 6],
        [4; 6],
        Addresses::V4([10, 9, 0, 1].into(), [10, 9, 0, 2].into()),
    ));
    frame.truncate(42);
    frame.extend([0x81, 0, 0xff, 0xff, 0x40, 0, 0, qpn, 0, 0, 0, 0]);
    frame.extend([0; 16]);
    let length = (frame.len() + 4 - 34) as u16;
    frame[38..40].copy_from_slice(&length.to_be_bytes());
    frame[16..18].copy_from_slice(&(length + 20).to_be_bytes());
    mark(&mut frame[..54]);
    let (headers, rest) = frame[14..].split_at(20 + 8 + 12);
    let mut icrc = Icrc::new(headers);
    icrc.update(rest);
    frame.extend(icrc.finish());
    frame
}

#[test]
fn congestion_notifications_change_no_result() {
    let body = Packet::parse(&notification(1)).map(|packet| packet.headers.body);
    assert_eq!(body, Ok(Body::Response(RcResponse::Congestion)));
    let mut sim = sim(Settings::default());
    let expected = post_everything(&mut sim);
    exchange(&mut sim, |sim, to, frame| {
        let now = sim.now;
        sim.ends[to].deliver(&notification(to as u8 + 1), now);
        sim.ends[to].deliver(&frame, now);
    });
    assert_eq!(statuses(&sim), expected);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_path_is_read_as_written(
        vlan in any::<Option<u16>>(),
        traffic_class: u8,
        label in 0..0x10_0000u32,
        hop_limit: u8,
        macs: [[u8; 6]; 2],
        v4 in any::<Option<[[u8; 4]; 2]>>(),
        v6: [[u16; 8]; 2],
    ) {
        let addresses = match v4 {
            Some([src, dst]) => Addresses::V4(src.into(), dst.into()),
            None => Addresses::V6(v6[0].into(), v6[1].into()),
        };
        let path = Path {
            vlan,
            traffic_class,
            flow_label: if v4.is_some() { 0 } else { label },
            hop_limit,
            src_port: udp_source_port(label),
            ..Path::new(macs[0], macs[1], addresses)
        };
        prop_assert!(path.src_port >= 0xc000);
        let frame = one_frame(path);
        let sent = Path {
            traffic_class: Ecn::Capable.within(traffic_class),
            ..path
        };
        prop_assert_eq!(Packet::parse(&frame).map(|packet| packet.path), Ok(sent));
    }
}
