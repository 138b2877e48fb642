// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Atomic operations, packet by packet.

// Local memory is a list of ranges. Many lists have a single range, such as `vec![0..8]`.
#![allow(clippy::single_range_in_vec_init)]

mod common;

use common::endpoint::{Settings, BASE, RKEY};
use common::setup::{at, invalidate, post_flags, requests, sealed, sent, sim, statuses, write};
use common::sim::Sim;
use roce::headers::{
    Aeth, Body, Bth, Headers, NakCode, RcRequest, RcResponse, ReadPart, SendPart, Syndrome,
};
use roce::work::{AccessFlags, AsyncEvent, AtomicOp, Remote, SendFlags, SendOp, WcStatus, With};
use roce::{Packet, QpError};
use virtio_rdma_abi::number::Qpn;

const ADD: AtomicOp = AtomicOp::FetchAdd { add: 5 };
const SWAP: AtomicOp = AtomicOp::CompareSwap {
    compare: 0x1111_2222_3333_4444,
    swap: 0x5555_6666_7777_8888,
};

fn atomic(op: AtomicOp) -> SendOp {
    SendOp::Atomic { remote: at(0), op }
}

/// UDP payload of an IPv4 frame without the ICRC.
fn after_udp(frame: &[u8]) -> &[u8] {
    &frame[14 + 20 + 8..frame.len() - 4]
}

/// A frame with an atomic request from side 0 to side 1. Its PSN is `back` before the expected one.
fn request(sim: &Sim, op: AtomicOp, va: u64, rkey: u32, back: u32) -> Vec<u8> {
    let end = &sim.ends[1];
    let psn = end.responder.expected_psn().add(0x100_0000 - back);
    let mut bth = Bth::new(0xffff, end.qpn, psn);
    bth.ack_req = true;
    let request = RcRequest::Atomic(Remote { va, rkey }, op);
    sealed(&Headers::new(bth, request), &[])
}

/// Atomic responses and acknowledgements that side 1 sends now. Of each: the distance of its PSN
/// from the expected one, the syndrome and the original value.
fn answers(sim: &mut Sim) -> Vec<(i32, Syndrome, Option<u64>)> {
    let expected = sim.ends[1].responder.expected_psn();
    sent(sim, 1)
        .iter()
        .map(|frame| Packet::parse(frame).unwrap().headers)
        .map(|headers| {
            let distance = headers.bth.psn.since(expected);
            match headers.body {
                Body::Response(RcResponse::Ack(aeth)) => (distance, aeth.syndrome, None),
                Body::Response(RcResponse::Atomic(aeth, original)) => {
                    (distance, aeth.syndrome, Some(original))
                }
                body => panic!("no answer: {body:?}"),
            }
        })
        .collect()
}

fn set_word(sim: &mut Sim, value: u64) {
    sim.ends[1].world.memory[..8].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn bytes_of_requests_and_answers() {
    let mut sim = sim(Settings {
        psn: 0x10_0000,
        ..Settings::default()
    });
    set_word(&mut sim, 0x1111_2222_3333_4444);
    sim.ends[1].world.keys.push(0xabcd_ef01);
    sim.ends[1].post_recv(0, vec![100..200]);
    for (id, op) in [atomic(SWAP), atomic(ADD)].into_iter().enumerate() {
        sim.ends[0].post(id as u64, op, vec![16 + 8 * id..24 + 8 * id]);
    }
    sim.ends[0].post(2, invalidate(0xabcd_ef01), vec![0..3]);
    sim.ends[0].world.memory[..3].copy_from_slice(b"abc");
    let frames = sent(&mut sim, 0);
    let header = |opcode: u8, pad: u8, psn: u8| {
        [
            opcode,
            pad | 0x40,
            0xff,
            0xff,
            0,
            0,
            0,
            2,
            0x80,
            0x10,
            0x00,
            psn,
        ]
    };
    let word = [
        0x00, 0x00, 0x7f, 0x00, 0x00, 0x00, 0x10, 0x00, 0, 0, 0x12, 0x34,
    ];
    let swap = [
        &header(0x13, 0, 1)[..],
        &word,
        &[0x55, 0x55, 0x66, 0x66, 0x77, 0x77, 0x88, 0x88],
        &[0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44],
    ];
    assert_eq!(after_udp(&frames[0]), swap.concat());
    let add = [
        &header(0x14, 0, 2)[..],
        &word,
        &[0, 0, 0, 0, 0, 0, 0, 5],
        &[0; 8],
    ];
    assert_eq!(after_udp(&frames[1]), add.concat());
    let send = [
        &header(0x17, 0x10, 3)[..],
        &[0xab, 0xcd, 0xef, 0x01],
        b"abc\0",
    ];
    assert_eq!(after_udp(&frames[2]), send.concat());
    assert_eq!(frames.len(), 3);

    let now = sim.now;
    for frame in &frames {
        sim.ends[1].deliver(frame, now);
    }
    let frames = sent(&mut sim, 1);
    let answer = |opcode: u8, psn: u8, msn: u8| {
        [
            opcode, 0x40, 0xff, 0xff, 0, 0, 0, 1, 0, 0x10, 0x00, psn, 0x1f, 0, 0, msn,
        ]
    };
    let swapped = [
        &answer(0x12, 1, 1)[..],
        &[0x11, 0x11, 0x22, 0x22, 0x33, 0x33, 0x44, 0x44],
    ];
    assert_eq!(after_udp(&frames[0]), swapped.concat());
    let added = [
        &answer(0x12, 2, 2)[..],
        &[0x55, 0x55, 0x66, 0x66, 0x77, 0x77, 0x88, 0x88],
    ];
    assert_eq!(after_udp(&frames[1]), added.concat());
    assert_eq!(after_udp(&frames[2]), answer(0x11, 3, 3));
    for frame in &frames {
        sim.ends[0].deliver(frame, now);
    }
    assert_eq!(statuses(&sim), [WcStatus::Success; 3]);
    let world = &sim.ends[0].world;
    assert_eq!(world.memory[16..24], 0x1111_2222_3333_4444u64.to_le_bytes());
    assert_eq!(world.memory[24..32], 0x5555_6666_7777_8888u64.to_le_bytes());
    let world = &sim.ends[1].world;
    assert_eq!(world.memory[..8], 0x5555_6666_7777_888du64.to_le_bytes());
    assert_eq!(world.received[0].1.with, With::Inv(0xabcd_ef01));
    assert_eq!(world.keys, []);
}

// abi: R-667
#[test]
fn duplicates_get_the_saved_value() {
    let mut sim = sim(Settings {
        rd_atomic: 2,
        ..Settings::default()
    });
    set_word(&mut sim, 100);
    let now = sim.now;
    for original in [100, 105, 110] {
        let frame = request(&sim, ADD, BASE, RKEY, 0);
        sim.ends[1].deliver(&frame, now);
        assert_eq!(answers(&mut sim), [(-1, Syndrome::ACK, Some(original))]);
    }
    // Duplicates are answered even if the memory is no longer accessible.
    sim.ends[1].world.access = AccessFlags::NONE;
    for (back, original) in [(1, 110), (2, 105), (1, 110)] {
        let again = request(&sim, ADD, BASE, RKEY, back);
        sim.ends[1].deliver(&again, now);
        sim.ends[1].deliver(&again, now);
        let expected = (-(back as i32), Syndrome::ACK, Some(original));
        assert_eq!(answers(&mut sim), [expected], "one answer a turn");
    }
    let forgotten = request(&sim, ADD, BASE, RKEY, 3);
    sim.ends[1].deliver(&forgotten, now);
    assert_eq!(answers(&mut sim), [], "no peer can wait for that");
    assert_eq!(sim.ends[1].world.atomics, 3);
    assert_eq!(sim.ends[1].errors, []);
}

// abi: R-658
#[test]
fn more_atomics_than_negotiated() {
    let mut sim = sim(Settings {
        rd_atomic: 2,
        ..Settings::default()
    });
    let now = sim.now;
    for _ in 0..3 {
        let frame = request(&sim, ADD, BASE, RKEY, 0);
        sim.ends[1].deliver(&frame, now);
    }
    let event = Some(AsyncEvent::QpReqErr);
    assert_eq!(sim.ends[1].errors, [QpError { event }]);
    let answers = answers(&mut sim);
    assert_eq!(answers.len(), 3);
    assert_eq!(
        answers[2],
        (0, Syndrome::Nak(NakCode::InvalidRequest), None)
    );
    assert_eq!(sim.ends[1].world.atomics, 2);
}

#[test]
fn refused_atomics() {
    let invalid = (NakCode::InvalidRequest, AsyncEvent::QpReqErr);
    let denied = (NakCode::RemoteAccess, AsyncEvent::QpAccessErr);
    let broken = (NakCode::RemoteOperational, AsyncEvent::QpFatal);
    let all = AccessFlags::ALL;
    let rest = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    // Each case has the address, R_Key, access flags of the QP and of the memory, whether accesses
    // to the memory fail, and the expected NAK and event.
    let cases = [
        (BASE + 4, RKEY, all, all, false, invalid),
        (BASE + 1, RKEY + 1, all, all, false, invalid),
        (BASE, RKEY, rest, all, false, invalid),
        (BASE, RKEY + 1, all, all, false, denied),
        (BASE - 8, RKEY, all, all, false, denied),
        (u64::MAX - 7, RKEY, all, all, false, denied),
        (BASE, RKEY, all, rest, false, denied),
        (BASE, RKEY, all, all, true, broken),
    ];
    for (number, (va, rkey, access, memory, fault, (code, event))) in cases.into_iter().enumerate()
    {
        for op in [SWAP, ADD] {
            let mut sim = sim(Settings {
                access,
                ..Settings::default()
            });
            sim.ends[1].world.access = memory;
            sim.ends[1].world.remote_fault = fault;
            let frame = request(&sim, op, va, rkey, 0);
            let now = sim.now;
            sim.ends[1].deliver(&frame, now);
            let event = Some(event);
            assert_eq!(sim.ends[1].errors, [QpError { event }], "case {number}");
            assert_eq!(answers(&mut sim), [(0, Syndrome::Nak(code), None)]);
            assert_eq!(sim.ends[1].world.atomics, 0);
        }
    }
}

#[test]
fn an_atomic_operation_within_a_message() {
    let mut sim = sim(Settings::default());
    sim.ends[1].post_recv(0, vec![0..3000]);
    let psn = sim.ends[1].responder.expected_psn();
    let first = Headers::new(
        Bth::new(0xffff, Qpn::new(2), psn),
        RcRequest::from(SendPart::First),
    );
    let now = sim.now;
    sim.ends[1].deliver(&sealed(&first, &[0; 1024]), now);
    let frame = request(&sim, ADD, BASE, RKEY, 0);
    sim.ends[1].deliver(&frame, now);
    assert_eq!(
        answers(&mut sim),
        [(0, Syndrome::Nak(NakCode::InvalidRequest), None)]
    );
}

#[test]
fn work_requests_that_can_not_be() {
    let no_atomics = Settings {
        rd_atomic: 0,
        ..Settings::default()
    };
    for (settings, length, status) in [
        (Settings::default(), 4, WcStatus::LocLenErr),
        (Settings::default(), 16, WcStatus::LocLenErr),
        (no_atomics, 8, WcStatus::LocQpOpErr),
    ] {
        let mut sim = sim(settings);
        sim.ends[0].post(0, atomic(ADD), vec![0..length]);
        sim.run();
        assert_eq!(statuses(&sim), [status]);
        assert_eq!(requests(&sim), []);
    }
}

#[test]
fn a_result_that_can_not_be_stored() {
    let mut sim = sim(Settings::default());
    sim.ends[0].world.local_fault = true;
    sim.ends[0].post(0, atomic(ADD), vec![0..8]);
    sim.run();
    assert_eq!(statuses(&sim), [WcStatus::LocProtErr]);
    assert_eq!(sim.ends[1].world.atomics, 1);
}

#[test]
fn answers_of_the_wrong_kind() {
    let read = SendOp::Read { remote: at(0) };
    let aeth = Aeth {
        syndrome: Syndrome::ACK,
        msn: 1,
    };
    let original = RcResponse::Atomic(aeth, 7);
    let data = RcResponse::Read(ReadPart::Only(aeth));
    for (posted, answer, payload) in [
        (read, original, &[][..]),
        (write(at(0)), original, &[]),
        (atomic(ADD), data, &[0; 8]),
    ] {
        let mut sim = sim(Settings::default());
        sim.ends[0].post(0, posted, vec![0..8]);
        let first = Packet::parse(&sent(&mut sim, 0)[0])
            .unwrap()
            .headers
            .bth
            .psn;
        let headers = Headers::new(Bth::new(0xffff, Qpn::new(1), first), answer);
        let now = sim.now;
        sim.ends[0].deliver(&sealed(&headers, payload), now);
        assert_eq!(statuses(&sim), [WcStatus::BadRespErr]);
    }
}

/// An acknowledgement of a later packet does not complete an atomic operation whose response got
/// lost. The requester repeats the operation.
#[test]
fn a_lost_answer_is_asked_for_again() {
    let mut sim = sim(Settings::default());
    set_word(&mut sim, 40);
    sim.ends[0].post(0, atomic(ADD), vec![0..8]);
    sim.ends[0].post(1, write(at(64)), vec![8..16]);
    let now = sim.now;
    for frame in sent(&mut sim, 0) {
        sim.ends[1].deliver(&frame, now);
    }
    let answers = sent(&mut sim, 1);
    assert_eq!(answers.len(), 2);
    sim.ends[0].deliver(&answers[1], now);
    assert_eq!(statuses(&sim), []);
    sim.run();
    assert_eq!(statuses(&sim), [WcStatus::Success; 2]);
    assert_eq!(sim.ends[0].world.memory[..8], 40u64.to_le_bytes());
    assert_eq!(sim.ends[1].world.atomics, 1);
}

#[test]
fn one_limit_for_reads_and_atomics_and_a_fence() {
    let mut sim = sim(Settings {
        rd_atomic: 2,
        ..Settings::default()
    });
    sim.ends[0].post(0, atomic(ADD), vec![0..8]);
    sim.ends[0].post(1, SendOp::Read { remote: at(0) }, vec![8..16]);
    sim.ends[0].post(2, atomic(ADD), vec![16..24]);
    assert_eq!(sent(&mut sim, 0).len(), 2);

    let mut sim = common::setup::sim(Settings::default());
    sim.ends[0].post(0, atomic(ADD), vec![0..8]);
    post_flags(&mut sim, 1, write(at(64)), SendFlags::FENCE);
    post_flags(
        &mut sim,
        2,
        SendOp::Local { drained: false },
        SendFlags::FENCE,
    );
    assert_eq!(sent(&mut sim, 0).len(), 1, "the fence holds the WRITE back");
    sim.run();
}
