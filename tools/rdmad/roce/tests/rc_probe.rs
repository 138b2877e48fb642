// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! By probes, a requester detects the loss of its last packets within a few round trips.

// Local memory is a list of ranges. Many lists have a single range, such as `vec![0..8]`.
#![allow(clippy::single_range_in_vec_init)]

mod common;

use std::time::Duration;

use common::endpoint::Settings;
use common::setup::{at, local, requests, sealed, sent, sim, statuses, write, LEN, MEMORY, SEND};
use common::sim::{Faults, Sim};
use roce::env::Incident;
use roce::headers::{Bth, Headers, RcResponse};
use roce::rc::ack_timeout;
use roce::work::{AtomicOp, Mtu, SendOp, WcStatus};
use roce::{Packet, Psn};

/// A connection with earlier messages, with which it has measured its round trip of 40 µs. The
/// local ACK timeout is 8.6 s.
fn measured() -> Sim {
    measured_with(Mtu::Mtu1024, 8)
}

/// Like [`measured`], with the path MTU `mtu` and earlier messages of `length` bytes.
fn measured_with(mtu: Mtu, length: usize) -> Sim {
    let mut sim = sim(Settings {
        mtu,
        timeout: 20,
        ..Settings::default()
    });
    for id in 0..4 {
        sim.ends[0].post(id, write(at(0)), vec![0..length]);
        sim.run();
    }
    sim.log.clear();
    sim.start = sim.now;
    sim
}

/// Lets side 0 send and delivers its packets, except for those whose indices are in `lost`.
fn lose(sim: &mut Sim, lost: &[usize]) {
    let frames = sent(sim, 0);
    let now = sim.now;
    for (place, frame) in frames.iter().enumerate() {
        if !lost.contains(&place) {
            sim.ends[1].deliver(frame, now);
        }
    }
}

/// Runs until all work requests have ended, and returns how long this took. Checks that only probes
/// recovered the losses.
fn recovered(sim: &mut Sim) -> Duration {
    sim.run();
    assert!(statuses(sim).iter().all(|how| *how == WcStatus::Success));
    let incidents = &sim.ends[0].world.incidents;
    assert!(!incidents.contains(&Incident::Timeout), "{incidents:?}");
    sim.now - sim.start
}

// abi: R-1164
#[test]
fn a_lost_last_packet_is_sent_again_soon_and_alone() {
    let mut sim = measured();
    sim.ends[0].post(4, write(at(0)), local());
    lose(&mut sim, &[2]);
    let took = recovered(&mut sim);
    assert!(took < Duration::from_millis(1), "{took:?}");
    let probes = requests(&sim);
    assert_eq!(probes.len(), 1);
    assert!(probes[0].ack_req);
    assert_eq!(
        sim.ends[0].world.incidents,
        [Incident::Probe, Incident::Retransmission]
    );
    assert_eq!(
        sim.ends[1].world.memory[..LEN],
        sim.ends[0].world.memory[..LEN]
    );
}

#[test]
fn a_lost_acknowledgement_is_asked_for_with_the_last_packet() {
    let mut sim = measured();
    sim.ends[1].post_recv(0, local());
    sim.ends[0].post(4, SEND, local());
    lose(&mut sim, &[]);
    assert_eq!(sent(&mut sim, 1).len(), 1, "it is lost");
    let took = recovered(&mut sim);
    assert!(took < Duration::from_millis(1), "{took:?}");
    assert_eq!(requests(&sim).len(), 1);
    assert_eq!(sim.ends[1].world.received.len(), 1);
    assert!(sim.ends[1].world.incidents.contains(&Incident::Duplicate));
}

#[test]
fn a_lost_tail_is_repeated_after_the_nak_of_the_probe() {
    let mut sim = measured();
    sim.ends[0].post(4, write(at(0)), vec![0..8192]);
    lose(&mut sim, &[4, 5, 6, 7]);
    let took = recovered(&mut sim);
    assert!(took < Duration::from_millis(1), "{took:?}");
    let probes = requests(&sim);
    assert_eq!(probes.len(), 1 + 4);
    assert_eq!(probes[0].psn, probes[4].psn, "the last one, then all four");
}

/// A responder sends one NAK for a gap. If the retransmitted packets get lost too, the responder
/// sends no other NAK, but the second probe retransmits all packets.
#[test]
fn a_gap_that_is_lost_twice_is_repeated_by_the_second_probe() {
    let mut sim = measured();
    sim.ends[0].post(4, write(at(0)), vec![0..4096]);
    lose(&mut sim, &[1]);
    let nak = sent(&mut sim, 1);
    let now = sim.now;
    nak.iter().for_each(|frame| sim.ends[0].deliver(frame, now));
    lose(&mut sim, &[0, 1, 2]);
    let took = recovered(&mut sim);
    assert!(took < Duration::from_millis(3), "{took:?}");
    assert_eq!(requests(&sim).len(), 1 + 3);
}

#[test]
fn a_lost_answer_is_asked_for_again() {
    let add = SendOp::Atomic {
        remote: at(0),
        op: AtomicOp::FetchAdd { add: 1 },
    };
    for (op, bytes) in [(SendOp::Read { remote: at(0) }, 8), (add, 8)] {
        let mut sim = measured();
        sim.ends[0].post(4, op, vec![0..bytes]);
        lose(&mut sim, &[]);
        assert_eq!(sent(&mut sim, 1).len(), 1, "it is lost");
        let took = recovered(&mut sim);
        assert!(took < Duration::from_millis(1), "{took:?}");
        assert!(sim.ends[1].world.atomics <= 1, "executed once");
    }
}

/// A long READ is split into requests of 64 packets. If its last response packet gets lost, a probe
/// requests only the missing part of the last request.
#[test]
fn the_end_of_a_read_is_asked_for_again() {
    // After messages of 100 packets, the window is large enough for all requests of the READ.
    let mut sim = measured_with(Mtu::Mtu256, 100 * 256);
    let length = 70 * 256;
    sim.ends[0].post(4, SendOp::Read { remote: at(0) }, vec![0..length]);
    lose(&mut sim, &[]);
    let answers = sent(&mut sim, 1);
    let now = sim.now;
    for frame in &answers[..answers.len() - 1] {
        sim.ends[0].deliver(frame, now);
    }
    let took = recovered(&mut sim);
    assert!(took < Duration::from_millis(1), "{took:?}");
    assert_eq!(requests(&sim).len(), 1);
    let answered = sim.log.iter().filter(|(from, _)| *from == 1);
    assert_eq!(answered.count(), 1, "the last packet alone");
    assert_eq!(
        sim.ends[0].world.memory[..length],
        sim.ends[1].world.memory[..length]
    );
}

#[test]
fn probes_take_no_retries_and_put_no_end_off() {
    let mut sim = sim(Settings {
        retry_cnt: 3,
        ..Settings::default()
    });
    sim.faults.drop = 100;
    sim.ends[0].post(0, write(at(0)), local());
    sim.run();
    assert_eq!(statuses(&sim), [WcStatus::RetryExcErr]);
    let incidents = &sim.ends[0].world.incidents;
    let timeouts = incidents.iter().filter(|what| **what == Incident::Timeout);
    assert_eq!(timeouts.count(), 4, "once and three retries");
    let waited = sim.now - sim.start;
    let timeout = ack_timeout(14).unwrap();
    assert!(
        waited >= 4 * timeout && waited < 4 * timeout + timeout / 10,
        "{waited:?}"
    );
    // The time between probes doubles, so a peer that does not respond gets few packets.
    assert!(
        requests(&sim).len() < 3 * (4 + 12),
        "{}",
        requests(&sim).len()
    );
}

#[test]
fn nothing_is_probed_that_is_answered_in_time() {
    let mut sim = measured();
    for id in 4..40 {
        sim.ends[0].post(id, write(at(0)), local());
    }
    recovered(&mut sim);
    assert!(sim.ends[0].world.incidents.is_empty());
    assert_eq!(requests(&sim).len(), 36 * 3);
    assert_eq!(sim.ends[0].requester.next_deadline(), None);
}

/// If the round trip is longer than its initial estimate, the requester measures it, and does not
/// treat each round trip as a loss.
#[test]
fn probes_follow_the_round_trip() {
    let mut sim = measured();
    sim.latency = Duration::from_millis(30);
    for id in 4..24 {
        sim.ends[0].post(id, write(at(0)), vec![0..8]);
        sim.run();
    }
    sim.log.clear();
    for id in 24..34 {
        sim.ends[0].post(id, write(at(0)), vec![0..8]);
        sim.run();
    }
    recovered(&mut sim);
    assert_eq!(requests(&sim).len(), 10, "each went out once");
}

/// If 2 % of the packets get lost, a message still takes less than 1 ms on average.
#[test]
fn a_ping_pong_with_losses_takes_less_than_a_millisecond() {
    let faults = Faults {
        drop: 2,
        ..Faults::default()
    };
    let settings = Settings {
        timeout: 20,
        ..Settings::default()
    };
    let mut sim = Sim::new(MEMORY, settings, faults, 7);
    let rounds = 1000;
    for id in 0..rounds {
        for side in [0, 1] {
            sim.ends[1 - side].post_recv(id, vec![0..64]);
            sim.ends[side].post(id, SEND, vec![0..64]);
            while sim.ends[1 - side].world.received.len() as u64 <= id {
                assert!(sim.step());
            }
        }
    }
    let half = (sim.now - sim.start) / (2 * rounds as u32);
    assert!(half < Duration::from_millis(1), "{half:?}");
}

#[test]
fn a_probe_is_sent_although_the_window_has_shrunk() {
    let mut sim = measured();
    sim.ends[0].post(4, write(at(0)), vec![0..32 << 10]);
    let lost = sent(&mut sim, 0);
    assert_eq!(lost.len(), 32);
    let last = |frames: &[Vec<u8>]| {
        let frame = frames.last().expect("a frame");
        Packet::parse(frame)
            .expect("a sound packet")
            .headers
            .bth
            .psn
    };
    let mut bth = Bth::new(0xffff, sim.ends[0].qpn, Psn::new(0));
    bth.becn = true;
    let notification = sealed(&Headers::new(bth, RcResponse::Congestion), &[]);
    let now = sim.now;
    sim.ends[0].deliver(&notification, now);
    assert!(sent(&mut sim, 0).is_empty(), "more packets are in flight");
    sim.now = sim.ends[0].requester.next_deadline().expect("a probe");
    let now = sim.now;
    sim.ends[0].tick(now);
    let probes = sent(&mut sim, 0);
    assert_eq!((probes.len(), last(&probes)), (1, last(&lost)));
    assert!(sent(&mut sim, 0).is_empty(), "once");
}

/// How long a requester with one retry waits for a peer that does not answer.
fn patience(is_active: bool) -> Duration {
    let mut sim = sim(Settings {
        retry_cnt: 1,
        ..Settings::default()
    });
    sim.ends[0].world.peer_active = is_active;
    sim.ends[0].post(0, write(at(0)), local());
    sim.start = sim.now;
    loop {
        assert!(!sent(&mut sim, 0).is_empty());
        sim.now = sim.ends[0].requester.next_deadline().expect("a timer");
        let now = sim.now;
        sim.ends[0].tick(now);
        if !sim.ends[0].errors.is_empty() {
            assert_eq!(statuses(&sim), [WcStatus::RetryExcErr]);
            return sim.now - sim.start;
        }
    }
}

#[test]
fn timeouts_use_up_no_retries_while_the_peer_is_active_but_not_for_ever() {
    let timeout = ack_timeout(Settings::default().timeout).expect("a timeout");
    assert_eq!(patience(false), 2 * timeout);
    assert_eq!(patience(true), 8 * timeout);
}
