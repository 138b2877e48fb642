// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Order and times of a requester's packets: window, acknowledgements, retransmissions, delays.

// Local memory is a list of ranges. Many lists have a single range, such as `vec![0..8]`.
#![allow(clippy::single_range_in_vec_init)]

mod common;

use std::time::Duration;

use common::endpoint::Settings;
use common::setup::{at, local, sealed, sent, sim, statuses, write, LEN, SEND};
use common::sim::Sim;
use roce::env::Incident;
use roce::headers::{Aeth, Body, Bth, Headers, NakCode, RcRequest, RcResponse, SendPart, Syndrome};
use roce::rc::{RequesterAttr, ResponderAttr};
use roce::work::{AccessFlags, Mtu, SendFlags, SendOp, SendWr, WcFault, WcStatus, With};
use roce::{Packet, Path, Pause, Psn};
use virtio_rdma_abi::number::Qpn;

/// Length in bytes of a message of 200 packets, more than the window. The last packet has one byte.
const LONG: usize = 199 * 256 + 1;

fn small_packets() -> Sim {
    sim(Settings {
        mtu: Mtu::Mtu256,
        ..Settings::default()
    })
}

fn bths(frames: &[Vec<u8>]) -> Vec<Bth> {
    let bth = |frame: &Vec<u8>| Packet::parse(frame).unwrap().headers.bth;
    frames.iter().map(bth).collect()
}

/// Indices of the packets that request an acknowledgement.
fn asking(frames: &[Vec<u8>]) -> Vec<usize> {
    let bths = bths(frames);
    (0..bths.len()).filter(|&at| bths[at].ack_req).collect()
}

/// Delivers an acknowledgement or a NAK to side 0. Its PSN is the first PSN of side 0 plus `ahead`.
fn answer(sim: &mut Sim, ahead: u32, syndrome: Syndrome) {
    let psn = Psn::new(sim.ends[0].requester.attr().sq_psn).add(ahead);
    let bth = Bth::new(0xffff, sim.ends[0].qpn, psn);
    let headers = Headers::new(bth, RcResponse::Ack(Aeth { syndrome, msn: 0 }));
    let now = sim.now;
    sim.ends[0].deliver(&sealed(&headers, &[]), now);
}

const GAP: Syndrome = Syndrome::Nak(NakCode::PsnSequence);

#[test]
fn a_window_doubles_and_four_of_its_packets_ask() {
    let mut sim = small_packets();
    sim.ends[0].post(0, write(at(0)), vec![0..LONG]);
    let first = sent(&mut sim, 0);
    assert_eq!(first.len(), 32);
    assert_eq!(asking(&first), [7, 15, 23, 31]);
    // Two packets are sent: one in place of the acknowledged one, and one because the window grows.
    answer(&mut sim, 0, Syndrome::ACK);
    assert_eq!(asking(&sent(&mut sim, 0)), [1]);
    answer(&mut sim, 33, Syndrome::ACK);
    let second = sent(&mut sim, 0);
    assert_eq!(second.len(), 66);
    answer(&mut sim, 99, Syndrome::ACK);
    let rest = sent(&mut sim, 0);
    assert_eq!(rest.len(), 100, "of a full window of 128");
    assert_eq!(
        asking(&rest),
        [27, 59, 91, 99],
        "the last one of the message too"
    );
}

#[test]
fn a_read_waits_for_room_for_its_responses() {
    let mut sim = small_packets();
    for last in [31, 95] {
        sim.ends[0].post(0, write(at(0)), vec![0..100 * 256]);
        sent(&mut sim, 0);
        answer(&mut sim, last, Syndrome::ACK);
    }
    sim.ends[0].post(1, SendOp::Read { remote: at(0) }, vec![0..64 * 256]);
    assert_eq!(sent(&mut sim, 0).len(), 104);
    answer(&mut sim, 134, Syndrome::ACK);
    assert_eq!(sent(&mut sim, 0).len(), 0, "room for 63 of 64");
    answer(&mut sim, 135, Syndrome::ACK);
    assert_eq!(sent(&mut sim, 0).len(), 1);
}

#[test]
fn a_read_that_is_longer_than_the_window_goes_alone() {
    let mut sim = small_packets();
    sim.ends[0].post(0, write(at(0)), vec![0..8]);
    sim.ends[0].post(1, SendOp::Read { remote: at(0) }, vec![0..64 * 256]);
    assert_eq!(sent(&mut sim, 0).len(), 1);
    answer(&mut sim, 0, Syndrome::ACK);
    assert_eq!(sent(&mut sim, 0).len(), 1);
}

#[test]
fn a_gap_is_repeated_at_once_and_once() {
    let mut sim = small_packets();
    sim.ends[0].post(0, write(at(0)), vec![0..10 * 256]);
    let frames = sent(&mut sim, 0);
    sim.ends[0].post(1, write(at(0)), vec![0..10]);
    answer(&mut sim, 4, GAP);
    let again = sent(&mut sim, 0);
    let psns = |frames| bths(frames).iter().map(|bth| bth.psn).collect::<Vec<_>>();
    assert_eq!(psns(&again)[..6], psns(&frames)[4..]);
    assert_eq!(again.len(), 7, "what is posted by now follows");
    assert_eq!(asking(&again), [0, 3, 5, 6], "the first one asks too");
    let incidents = &sim.ends[0].world.incidents;
    let repeated = incidents
        .iter()
        .filter(|what| **what == Incident::Retransmission);
    assert_eq!(repeated.count(), 6);
    answer(&mut sim, 4, GAP);
    assert_eq!(sent(&mut sim, 0).len(), 0, "the same gap");
    answer(&mut sim, 5, GAP);
    assert_eq!(sent(&mut sim, 0).len(), 6, "another one");
}

#[test]
fn a_lost_answer_is_asked_for_before_a_later_error_counts() {
    let mut sim = sim(Settings::default());
    sim.ends[0].post(0, SendOp::Read { remote: at(0) }, local());
    sim.ends[0].post(1, write(at(0)), vec![0..8]);
    let frames = sent(&mut sim, 0);
    for syndrome in [Syndrome::Nak(NakCode::RemoteAccess), Syndrome::Rnr(31)] {
        answer(&mut sim, 3, syndrome);
        assert_eq!(statuses(&sim), []);
    }
    assert_eq!(sent(&mut sim, 0)[0], frames[0], "the READ, without a pause");
}

#[test]
fn an_answer_in_time_is_waited_for_since_the_oldest_packet() {
    // The local ACK timeout of 2 ms expires before the first probe.
    let mut sim = sim(Settings {
        timeout: 8,
        ..Settings::default()
    });
    sim.ends[0].post(0, write(at(0)), local());
    sent(&mut sim, 0);
    let deadline = sim.ends[0].requester.next_deadline();
    assert!(deadline.is_some());
    sim.now += Duration::from_micros(100);
    sim.ends[0].post(1, write(at(0)), local());
    assert_eq!(sent(&mut sim, 0).len(), 3);
    assert_eq!(sim.ends[0].requester.next_deadline(), deadline);
}

#[test]
fn both_sides_keep_to_their_budget() {
    let mut sim = sim(Settings::default());
    sim.ends[0].post(0, write(at(0)), local());
    let frame = 14 + 20 + 8 + 12 + 16 + 1024 + 4;
    let now = sim.now;
    for (budget, packets) in [(frame + 1, 2), (1, 1)] {
        let end = &mut sim.ends[0];
        let done = end.requester.transmit(budget, now, &mut end.world).unwrap();
        assert_eq!(end.world.out.drain(..).count(), packets);
        assert_eq!(done.pause == Pause::Idle, packets == 1, "what was left");
    }
    let psn = sim.ends[1].responder.expected_psn();
    let read = RcRequest::Read(at(0).range(0, LEN as u32));
    let headers = Headers::new(Bth::new(0xffff, sim.ends[1].qpn, psn), read);
    sim.ends[1].deliver(&sealed(&headers, &[]), now);
    for (budget, packets) in [(frame, 2), (1, 1)] {
        let end = &mut sim.ends[1];
        end.responder.transmit(budget, &mut end.world).unwrap();
        assert_eq!(end.world.out.drain(..).count(), packets);
    }
}

#[test]
fn what_is_held_does_not_begin() {
    let mut sim = sim(Settings::default());
    let now = sim.now;
    let requester = &mut sim.ends[0].requester;
    assert!(requester.is_empty() && requester.is_drained());
    sim.ends[0].post(0, write(at(0)), vec![0..2048]);
    assert!(!sim.ends[0].requester.is_empty());
    assert!(sim.ends[0].requester.is_drained(), "nothing has begun");
    assert!(!sim.ends[0].requester.is_unacknowledged());
    let end = &mut sim.ends[0];
    end.requester.transmit(1, now, &mut end.world).unwrap();
    assert_eq!(end.world.out.drain(..).count(), 1);
    assert!(end.requester.is_unacknowledged());
    end.requester.hold(true);
    end.post(1, write(at(0)), vec![0..8]);
    let bad = SendWr {
        id: 2,
        op: SEND,
        length: 8,
        flags: SendFlags::NONE,
        local: vec![0..8],
    };
    end.requester
        .post_failed(bad, WcFault::NOT_PERMITTED)
        .unwrap();
    assert_eq!(sent(&mut sim, 0).len(), 1, "the rest of what has begun");
    assert!(!sim.ends[0].requester.is_drained());
    answer(&mut sim, 1, Syndrome::ACK);
    assert!(sim.ends[0].requester.is_drained());
    assert!(!sim.ends[0].requester.is_unacknowledged());
    assert_eq!(sent(&mut sim, 0).len(), 0);
    sim.ends[0].requester.hold(false);
    assert_eq!(sent(&mut sim, 0).len(), 1);
    assert_eq!(statuses(&sim), [WcStatus::Success]);
    answer(&mut sim, 2, Syndrome::ACK);
    assert_eq!(
        statuses(&sim)[1..],
        [WcStatus::Success, WcStatus::LocQpOpErr]
    );
}

/// A requester is not drained if all packets sent so far are acknowledged, but the message has one
/// more packet to send.
#[test]
fn what_is_acknowledged_in_part_is_not_drained() {
    let mut sim = sim(Settings::default());
    let now = sim.now;
    sim.ends[0].post(0, write(at(0)), vec![0..2048]);
    let end = &mut sim.ends[0];
    end.requester.transmit(1, now, &mut end.world).unwrap();
    assert_eq!(end.world.out.drain(..).count(), 1);
    end.requester.hold(true);
    answer(&mut sim, 0, Syndrome::ACK);
    assert!(!sim.ends[0].requester.is_drained());
    assert_eq!(sent(&mut sim, 0).len(), 1, "the rest of what has begun");
    answer(&mut sim, 1, Syndrome::ACK);
    assert!(sim.ends[0].requester.is_drained());
    assert_eq!(statuses(&sim), [WcStatus::Success]);
}

#[test]
fn work_that_was_found_bad_is_held_too() {
    let mut sim = sim(Settings::default());
    let bad = SendWr {
        id: 0,
        op: SEND,
        length: 8,
        flags: SendFlags::NONE,
        local: vec![0..8],
    };
    let requester = &mut sim.ends[0].requester;
    requester.post_failed(bad, WcFault::NOT_PERMITTED).unwrap();
    requester.hold(true);
    assert_eq!(sent(&mut sim, 0).len(), 0);
    assert_eq!(statuses(&sim), []);
    sim.ends[0].requester.hold(false);
    sent(&mut sim, 0);
    assert_eq!(statuses(&sim), [WcStatus::LocQpOpErr]);
}

#[test]
fn attributes_of_a_requester_change() {
    let mut sim = sim(Settings::default());
    sim.ends[0].post(0, write(at(0)), vec![0..8]);
    sent(&mut sim, 0);
    let requester = &mut sim.ends[0].requester;
    let next = requester.next_psn();
    requester.set_attr(RequesterAttr {
        sq_psn: 5,
        timeout: 0,
        retry_cnt: 0,
        rnr_retry: 0,
        max_rd_atomic: 0,
    });
    assert_eq!(requester.next_psn(), next, "PSNs go on");
    answer(&mut sim, 0, Syndrome::ACK);
    sim.ends[0].post(1, write(at(0)), vec![0..8]);
    sent(&mut sim, 0);
    assert_eq!(sim.ends[0].requester.next_deadline(), None);
    answer(&mut sim, 1, GAP);
    assert_eq!(statuses(&sim), [WcStatus::Success, WcStatus::RetryExcErr]);
}

#[test]
fn attributes_and_path_of_a_responder_change() {
    let mut sim = sim(Settings::default());
    let responder = &mut sim.ends[1].responder;
    let expected = responder.expected_psn();
    responder.set_attr(ResponderAttr {
        rq_psn: 5,
        min_rnr_timer: 9,
        max_dest_rd_atomic: 1,
        access: AccessFlags::NONE,
    });
    assert_eq!(responder.expected_psn(), expected, "PSNs go on");
    assert_eq!(responder.attr().rq_psn, expected.value());
    let addresses = roce::net::Addresses::V4([10, 9, 0, 2].into(), [10, 9, 0, 1].into());
    responder.set_path(Path::new([6; 6], [8; 6], addresses));
    let send = RcRequest::from(SendPart::Only(With::Nothing));
    let send = Headers::new(Bth::new(0xffff, Qpn::new(2), expected), send);
    let now = sim.now;
    sim.ends[1].deliver(&sealed(&send, b"text"), now);
    let answer = sent(&mut sim, 1).remove(0);
    assert_eq!(answer[..12], [[8; 6], [6; 6]].concat());
    let Body::Response(RcResponse::Ack(aeth)) = Packet::parse(&answer).unwrap().headers.body else {
        panic!("an acknowledgement");
    };
    assert_eq!(aeth.syndrome, Syndrome::Rnr(9));
}

#[test]
fn a_read_waits_until_the_port_has_room_for_its_responses() {
    let mut sim = sim(Settings::default());
    let read = SendOp::Read { remote: at(0) };
    for id in 0..3 {
        sim.ends[0].post(id, read, vec![0..4096]);
    }
    sim.ends[0].world.responses = 8;
    assert_eq!(sent(&mut sim, 0).len(), 2);
    assert_eq!(sim.ends[0].requester.requested(), 8);
    sim.ends[0].world.responses = 11;
    assert!(sent(&mut sim, 0).is_empty());
    sim.ends[0].world.responses = 12;
    assert_eq!(sent(&mut sim, 0).len(), 1);
    assert_eq!(sim.ends[0].requester.requested(), 12);
    sim.run();
    assert_eq!(sim.ends[0].requester.requested(), 0);
    assert_eq!(statuses(&sim), [WcStatus::Success; 3]);
}

#[test]
fn a_requester_starts_with_its_share() {
    let mut sim = sim(Settings::default());
    sim.ends[0].world.share = 3;
    sim.ends[0].post(0, write(at(0)), vec![0..16 << 10]);
    assert_eq!(sent(&mut sim, 0).len(), 3);
}

/// A turn that is spent sends one frame, so that it makes progress, and then gives way.
#[test]
fn a_spent_turn_sends_one_frame() {
    let mut sim = small_packets();
    sim.ends[0].world.spent = true;
    sim.ends[0].post(0, SendOp::Read { remote: at(0) }, vec![0..3 * 256]);
    sim.ends[0].post(1, write(at(0)), vec![0..2 * 256]);
    let now = sim.now;
    let mut requests = Vec::new();
    for _ in 0..3 {
        sim.ends[0].transmit(1 << 20, now);
        let frames: Vec<_> = sim.ends[0].world.out.drain(..).collect();
        assert_eq!(frames.len(), 1, "a request");
        requests.extend(frames);
    }
    for frame in &requests {
        sim.ends[1].deliver(frame, now);
    }
    sim.ends[1].world.spent = true;
    for _ in 0..4 {
        sim.ends[1].transmit(1 << 20, now);
        let frames = sim.ends[1].world.out.drain(..).count();
        assert_eq!(frames, 1, "one of three responses, or the acknowledgement");
    }
    assert!(!sim.ends[1].responder.has_output());
}

/// After a loss the congestion window holds back what is sent again too. Only a probe may exceed
/// it.
#[test]
fn no_more_is_sent_again_than_the_window_has_room_for() {
    let mut sim = small_packets();
    sim.ends[0].post(0, write(at(0)), vec![0..32 * 256]);
    let first = sent(&mut sim, 0).len();
    assert_eq!(first, 32);
    answer(&mut sim, 0, GAP);
    let again = sent(&mut sim, 0).len();
    assert!(again as u64 <= sim.ends[0].requester.window(), "{again}");
    assert!(again < first, "{again}");
}
