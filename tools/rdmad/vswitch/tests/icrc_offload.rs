// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Frames that an engine builds without an ICRC. They are delivered to some receivers without an
//! ICRC; for other receivers, the switch adds the ICRC.

mod common;

use std::net::UdpSocket;

use common::*;
use roce::{FramePort, Packet};
use tempfile::TempDir;
use vswitch::Uplink;

const GROUP: [u8; 6] = [1, 0, 0x5e, 1, 2, 3];

#[test]
fn another_engine_of_the_daemon_needs_none() {
    let rig = Rig::new(2, 0);
    rig.engine_build(0, mac(1), 5);
    let frame = rig.engine_receive(1);
    assert!(frame.lacks_icrc() && Packet::parse_frame(&frame).is_ok());
}

#[test]
fn a_capture_has_right_ones() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("out.pcap");
    let rig = Rig::with(2, 0, |config| config.pcap = Some(path.clone()));
    rig.engine_build(0, mac(1), 5);
    assert!(Packet::parse_frame(&rig.engine_receive(1)).is_ok());
    drop(rig);
    let file = std::fs::read(path).unwrap();
    let expected = roce(mac(1), mac(0), 5);
    assert_eq!(file[24 + 16..], expected);
}

#[test]
fn damage_is_noticed() {
    let rig = Rig::with(2, 0, |config| {
        config.faults = Some("corrupt=1".parse().unwrap());
    });
    for number in 0..50 {
        rig.engine_build(0, mac(1), number);
        let frame = rig.engine_receive(1);
        // Damage is not noticed in byte 46, which has the congestion marks of the BTH, because the
        // ICRC does not cover this byte.
        let is_covered = frame[46] == 0;
        assert!(!is_covered || Packet::parse_frame(&frame).is_err());
    }
}

#[test]
fn uplinks_get_right_ones() {
    let remote = UdpSocket::bind("127.0.0.1:0").unwrap();
    remote.set_read_timeout(Some(PATIENCE)).unwrap();
    let to = remote.local_addr().unwrap();
    let rig = Rig::with(1, 1, |config| {
        let bind = "127.0.0.1:0".parse().unwrap();
        config.uplinks.push(Uplink::Udp { bind, remote: to }.into());
    });
    // The switch has not learned the address, so the frame is sent to all uplinks.
    rig.engine_build(0, OUTSIDE, 7);
    let expected = roce(OUTSIDE, mac(0), 7);
    assert_eq!(rig.uplinks[0].receive(), expected);
    let mut bytes = [0; 1000];
    let length = remote.recv(&mut bytes).unwrap();
    assert_eq!(bytes[..length], expected);
}

#[test]
fn a_group_gets_right_ones() {
    let rig = Rig::new(2, 1);
    rig.engines[1].0.join(GROUP);
    rig.engine_build(0, GROUP, 9);
    let expected = roce(GROUP, mac(0), 9);
    assert_eq!(rig.nets[1].receive(), expected);
    assert_eq!(rig.uplinks[0].receive(), expected);
    assert!(Packet::parse_frame(&rig.engine_receive(1)).is_ok());
}

#[test]
fn a_network_interface_and_an_uplink_need_one() {
    let rig = Rig::with(2, 1, |config| config.ports[0].net_roce = true);
    let without = |src| {
        let mut frame = roce(mac(1), src, 3);
        let icrc = frame.len() - 4;
        frame[icrc..].fill(0);
        frame
    };
    rig.nets[0].send(&without(mac(0)));
    assert!(Packet::parse_frame(&rig.engine_receive(1)).is_err());
    rig.uplinks[0].send(&without(OUTSIDE));
    assert!(Packet::parse_frame(&rig.engine_receive(1)).is_err());
}
