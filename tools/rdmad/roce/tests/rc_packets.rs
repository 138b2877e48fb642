// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Single packets, including invalid ones, and the responses to them.

// Local memory is a list of ranges. Many lists have a single range, such as `vec![0..8]`.
#![allow(clippy::single_range_in_vec_init)]

mod common;

use common::endpoint::{Settings, BASE, RKEY};
use common::parts::{self, range};
use common::setup::{at, local, sealed, sim, statuses, LEN, MEMORY, SEND};
use common::sim::Sim;
use roce::headers::{
    Aeth, Body, Bth, Headers, NakCode, RcRequest, RcResponse, ReadPart, Reth, Syndrome, WritePart,
};
use roce::opcode::Position;
use roce::work::{AccessFlags, AsyncEvent, Mtu, SendOp, WcStatus};
use roce::{Packet, Psn, QpError};

/// A frame from side 0 to side 1. Its PSN is the expected one plus `ahead`.
fn request(sim: &Sim, request: RcRequest, ahead: u32, payload: &[u8]) -> Vec<u8> {
    let end = &sim.ends[1];
    let mut bth = Bth::new(0xffff, end.qpn, end.responder.expected_psn().add(ahead));
    bth.ack_req = true;
    sealed(&Headers::new(bth, request), payload)
}

/// The acknowledgements and NAKs that side 1 sends now.
fn answers(sim: &mut Sim) -> Vec<(Psn, Syndrome)> {
    sim.ends[1].transmit(usize::MAX, sim.now);
    let frames: Vec<_> = sim.ends[1].world.out.drain(..).collect();
    frames
        .iter()
        .map(|frame| Packet::parse(frame).unwrap().headers)
        .filter_map(|headers| {
            let aeth = match headers.body {
                Body::Response(RcResponse::Read(part)) => part.aeth()?,
                Body::Response(RcResponse::Ack(aeth) | RcResponse::Atomic(aeth, _)) => aeth,
                body => panic!("no answer: {body:?}"),
            };
            Some((headers.bth.psn, aeth.syndrome))
        })
        .collect()
}

fn send(position: Position) -> RcRequest {
    RcRequest::Part(parts::send(position))
}

fn write(position: Position, length: u32) -> RcRequest {
    RcRequest::Part(parts::write(position, length))
}

fn read(length: u32) -> RcRequest {
    RcRequest::Read(range(length))
}

/// The headers and the payload of a request packet.
type Step<'a> = (RcRequest, &'a [u8]);

#[test]
fn broken_messages_are_invalid_requests() {
    use Position::*;
    let full = [0u8; 1024];
    let cases: [&[Step]; 15] = [
        &[(send(Middle), &full)],
        &[(send(Last), &full)],
        &[(send(First), &full[1..])],
        &[(send(First), &full), (send(First), &full)],
        &[(send(First), &full), (send(Only), &full)],
        &[(send(First), &full), (write(Last, 0), &full)],
        &[(send(First), &full), (send(Last), &[])],
        &[(send(First), &full), (read(4), &[])],
        &[(write(Middle, 0), &full)],
        &[(write(Only, 5), &full[..4])],
        &[(write(Only, 3), &full[..4])],
        &[(write(First, 1024), &full)],
        &[(write(First, 1030), &full), (write(Last, 0), &full[..7])],
        &[(write(First, 1030), &full), (write(Last, 0), &full[..5])],
        &[(read((1 << 31) + 1), &[])],
    ];
    for (number, case) in cases.iter().enumerate() {
        let mut sim = sim(Settings {
            mtu: Mtu::Mtu1024,
            ..Settings::default()
        });
        sim.ends[1].post_recv(0, vec![0..LEN]);
        for (step, payload) in *case {
            assert_eq!(sim.ends[1].errors, []);
            let frame = request(&sim, *step, 0, payload);
            sim.ends[1].deliver(&frame, sim.now);
        }
        let event = Some(AsyncEvent::QpReqErr);
        assert_eq!(sim.ends[1].errors, [QpError { event }], "case {number}");
        let expected = sim.ends[1].responder.expected_psn();
        assert_eq!(
            answers(&mut sim).pop(),
            Some((expected, Syndrome::Nak(NakCode::InvalidRequest)))
        );
        assert_eq!(sim.ends[1].world.received, []);
    }
}

// abi
#[test]
fn more_reads_than_negotiated() {
    let mut sim = sim(Settings {
        rd_atomic: 2,
        ..Settings::default()
    });
    for _ in 0..3 {
        let frame = request(&sim, read(10), 0, &[]);
        sim.ends[1].deliver(&frame, sim.now);
    }
    assert_eq!(sim.ends[1].errors.len(), 1);
    let syndromes: Vec<_> = answers(&mut sim)
        .into_iter()
        .map(|(_, syndrome)| syndrome)
        .collect();
    assert_eq!(
        syndromes,
        [
            Syndrome::ACK,
            Syndrome::ACK,
            Syndrome::Nak(NakCode::InvalidRequest)
        ]
    );
}

#[test]
fn a_gap_is_reported_once_and_a_duplicate_acknowledged() {
    let mut sim = sim(Settings::default());
    let send = send(Position::Only);
    sim.ends[1].post_recv(0, vec![0..LEN]);
    sim.ends[1].post_recv(1, vec![0..LEN]);
    let start = sim.ends[1].responder.expected_psn();
    let early = request(&sim, send, 1, b"late");
    let due = request(&sim, send, 0, b"due!");
    for _ in 0..3 {
        sim.ends[1].deliver(&early, sim.now);
    }
    assert_eq!(
        answers(&mut sim),
        [(start, Syndrome::Nak(NakCode::PsnSequence))]
    );
    assert_eq!(answers(&mut sim), []);
    sim.ends[1].deliver(&due, sim.now);
    assert_eq!(answers(&mut sim), [(start, Syndrome::ACK)]);
    sim.ends[1].deliver(&due, sim.now);
    assert_eq!(answers(&mut sim), [(start, Syndrome::ACK)], "once more");
    assert_eq!(
        sim.ends[1].world.received.len(),
        1,
        "but not executed again"
    );
    sim.ends[1].deliver(&early, sim.now);
    assert_eq!(answers(&mut sim), [(start.add(1), Syndrome::ACK)]);
    let past = request(&sim, send, 5, b"gap");
    sim.ends[1].deliver(&past, sim.now);
    assert_eq!(
        answers(&mut sim),
        [(start.add(2), Syndrome::Nak(NakCode::PsnSequence))],
        "a new gap, a new report"
    );
}

#[test]
fn duplicate_reads_are_executed_again_from_any_packet() {
    let mut sim = sim(Settings::default());
    let start = sim.ends[1].responder.expected_psn();
    let first = request(&sim, read(LEN as u32), 0, &[]);
    sim.ends[1].deliver(&first, sim.now);
    assert_eq!(
        answers(&mut sim),
        [(start, Syndrome::ACK), (start.add(2), Syndrome::ACK)]
    );
    let middle = Reth {
        va: BASE + 1024,
        rkey: RKEY,
        length: LEN as u32 - 1024,
    };
    let again = request(&sim, RcRequest::Read(middle), 0x100_0000 - 2, &[]);
    sim.ends[1].deliver(&again, sim.now);
    sim.ends[1].deliver(&again, sim.now);
    sim.ends[1].transmit(usize::MAX, sim.now);
    let frames: Vec<_> = sim.ends[1].world.out.drain(..).collect();
    let payload: Vec<_> = frames
        .iter()
        .flat_map(|frame| Packet::parse(frame).unwrap().payload.to_vec())
        .collect();
    assert_eq!(payload, sim.ends[1].world.memory[1024..LEN]);

    // A duplicate is ignored without an error if it is longer than the executed READ, or if its
    // memory is no longer accessible.
    let longer = Reth {
        length: LEN as u32 + 100,
        ..middle
    };
    let frame = request(&sim, RcRequest::Read(longer), 0x100_0000 - 2, &[]);
    sim.ends[1].deliver(&frame, sim.now);
    sim.ends[1].deliver(&again, sim.now);
    sim.ends[1].world.remote_fault = true;
    assert_eq!(answers(&mut sim), []);
    sim.ends[1].world.access = AccessFlags::NONE;
    sim.ends[1].deliver(&again, sim.now);
    assert_eq!(answers(&mut sim), []);
    assert_eq!(sim.ends[1].errors, []);
}

#[test]
fn a_duplicate_of_what_is_still_to_be_answered_changes_nothing() {
    let mut sim = sim(Settings::default());
    let start = sim.ends[1].responder.expected_psn();
    let read = request(&sim, read(LEN as u32), 0, &[]);
    sim.ends[1].deliver(&read, sim.now);
    let last = Reth {
        va: BASE + 2048,
        rkey: RKEY,
        length: LEN as u32 - 2048,
    };
    let again = request(&sim, RcRequest::Read(last), 0x100_0000 - 1, &[]);
    for frame in [&read, &again] {
        sim.ends[1].deliver(frame, sim.now);
    }
    assert_eq!(
        answers(&mut sim),
        [(start, Syndrome::ACK), (start.add(2), Syndrome::ACK)],
        "all of the READ, once"
    );
}

#[test]
fn a_late_duplicate_of_a_read_leaves_the_answers_that_wait() {
    let mut sim = sim(Settings::default());
    let start = sim.ends[1].responder.expected_psn();
    let first = request(&sim, read(LEN as u32), 0, &[]);
    sim.ends[1].deliver(&first, sim.now);
    assert_eq!(answers(&mut sim).len(), 2);
    let others = [8, 2000].map(|length| {
        let frame = request(&sim, read(length), 0, &[]);
        sim.ends[1].deliver(&frame, sim.now);
        frame
    });
    // The request of the first READ took another way through the network. The requester that has
    // gone back repeats the later ones, too.
    sim.ends[1].deliver(&first, sim.now);
    for frame in &others {
        sim.ends[1].deliver(frame, sim.now);
    }
    let psns = answers(&mut sim).into_iter().map(|(psn, _)| psn);
    assert_eq!(
        Vec::from_iter(psns),
        [0, 2, 3, 4, 5].map(|ahead| start.add(ahead)),
        "first and last packets, in the order of the requests"
    );
}

#[test]
fn a_duplicate_is_ignored_while_its_answer_waits_in_the_host() {
    let mut sim = sim(Settings::default());
    let start = sim.ends[1].responder.expected_psn();
    sim.ends[1].world.left = 0;
    let requests = [LEN as u32, 2000].map(|length| {
        let frame = request(&sim, read(length), 0, &[]);
        sim.ends[1].deliver(&frame, sim.now);
        frame
    });
    assert_eq!(answers(&mut sim).len(), 4);
    for request in &requests {
        sim.ends[1].deliver(request, sim.now);
    }
    assert_eq!(answers(&mut sim), []);
    // The packets of the first READ have left, and were lost.
    sim.ends[1].world.left = 3;
    for request in &requests {
        sim.ends[1].deliver(request, sim.now);
    }
    let psns = answers(&mut sim).into_iter().map(|(psn, _)| psn);
    assert_eq!(Vec::from_iter(psns), [start, start.add(2)]);
}

#[test]
fn a_duplicate_restarts_an_answer_that_was_sent_in_part() {
    let mut sim = sim(Settings::default());
    let start = sim.ends[1].responder.expected_psn();
    let first = request(&sim, read(4096), 0, &[]);
    sim.ends[1].deliver(&first, sim.now);
    let later = request(&sim, read(8), 0, &[]);
    sim.ends[1].deliver(&later, sim.now);
    sim.ends[1].transmit(1500, sim.now);
    assert_eq!(sim.ends[1].world.out.drain(..).count(), 2);
    sim.ends[1].deliver(&first, sim.now);
    sim.ends[1].transmit(usize::MAX, sim.now);
    let frames = Vec::from_iter(sim.ends[1].world.out.drain(..));
    let psns = frames.iter().map(|frame| {
        let packet = Packet::parse(frame).expect("a sound packet");
        packet.headers.bth.psn
    });
    assert_eq!(
        Vec::from_iter(psns),
        [0, 1, 2, 3, 4].map(|ahead| start.add(ahead))
    );
}

#[test]
fn ranges_are_checked_as_a_whole_and_if_there_is_one() {
    let nowhere = Reth {
        va: 0,
        rkey: 0,
        length: 0,
    };
    let mut sim = sim(Settings::default());
    let write = RcRequest::from(WritePart::Only(nowhere, None));
    for empty in [RcRequest::Read(nowhere), write] {
        let frame = request(&sim, empty, 0, &[]);
        sim.ends[1].deliver(&frame, sim.now);
        assert_eq!(sim.ends[1].errors, [], "{empty:?}");
    }
    let beyond = Reth {
        va: BASE + MEMORY as u64 - 1024,
        rkey: RKEY,
        length: 1025,
    };
    let before = sim.ends[1].world.memory.clone();
    let first = request(&sim, WritePart::First(beyond).into(), 0, &[7; 1024]);
    sim.ends[1].deliver(&first, sim.now);
    assert_eq!(sim.ends[1].world.memory, before);
    let event = Some(AsyncEvent::QpAccessErr);
    assert_eq!(sim.ends[1].errors, [QpError { event }]);
}

/// AETH of a positive acknowledgement.
const AETH: Aeth = Aeth {
    syndrome: Syndrome::ACK,
    msn: 1,
};

/// Delivers a response with the PSN of the first request to side 0.
fn respond(sim: &mut Sim, response: RcResponse, payload: &[u8]) {
    let psn = Psn::new(sim.ends[0].requester.attr().sq_psn);
    let bth = Bth::new(0xffff, sim.ends[0].qpn, psn);
    let frame = sealed(&Headers::new(bth, response), payload);
    sim.ends[0].deliver(&frame, sim.now);
}

// abi
#[test]
fn bad_read_responses() {
    let only = RcResponse::Read(ReadPart::Only(AETH));
    let first = RcResponse::Read(ReadPart::First(AETH));
    let read = SendOp::Read { remote: at(0) };
    for (posted, response, payload, status) in [
        (read, only, &[1u8; 11][..], WcStatus::LocLenErr),
        (read, only, &[1; 9], WcStatus::LocLenErr),
        (read, first, &[1; 1024], WcStatus::BadRespErr),
        (SEND, only, &[], WcStatus::BadRespErr),
        (read, only, &[1; 10], WcStatus::Success),
    ] {
        let mut sim = sim(Settings::default());
        sim.ends[0].post(0, posted, vec![0..10]);
        sim.ends[0].transmit(usize::MAX, sim.now);
        respond(&mut sim, response, payload);
        assert_eq!(statuses(&sim), [status]);
    }
}

#[test]
fn responses_to_nothing_are_ignored() {
    let mut sim = sim(Settings::default());
    respond(&mut sim, RcResponse::Ack(AETH), &[]);
    respond(&mut sim, RcResponse::Read(ReadPart::Only(AETH)), &[]);
    assert_eq!(sim.ends[0].errors, []);
    sim.ends[0].post(0, SEND, vec![0..10]);
    respond(&mut sim, RcResponse::Ack(AETH), &[]);
    assert_eq!(statuses(&sim), [], "posted but not sent");
}

#[test]
fn draining_returns_what_is_left() {
    let mut sim = sim(Settings::default());
    sim.ends[1].post_recv(9, vec![0..LEN]);
    let frame = request(&sim, send(Position::First), 0, &[0; 1024]);
    sim.ends[1].deliver(&frame, sim.now);
    assert_eq!(sim.ends[1].responder.drain().map(|recv| recv.id), Some(9));
    sim.ends[0].post(4, SEND, local());
    sim.ends[0].post(5, SEND, local());
    let ids: Vec<_> = sim.ends[0].requester.drain().map(|wr| wr.id).collect();
    assert_eq!(ids, [4, 5]);
    assert!(sim.ends[0].requester.is_empty());
}
