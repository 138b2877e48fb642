// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Congestion control: notifications on the wire, and many connections that share one link.

// Local memory is a list of ranges. Many lists have a single range, such as `vec![0..8]`.
#![allow(clippy::single_range_in_vec_init)]

mod common;

use std::time::Duration;

use common::bottleneck::{Bottleneck, Figures, Link};
use common::endpoint::Settings;
use common::setup::{at, opcode, sent, sim, write};
use roce::env::Incident;
use roce::net::{mark, Ecn};
use roce::opcode::CONGESTION_NOTIFICATION;
use roce::work::SendOp;
use roce::Packet;

/// Queue length in bytes above which a link marks packets.
const MARK: usize = 64 << 10;
/// Bytes that a link of 10 Gb/s sends in a millisecond.
const MILLISECOND: usize = 1_250_000;

/// Lets connections that post only `op` share a link. Warms up for 5 ms and measures for 20 ms.
fn share(op: SendOp, link: Link) -> (Figures, Bottleneck) {
    let mut net = Bottleneck::new(op, link);
    net.run(Duration::from_millis(5));
    net.measure();
    net.run(Duration::from_millis(20));
    (net.figures(), net)
}

fn count(net: &Bottleneck, what: Incident) -> usize {
    let all = net.pairs.iter().flat_map(|pair| &pair[0].world.incidents);
    all.filter(|incident| **incident == what).count()
}

#[test]
fn writers_share_a_marking_link() {
    let link = Link {
        mark: Some(MARK),
        full: MILLISECOND,
    };
    let (figures, net) = share(write(at(0)), link);
    assert!(figures.used >= 0.9, "{figures:?}");
    assert!(figures.fairness >= 0.95, "{figures:?}");
    assert!(
        figures.longest_wait < Duration::from_micros(500),
        "{figures:?}"
    );
    assert_eq!(figures.dropped, 0, "{figures:?}");
    assert_eq!(count(&net, Incident::Retransmission), 0);
}

/// READs share a link that marks packets. A READ request causes 64 packets, so the queue of the
/// link is longer than with WRITEs.
#[test]
fn readers_share_a_marking_link() {
    let link = Link {
        mark: Some(MARK),
        full: 2 * MILLISECOND,
    };
    let (figures, net) = share(SendOp::Read { remote: at(0) }, link);
    assert!(figures.used >= 0.9, "{figures:?}");
    assert!(figures.fairness >= 0.95, "{figures:?}");
    assert!(
        figures.longest_wait < Duration::from_millis(1),
        "{figures:?}"
    );
    assert_eq!(figures.dropped, 0, "{figures:?}");
    println!("{figures:?} {}", count(&net, Incident::Retransmission));
    assert_eq!(count(&net, Incident::Timeout), 0);
}

/// Senders also slow down if a link drops packets without marks.
#[test]
fn writers_share_a_link_that_drops() {
    let link = Link {
        mark: None,
        full: MILLISECOND / 2,
    };
    let (figures, net) = share(write(at(0)), link);
    println!("{figures:?} {}", count(&net, Incident::Retransmission));
    assert!(figures.used >= 0.9, "{figures:?}");
    assert!(figures.fairness >= 0.8, "{figures:?}");
    assert_eq!(count(&net, Incident::Timeout), 0);
}

// abi: R-1161, R-1162
#[test]
fn a_marked_packet_is_told_of_once_in_an_interval() {
    let mut sim = sim(Settings::default());
    sim.ends[0].post(0, write(at(0)), vec![0..4096]);
    let mut notifications = 0;
    for mut frame in sent(&mut sim, 0) {
        let path = Packet::parse(&frame).unwrap().path;
        assert_eq!(Ecn::of(path.traffic_class), Ecn::Capable);
        assert!(mark(&mut frame));
        let now = sim.now;
        sim.ends[1].deliver(&frame, now);
        for frame in sent(&mut sim, 1) {
            let packet = Packet::parse(&frame).unwrap();
            if opcode(&frame) == CONGESTION_NOTIFICATION {
                notifications += 1;
                assert!(packet.headers.bth.becn);
                assert_eq!(Ecn::of(packet.path.traffic_class), Ecn::NotCapable);
                assert!(packet.payload.is_empty());
            }
        }
        sim.now += Duration::from_micros(20);
    }
    assert_eq!(notifications, 2, "at 0 and at 60 µs");
    let incidents = &sim.ends[1].world.incidents;
    let count = |what| incidents.iter().filter(|other| **other == what).count();
    assert_eq!(count(Incident::Marked), 4);
    assert_eq!(count(Incident::NotificationSent), 2);
}

#[test]
fn a_notification_halves_what_is_under_way() {
    let mut sim = sim(Settings::default());
    sim.ends[0].post(0, write(at(0)), vec![0..40 << 10]);
    let frames = sent(&mut sim, 0);
    assert_eq!(frames.len(), 32);
    let mut first = frames[0].clone();
    mark(&mut first);
    let now = sim.now;
    sim.ends[1].deliver(&first, now);
    for frame in frames[1..].iter().chain(&sent(&mut sim, 1)) {
        let to = usize::from(frames.contains(frame));
        sim.ends[to].deliver(frame, now);
    }
    let incidents = &sim.ends[0].world.incidents;
    assert_eq!(incidents[..], [Incident::NotificationReceived]);
    assert_eq!(sent(&mut sim, 0).len(), 0, "31 are under way, 16 may be");
    for frame in sent(&mut sim, 1) {
        sim.ends[0].deliver(&frame, now);
    }
    assert_eq!(sent(&mut sim, 0).len(), 8, "all that is left");
}

/// The window also limits the packets that are sent again after a loss.
#[test]
fn a_loss_halves_what_is_repeated_at_once() {
    let mut sim = sim(Settings::default());
    sim.ends[0].post(0, write(at(0)), vec![0..40 << 10]);
    let frames = sent(&mut sim, 0);
    assert_eq!(frames.len(), 32);
    let now = sim.now;
    for frame in &frames[1..] {
        sim.ends[1].deliver(frame, now);
    }
    for nak in sent(&mut sim, 1) {
        sim.ends[0].deliver(&nak, now);
    }
    assert_eq!(sent(&mut sim, 0).len(), 16);
}
