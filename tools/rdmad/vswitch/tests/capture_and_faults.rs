// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Capture files, and faults that a seed reproduces.

mod common;

use common::*;
use roce::Packet;
use tempfile::TempDir;
use vswitch::FaultPlan;

/// The frames of a capture file.
fn capture(path: &std::path::Path) -> Vec<Vec<u8>> {
    let file = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!(
        (word(0), word(20)),
        (0xa1b2_3c4d, 1),
        "nanoseconds, Ethernet"
    );
    let (mut frames, mut at, mut last) = (Vec::new(), 24, 0);
    while at < file.len() {
        let time = word(at) * 1_000_000_000 + word(at + 4);
        assert!(word(at + 4) < 1_000_000_000 && time >= last);
        last = time;
        assert_eq!(word(at + 8), word(at + 12), "whole frames");
        frames.push(file[at + 16..at + 16 + word(at + 8)].to_vec());
        at += 16 + word(at + 8);
    }
    frames
}

#[test]
fn what_crosses_the_switch_is_captured_once() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("out.pcap");
    let rig = Rig::with(2, 1, |config| config.pcap = Some(path.clone()));
    rig.nets[0].send(&frame(BROADCAST, mac(0), "all"));
    rig.nets[1].receive();
    rig.nets[0].send(&frame(mac(1), OUTSIDE, "forged"));
    rig.engine_send(0, &roce(mac(1), mac(0), 5));
    rig.engine_receive(1);
    rig.uplinks[0].send(&frame(mac(1), OUTSIDE, "in"));
    rig.nets[1].receive();
    drop(rig);
    let frames = capture(&path);
    assert_eq!(frames.len(), 3);
    assert!(frames.contains(&frame(BROADCAST, mac(0), "all")));
    assert!(frames.contains(&roce(mac(1), mac(0), 5)));
    assert!(frames.contains(&frame(mac(1), OUTSIDE, "in")));
    assert!(Packet::parse(frames.iter().find(|frame| frame.len() > 100).unwrap()).is_ok());
}

/// Sends 200 numbered frames from one engine to the other, with faults by `plan`. Returns the
/// numbers of the frames that arrive intact, in the order of arrival.
fn arrivals(plan: &str) -> Vec<u8> {
    let plan: FaultPlan = plan.parse().unwrap();
    let rig = Rig::with(2, 0, |config| config.faults = Some(plan));
    for number in 0..200 {
        rig.engine_send(0, &roce(mac(1), mac(0), number));
    }
    // The last frame marks the end: frames between network interfaces are not subject to faults.
    let sent = 200;
    let mut numbers = Vec::new();
    rig.counts(0, |stats| stats.received, sent);
    rig.nets[0].send(&frame(mac(1), mac(0), "end"));
    assert_eq!(rig.nets[1].receive(), frame(mac(1), mac(0), "end"));
    while let Some(frame) = receive_frame(&rig.engines[1].0) {
        if let Ok(packet) = Packet::parse(&frame) {
            numbers.push(packet.payload[0]);
        }
    }
    numbers
}

#[test]
fn faults_repeat_with_the_seed() {
    let plan = "drop=0.2,duplicate=0.1,corrupt=0.2,seed=";
    let first = arrivals(&format!("{plan}5"));
    assert!(first.len() > 80 && first.len() < 200 && first.is_sorted());
    assert!(first.windows(2).any(|pair| pair[0] == pair[1]));
    assert_eq!(arrivals(&format!("{plan}5")), first);
    assert_ne!(arrivals(&format!("{plan}6")), first);
}

#[test]
fn faults_spare_the_network_interfaces() {
    let rig = Rig::with(2, 1, |config| {
        config.faults = Some("drop=1".parse().unwrap());
        config.ports[0].net_roce = true;
    });
    rig.engine_send(0, &roce(mac(1), mac(0), 1));
    rig.engine_send(0, &roce(OUTSIDE, mac(0), 1));
    rig.nets[0].send(&roce(OUTSIDE, mac(0), 2));
    assert_eq!(
        rig.uplinks[0].receive(),
        roce(OUTSIDE, mac(0), 2),
        "an interface's RoCE on its way out"
    );
    rig.nets[0].send(&frame(mac(1), mac(0), "spared"));
    assert_eq!(rig.nets[1].receive(), frame(mac(1), mac(0), "spared"));
    assert!(receive_frame(&rig.engines[1].0).is_none());
}

#[test]
fn frames_that_wait_are_delivered_when_nothing_else_happens() {
    let rig = Rig::with(2, 0, |config| {
        config.faults = Some("reorder=1".parse().unwrap())
    });
    rig.engine_send(0, &roce(mac(1), mac(0), 1));
    assert_eq!(rig.engine_receive(1)[..], roce(mac(1), mac(0), 1));
    let rig = Rig::with(2, 0, |config| {
        config.faults = Some("delay=1".parse().unwrap())
    });
    rig.engine_send(0, &roce(mac(1), mac(0), 1));
    assert_eq!(rig.engine_receive(1)[..], roce(mac(1), mac(0), 1));
}
