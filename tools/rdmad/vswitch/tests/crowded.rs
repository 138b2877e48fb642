// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Engines that do not receive, and their senders.

mod common;

use std::iter;

use common::*;
use roce::net::Ecn;
use roce::{FramePort, Packet};
use vswitch::{EnginePort, PortConfig};

/// Number of frames that a port of the switch holds for an engine before its senders wait.
const CROWDED: usize = 2048;
/// Number of frames that wait for an engine from which on further ones are marked.
const MARKED: usize = 1024;
/// Number of frames that a sender may always have in a crowded queue.
const LEAST: usize = 16;

/// Sends frames from the engine of port `from` to that of port `to` until there is no room. Returns
/// their number.
fn fill(rig: &Rig, from: usize, to: usize) -> usize {
    let (engine, _) = &rig.engines[from];
    let bytes = roce_with(mac(to), mac(from), from as u8, Ecn::Capable.within(0));
    let sent = iter::from_fn(|| {
        let mut frame = engine.frame(&mac(to), bytes.len())?;
        frame.copy_from_slice(&bytes);
        send_frame(engine, frame);
        Some(())
    });
    sent.take(100_000).count()
}

/// Receives `count` frames of an engine. Returns how many of them are marked as congested.
fn receive(engine: &EnginePort, count: usize) -> usize {
    let marked = (0..count).filter(|_| {
        let frame = receive_frame(engine).expect("a frame that waits");
        let packet = Packet::parse_frame(&frame).expect("a sound packet");
        Ecn::of(packet.path.traffic_class) == Ecn::Congestion
    });
    marked.count()
}

#[test]
fn a_slow_engine_holds_up_frames_to_it_alone() {
    let rig = Rig::new(3, 0);
    let (sender, heard) = &rig.engines[0];
    let (slow, _) = &rig.engines[1];
    let sent = fill(&rig, 0, 1);
    assert_eq!(sent, CROWDED / 2, "half of the sender's buffers");
    while heard.try_recv().is_ok() {}
    assert_eq!(receive(slow, sent / 4 - 1), 0);
    heard.try_recv().expect_err("no news yet");
    receive(slow, 1);
    heard.try_recv().expect("to be told that there is room");
    assert!(sender.frame(&mac(1), 100).is_some());
    assert!(fill(&rig, 0, 1) > 0);
    assert_eq!(fill(&rig, 0, 2), CROWDED / 4, "the rest is shared likewise");
    // A network interface does not notice.
    rig.nets[0].send(&frame(mac(2), mac(0), "free"));
    assert_eq!(rig.nets[2].receive(), frame(mac(2), mac(0), "free"));
}

#[test]
fn frames_of_all_senders_wait_and_the_later_ones_are_marked() {
    const SENDERS: usize = 6;
    let rig = Rig::new(SENDERS + 1, 0);
    let (slow, _) = &rig.engines[SENDERS];
    let sent = Vec::from_iter((0..SENDERS).map(|from| fill(&rig, from, SENDERS)));
    let all = sent.iter().sum::<usize>();
    assert!(
        (CROWDED..CROWDED + SENDERS * LEAST).contains(&all),
        "{sent:?}"
    );
    assert!(sent.iter().all(|count| *count >= LEAST), "{sent:?}");
    // The first frames found a short queue.
    assert_eq!(receive(slow, MARKED), 0);
    assert_eq!(receive(slow, all - MARKED), all - MARKED);
    for (_, heard) in &rig.engines[..SENDERS] {
        heard.try_recv().expect("to be told that there is room");
    }
    let lost = (0..=SENDERS).map(|port| rig.stats(port).dropped);
    assert_eq!(lost.sum::<u64>(), 0);
}

#[test]
fn a_sender_that_waits_is_not_passed_over() {
    let rig = Rig::new(3, 0);
    let (slow, _) = &rig.engines[2];
    let mut total = [fill(&rig, 0, 2) + fill(&rig, 0, 2), fill(&rig, 1, 2)];
    // The first sender takes each place that becomes free, before the second one.
    for _ in 0..200 {
        receive(slow, 64);
        total[0] += fill(&rig, 0, 2);
        total[1] += fill(&rig, 1, 2);
    }
    assert!(total[1] > total[0] / 4, "{total:?}");
}

#[test]
fn senders_to_an_engine_that_is_removed_go_on() {
    let rig = Rig::with(1, 0, |config| config.spare_ports = 1);
    let late = PortConfig {
        name: "late".into(),
        mac: mac(1),
        ..PortConfig::default()
    };
    let removed = rig.switch.add_port(late, None).unwrap();
    let (_, heard) = &rig.engines[0];
    assert!(fill(&rig, 0, 1) > 0);
    while heard.try_recv().is_ok() {}
    rig.switch.remove_port(&removed).unwrap();
    heard.try_recv().expect("to be told that there is room");
    assert!(receive_frame(&removed).is_none());
}

#[test]
fn an_uplink_leaves_room_for_engines() {
    const UPLINKS: usize = 3072;
    let rig = Rig::new(2, 1);
    let (slow, _) = &rig.engines[1];
    for number in 0..UPLINKS {
        rig.uplinks[0].send(&roce(mac(1), OUTSIDE, number as u8));
    }
    wait_until("the frames", || rig.stats(1).sent == UPLINKS as u64);
    for number in 0..64 {
        rig.uplinks[0].send(&roce(mac(1), OUTSIDE, number));
    }
    wait_until("drops", || rig.stats(1).dropped == 64);
    assert_eq!(fill(&rig, 0, 1), LEAST, "the engine goes on");
    receive(slow, UPLINKS + LEAST);
    assert!(receive_frame(slow).is_none());
}
