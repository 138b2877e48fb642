// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Atomic WRITE and FLUSH, packet by packet.

// Local memory is a list of ranges. Many lists have a single range, such as `vec![0..8]`.
#![allow(clippy::single_range_in_vec_init)]

mod common;

use common::endpoint::{Settings, RKEY};
use common::setup::{at, sealed, sent, sim, statuses};
use common::sim::{Faults, Sim};
use roce::headers::{
    Aeth, Body, Bth, Headers, NakCode, RcRequest, RcResponse, ReadPart, Reth, SendPart, Syndrome,
    WritePart,
};
use roce::work::{AccessFlags, FlushOp, FlushTypes, Remote, SendOp, WcStatus, With};
use roce::{Packet, QpError};

const DATA: [u8; 8] = *b"abcdefgh";

/// A connection that admits FLUSHes.
fn settings() -> Settings {
    Settings {
        access: AccessFlags::ALL,
        ..Settings::default()
    }
}

fn word() -> SendOp {
    SendOp::AtomicWrite {
        remote: at(8),
        data: DATA,
    }
}

fn flush(length: Option<u32>) -> SendOp {
    SendOp::Flush(FlushOp {
        remote: at(16),
        length,
        types: FlushTypes::GLOBAL,
    })
}

/// UDP payload of an IPv4 frame without the ICRC.
fn after_udp(frame: &[u8]) -> &[u8] {
    &frame[14 + 20 + 8..frame.len() - 4]
}

/// Headers of a request from side 0 to side 1. The PSN is the expected one minus `back`.
fn request(sim: &Sim, request: RcRequest, back: u32) -> Headers {
    let end = &sim.ends[1];
    let psn = end.responder.expected_psn().add(0x100_0000 - back);
    let mut bth = Bth::new(0xffff, end.qpn, psn);
    bth.ack_req = true;
    Headers::new(bth, request)
}

/// An atomic WRITE of `length` bytes.
fn atomic_write(va: u64, length: u32) -> RcRequest {
    RcRequest::AtomicWrite(range(va, length))
}

fn flush_of(va: u64, length: u32) -> RcRequest {
    RcRequest::flush(&FlushOp {
        remote: remote(va),
        length: Some(length),
        types: FlushTypes::GLOBAL,
    })
}

fn read(va: u64, length: u32) -> RcRequest {
    RcRequest::Read(range(va, length))
}

fn remote(va: u64) -> Remote {
    Remote { va, rkey: RKEY }
}

fn range(va: u64, length: u32) -> Reth {
    remote(va).range(0, length)
}

fn deliver(sim: &mut Sim, headers: &Headers, payload: &[u8]) {
    let now = sim.now;
    sim.ends[1].deliver(&sealed(headers, payload), now);
}

/// Kind of a response of side 1.
#[derive(Debug, PartialEq)]
enum ResponseKind {
    /// A READ response without data: the response to an atomic WRITE or FLUSH.
    Done,
    Ack,
    Other,
}

use virtio_rdma_abi::number::Qpn;
use ResponseKind::{Ack, Done};

/// Responses that side 1 sends now. Of each: its kind, the distance of its PSN from the expected
/// one, and the syndrome.
fn answers(sim: &mut Sim) -> Vec<(ResponseKind, i32, Syndrome)> {
    let expected = sim.ends[1].responder.expected_psn();
    sent(sim, 1)
        .iter()
        .map(|frame| Packet::parse(frame).unwrap().headers)
        .map(|headers| {
            let (answer, aeth) = match headers.body {
                Body::Response(RcResponse::Read(ReadPart::Only(aeth))) => (Done, aeth),
                Body::Response(RcResponse::Ack(aeth)) => (Ack, aeth),
                Body::Response(RcResponse::Atomic(aeth, _)) => (ResponseKind::Other, aeth),
                body => panic!("no answer: {body:?}"),
            };
            (answer, headers.bth.psn.since(expected), aeth.syndrome)
        })
        .collect()
}

// abi
#[test]
fn bytes_of_requests_and_answers() {
    let mut sim = sim(Settings {
        psn: 0x10_0000,
        ..settings()
    });
    sim.ends[0].post(0, word(), vec![0..8]);
    sim.ends[0].post(1, flush(Some(5)), Vec::new());
    sim.ends[0].post(2, flush(None), Vec::new());
    let frames = sent(&mut sim, 0);
    let header =
        |opcode: u8, psn: u8| [opcode, 0x40, 0xff, 0xff, 0, 0, 0, 2, 0x80, 0x10, 0x00, psn];
    let reth = |low: u8, length: u8| {
        let va = [0x00, 0x00, 0x7f, 0x00, 0x00, 0x00, 0x10, low];
        [&va[..], &[0, 0, 0x12, 0x34], &[0, 0, 0, length]].concat()
    };
    let expected = [
        [&header(0x1d, 1)[..], &reth(8, 8), &DATA].concat(),
        [&header(0x1c, 2)[..], &[0, 0, 0, 0x01], &reth(16, 5)].concat(),
        [&header(0x1c, 3)[..], &[0, 0, 0, 0x11], &reth(16, 0)].concat(),
    ];
    let sent_bytes: Vec<_> = frames.iter().map(|frame| after_udp(frame)).collect();
    assert_eq!(sent_bytes, expected);
    let now = sim.now;
    for frame in &frames {
        sim.ends[1].deliver(frame, now);
    }
    assert_eq!(sim.ends[1].world.memory[8..16], DATA);
    assert_eq!(sim.ends[1].world.flushes.len(), 2);
    let frames = sent(&mut sim, 1);
    for (frame, count) in frames.iter().zip(1..) {
        let answer = [
            0x10, 0x40, 0xff, 0xff, 0, 0, 0, 1, 0, 0x10, 0x00, count, 0x1f, 0, 0, count,
        ];
        assert_eq!(after_udp(frame), answer);
    }
    for frame in &frames {
        sim.ends[0].deliver(frame, now);
    }
    assert_eq!(statuses(&sim), [WcStatus::Success; 3]);
}

// abi: R-757
#[test]
fn a_duplicate_is_answered_and_not_executed() {
    let mut sim = sim(settings());
    let va = at(0).va;
    let write = request(&sim, atomic_write(va, 8), 0);
    deliver(&mut sim, &write, &DATA);
    assert_eq!(answers(&mut sim), [(Done, -1, Syndrome::ACK)]);
    let again = request(&sim, atomic_write(va, 8), 1);
    deliver(&mut sim, &again, b"ABCDEFGH");
    assert_eq!(answers(&mut sim), [(Done, -1, Syndrome::ACK)]);
    assert_eq!(sim.ends[1].world.memory[..8], DATA);
    assert_eq!(sim.ends[1].world.atomics, 1);
    let flush = request(&sim, flush_of(va, 8), 0);
    deliver(&mut sim, &flush, &[]);
    assert_eq!(answers(&mut sim), [(Done, -1, Syndrome::ACK)]);
    let again = request(&sim, flush_of(va, 8), 1);
    deliver(&mut sim, &again, &[]);
    assert_eq!(answers(&mut sim), [(Done, -1, Syndrome::ACK)]);
}

/// A false duplicate, a packet with an old PSN that repeats no executed request, is not answered.
/// Queued answers to other requests are still sent.
#[test]
fn a_false_duplicate_takes_no_answer_away() {
    let va = at(0).va;
    let no_data: &[u8] = &[];
    for (false_one, payload) in [
        (flush_of(va, 8), no_data),
        (atomic_write(va, 8), &DATA),
        // An empty READ, whose R_Key is not checked.
        (read(va, 0), no_data),
        (read(va, 8), no_data),
    ] {
        let mut sim = sim(settings());
        sim.ends[1].post_recv(0, vec![0..8]);
        let send = RcRequest::from(SendPart::Only(With::Nothing));
        let send = request(&sim, send, 0);
        deliver(&mut sim, &send, &DATA);
        answers(&mut sim);
        let due = request(&sim, read(va, 8), 0);
        deliver(&mut sim, &due, &[]);
        // The false duplicate has the PSN of the SEND and arrives before the READ is answered.
        let headers = request(&sim, false_one, 2);
        deliver(&mut sim, &headers, payload);
        assert_eq!(
            answers(&mut sim),
            [(Done, -1, Syndrome::ACK)],
            "after {false_one:?}"
        );
        assert_eq!(sim.ends[1].errors, []);
    }
}

// abi: R-758
#[test]
fn requests_that_make_no_sense() {
    for (va, length, payload) in [
        (at(4).va, 8, &DATA[..]),
        (at(0).va, 4, &DATA[..4]),
        (at(0).va, 8, &DATA[..4]),
        (at(0).va, 16, &[0; 16]),
        (at(0).va, 8, &[]),
    ] {
        let mut sim = sim(settings());
        let write = request(&sim, atomic_write(va, length), 0);
        deliver(&mut sim, &write, payload);
        let nak = Syndrome::Nak(NakCode::InvalidRequest);
        assert_eq!(answers(&mut sim), [(Ack, 0, nak)]);
        assert_eq!(sim.ends[1].world.atomics, 0);
        assert!(matches!(sim.ends[1].errors[..], [QpError { .. }]));
    }
}

/// A requester may have any number of FLUSHes outstanding. While 64 answers are queued, the
/// responder drops further FLUSHes and requests them again.
// abi: R-759
#[test]
fn more_flushes_than_answers_are_kept() {
    let mut sim = sim(settings());
    for _ in 0..200 {
        let flush = request(&sim, flush_of(at(0).va, 8), 0);
        deliver(&mut sim, &flush, &[]);
    }
    let answers = answers(&mut sim);
    let (done, rest) = answers.split_at(64);
    assert!(done.iter().all(|(op, _, _)| *op == Done));
    let nak = Syndrome::Nak(NakCode::PsnSequence);
    assert_eq!(rest, [(Ack, 0, nak)]);
    assert_eq!(sim.ends[1].world.flushes.len(), 64);
    // Answers to duplicates do not accumulate either.
    for back in (1..=64).rev() {
        let flush = request(&sim, flush_of(at(0).va, 8), back);
        for _ in 0..3 {
            deliver(&mut sim, &flush, &[]);
        }
    }
    assert!(sent(&mut sim, 1).len() <= 65);
}

#[test]
fn flushes_take_no_room_from_reads_nor_reads_from_them() {
    let mut sim = sim(settings());
    for _ in 0..16 {
        let read = request(&sim, read(at(0).va, 8), 0);
        deliver(&mut sim, &read, &[]);
    }
    for _ in 0..65 {
        let flush = request(&sim, flush_of(at(0).va, 8), 0);
        deliver(&mut sim, &flush, &[]);
    }
    let answers = answers(&mut sim);
    assert_eq!(answers.len(), 16 + 64 + 1);
    assert_eq!(sim.ends[1].errors, []);
    assert_eq!(sim.ends[1].world.flushes.len(), 64);
}

#[test]
fn a_flush_needs_a_right_and_no_message_around_it() {
    let nak = Syndrome::Nak(NakCode::InvalidRequest);
    let mut sim = sim(Settings::default());
    let flush = request(&sim, flush_of(at(0).va, 8), 0);
    deliver(&mut sim, &flush, &[]);
    assert_eq!(answers(&mut sim), [(Ack, 0, nak)], "no access flag");

    let mut sim = common::setup::sim(settings());
    let first = RcRequest::from(WritePart::First(range(at(0).va, 1025)));
    let mut write = request(&sim, first, 0);
    write.bth.ack_req = false;
    deliver(&mut sim, &write, &[1; 1024]);
    let flush = request(&sim, flush_of(at(0).va, 8), 0);
    deliver(&mut sim, &flush, &[]);
    assert_eq!(answers(&mut sim), [(Ack, 0, nak)], "within a message");
}

#[test]
fn an_answer_with_data_is_none() {
    for (op, local) in [(word(), vec![0..8]), (flush(None), Vec::new())] {
        let mut sim = sim(settings());
        sim.ends[0].post(0, op, local);
        let psn = sim.ends[0].requester.next_psn();
        sent(&mut sim, 0);
        let aeth = Aeth {
            syndrome: Syndrome::ACK,
            msn: 1,
        };
        let answer = RcResponse::Read(ReadPart::Only(aeth));
        let headers = Headers::new(Bth::new(0xffff, Qpn::new(1), psn), answer);
        let now = sim.now;
        sim.ends[0].deliver(&sealed(&headers, b"data"), now);
        assert_eq!(statuses(&sim), [WcStatus::BadRespErr]);
    }
}

#[test]
fn nothing_is_lost_on_a_bad_line() {
    for seed in 0..20 {
        let faults = Faults {
            drop: 10,
            duplicate: 10,
            reorder: 10,
            corrupt: 5,
        };
        let settings = Settings {
            retry_cnt: 7,
            ..settings()
        };
        let mut sim = Sim::new(64 << 10, settings, faults, seed);
        for id in 0..60u64 {
            let op = match id % 3 {
                0 => SendOp::AtomicWrite {
                    remote: at(8 * id),
                    data: id.to_le_bytes(),
                },
                1 => flush(Some(8)),
                _ => flush(None),
            };
            let local = if id % 3 == 0 { vec![0..8] } else { Vec::new() };
            sim.ends[0].post(id, op, local);
        }
        sim.run();
        assert_eq!(statuses(&sim), [WcStatus::Success; 60], "seed {seed}");
        assert_eq!(sim.ends[1].world.atomics, 20);
        for id in (0..60usize).step_by(3) {
            let at = 8 * id;
            assert_eq!(
                sim.ends[1].world.memory[at..at + 8],
                (id as u64).to_le_bytes()
            );
        }
    }
}
