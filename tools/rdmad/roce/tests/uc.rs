// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Unreliable connections: valid messages are delivered unchanged, invalid ones are dropped.

// Local memory is a list of ranges. Many lists have a single range, such as `vec![0..8]`.
#![allow(clippy::single_range_in_vec_init)]

mod common;

use common::endpoint::{Settings, BASE, RKEY};
use common::line::{Line, FULL, MTU, PSN};
use common::parts::{send, write, write_imm, write_to};
use common::setup::{at, SEND};
use common::sim::Rng;
use proptest::prelude::*;
use roce::headers::{Body, Bth, Deth, Headers, Part, RcRequest, Reth, SendPart};
use roce::opcode::Position;
use roce::work::{AccessFlags, AtomicOp, RecvWr, SendOp, WcStatus, With};
use roce::{Pause, Psn, QpError};
use virtio_rdma_abi::number::Qpn;

#[test]
fn bytes_of_packets() {
    let mut line = Line::new(4096);
    let imm = [0xde, 0xad, 0xbe, 0xef];
    let with = With::Imm(imm);
    line.post(0, SendOp::Send { with }, vec![0..MTU + 3]);
    let remote = at(0x20);
    line.post(
        1,
        SendOp::Write {
            remote,
            imm: Some(imm),
        },
        vec![0..2],
    );
    line.post(2, SendOp::Write { remote, imm: None }, vec![0..2 * MTU + 1]);
    line.post(3, SEND, vec![]);
    let frames = line.sent();
    let after_udp = |number: usize| &frames[number][42..frames[number].len() - 4];
    let bth = |opcode: u8, flags: u8, psn: u32| {
        let psn = psn.to_be_bytes();
        vec![
            opcode,
            flags | 0x40,
            0xff,
            0xff,
            0,
            0,
            0,
            2,
            0,
            psn[1],
            psn[2],
            psn[3],
        ]
    };
    let memory = &line.near.memory;
    let rdma = |length: u8, high: u8| {
        vec![
            0, 0, 0x7f, 0, 0, 0, 0x10, 0x20, 0, 0, 0x12, 0x34, 0, 0, high, length,
        ]
    };
    let expected = [
        [&bth(0x20, 0, PSN), &memory[..MTU]].concat(),
        [
            &bth(0x23, 0x90, PSN + 1)[..],
            &imm,
            &memory[MTU..MTU + 3],
            &[0],
        ]
        .concat(),
        [
            &bth(0x2b, 0xa0, PSN + 2)[..],
            &rdma(2, 0),
            &imm,
            &memory[..2],
            &[0, 0],
        ]
        .concat(),
        [&bth(0x26, 0, PSN + 3)[..], &rdma(1, 2), &memory[..MTU]].concat(),
        [&bth(0x27, 0, PSN + 4), &memory[MTU..2 * MTU]].concat(),
        [
            &bth(0x28, 0x30, PSN + 5),
            &memory[2 * MTU..2 * MTU + 1],
            &[0; 3],
        ]
        .concat(),
        bth(0x24, 0x80, PSN + 6),
    ];
    assert_eq!(frames.len(), expected.len());
    for (number, bytes) in expected.iter().enumerate() {
        assert_eq!(after_udp(number), bytes, "packet {number}");
    }
    let all: Vec<_> = (0..4).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(line.near.sent, all);
    assert!(line.requester.is_empty());
    assert_eq!(line.requester.next_psn(), Psn::new(PSN + 7));
}

#[test]
fn everything_arrives_over_a_good_channel() {
    let mut line = Line::new(16 << 10);
    let imm = [1, 2, 3, 4];
    let (third, len) = (4 << 10, 3 * MTU + 9);
    line.post_recv(10, vec![third..third + 100, third + 100..2 * third]);
    line.post_recv(11, vec![]);
    line.post(0, SEND, vec![0..len]);
    let (remote, imm) = (at(2 * third as u64), Some(imm));
    line.post(1, SendOp::Write { remote, imm }, vec![5..5 + len]);
    for frame in line.sent() {
        assert_eq!(line.deliver(&frame), Ok(true));
    }
    assert_eq!(line.received(), [(10, len as u32), (11, len as u32)]);
    let how = line.far.received[1].1;
    assert!(how.rdma_write && how.solicited);
    assert_eq!(how.with, With::Imm([1, 2, 3, 4]));
    assert_eq!(line.far.memory[third..third + len], line.near.memory[..len]);
    assert_eq!(
        line.far.memory[2 * third..2 * third + len],
        line.near.memory[5..5 + len]
    );
}

#[test]
fn budgets_and_full_ways_out() {
    let mut line = Line::new(4096);
    line.post(0, SEND, vec![0..4 * MTU]);
    let sent = line.requester.transmit(1, &mut line.near).unwrap();
    assert_eq!((sent.pause, line.near.out.len()), (Pause::Budget, 1));
    line.near.frames = Some(2);
    let sent = line.requester.transmit(usize::MAX, &mut line.near).unwrap();
    assert_eq!((sent.pause, line.near.out.len()), (Pause::NoFrame, 3));
    assert_eq!(line.near.sent, []);
    line.near.frames = None;
    let sent = line.requester.transmit(usize::MAX, &mut line.near).unwrap();
    assert_eq!((sent.pause, line.near.out.len()), (Pause::Idle, 4));
    assert_eq!(line.near.sent, [(0, WcStatus::Success)]);
}

#[test]
fn work_that_fails() {
    let remote = at(0);
    let op = AtomicOp::FetchAdd { add: 1 };
    for (op, status) in [
        (SendOp::Read { remote }, WcStatus::LocQpOpErr),
        (SendOp::Atomic { remote, op }, WcStatus::LocQpOpErr),
        (SendOp::Send { with: With::Inv(1) }, WcStatus::LocQpOpErr),
        (SEND, WcStatus::LocProtErr),
        (SendOp::Local { drained: true }, WcStatus::LocProtErr),
    ] {
        let mut line = Line::new(4096);
        line.near.local_fault = true;
        line.post(0, SEND, vec![]);
        line.post(1, op, vec![0..8]);
        line.post(2, SEND, vec![]);
        let error = line.requester.transmit(usize::MAX, &mut line.near);
        assert_eq!(error, Err(QpError { event: None }));
        assert_eq!(line.near.sent, [(0, WcStatus::Success), (1, status)]);
        assert_eq!(line.near.out.len(), 1);
        assert!(!line.requester.has_room());
        let left: Vec<_> = line.requester.drain().map(|wr| wr.id).collect();
        assert_eq!(left, [2]);
    }
    let mut line = Line::new(4096);
    line.post(0, SendOp::Local { drained: false }, vec![]);
    assert_eq!(line.sent().len(), 0);
    assert_eq!(line.near.sent, [(0, WcStatus::Success)]);
    assert_eq!(line.near.local_operations, [0]);
}

#[test]
fn a_loss_costs_its_message_alone() {
    use Position::*;
    let mut line = Line::new(4096);
    line.post_recv(0, vec![0..3 * MTU]);
    line.post_recv(1, vec![2048..2048 + MTU]);
    assert!(line.feed(send(First), PSN, &FULL));
    assert!(!line.feed(send(Middle), PSN + 2, &FULL), "a gap");
    assert!(!line.feed(send(Last), PSN + 3, b"end"), "the rest");
    assert!(!line.feed(send(Middle), PSN + 1, &FULL), "too late");
    assert_eq!(line.received(), []);
    // The next message is accepted with any PSN, and uses the receive of the lost message.
    assert!(line.feed(send(Only), PSN + 9, b"next"));
    assert_eq!(line.received(), [(0, 4)]);
    assert_eq!(line.far.memory[..4], *b"next");
    assert_eq!(line.responder.expected_psn(), Psn::new(PSN + 10));
    // A message whose last packet is missing when a new message starts is lost too.
    assert!(line.feed(send(First), PSN + 10, &FULL));
    assert!(line.feed(write(Only, 2), PSN + 11, b"wr"));
    assert!(!line.feed(send(Last), PSN + 12, b"end"));
    assert!(line.feed(send(Only), PSN + 13, b"last"));
    assert_eq!(line.received(), [(0, 4), (1, 4)]);
}

#[test]
fn messages_that_can_not_be_taken() {
    use Position::*;
    let other_key = Reth {
        va: BASE,
        rkey: RKEY + 1,
        length: 4,
    };
    type Step<'a> = (Part, &'a [u8]);
    let cases: [&[Step]; 13] = [
        &[(send(Middle), &FULL)],
        &[(send(Last), &FULL)],
        &[(send(First), &FULL[1..])],
        &[(send(First), &FULL), (send(Last), b"")],
        &[(send(First), &FULL), (write(Last, 0), b"x")],
        &[(write(First, 300), &FULL), (send(Last), b"x")],
        &[(write(Only, 5), b"four")],
        &[(write(Only, 3), b"four")],
        &[(write(First, 256), &FULL)],
        &[(write(First, 259), &FULL), (write(Last, 0), b"four")],
        &[(write_to(Only, other_key), b"four")],
        &[(write(Only, (1 << 31) + 1), b"four")],
        &[(send(Only), &FULL)],
    ];
    for (number, case) in cases.into_iter().enumerate() {
        let mut line = Line::new(4096);
        line.post_recv(5, vec![1024..1024 + MTU - 1]);
        if number < 6 {
            line.far.receives[0] = RecvWr {
                id: 5,
                length: 1024,
                local: vec![1024..2048],
            };
        }
        let mut psn = PSN;
        let (last, before) = case.split_last().unwrap();
        for (part, payload) in before {
            assert!(line.feed(*part, psn, payload), "case {number}");
            psn += 1;
        }
        assert!(!line.feed(last.0, psn, last.1), "case {number}");
        assert_eq!(line.received(), []);
        // The connection continues, and the next message uses the held receive.
        assert!(line.feed(send(Only), psn + 1, b"on"));
        assert_eq!(line.received(), [(5, 2)]);
    }
}

#[test]
fn without_access_flags_or_receives() {
    use Position::*;
    let mut line = Line::new(4096);
    line.responder.set_access(AccessFlags::REMOTE_READ);
    assert_eq!(line.responder.access(), AccessFlags::REMOTE_READ);
    assert!(!line.feed(write(Only, 4), PSN, b"four"));
    line.responder.set_access(AccessFlags::REMOTE_WRITE);
    assert!(line.feed(write(Only, 4), PSN + 1, b"four"));
    line.far.access = AccessFlags::REMOTE_READ;
    assert!(!line.feed(write(Only, 4), PSN + 2, b"4444"));
    line.far.access = AccessFlags::ALL;
    assert!(!line.feed(write_imm(4), PSN + 3, b"5555"));
    assert_eq!(line.far.memory[..4], *b"four", "no receive, no data");
    assert!(!line.feed(send(First), PSN + 4, &FULL));
    line.post_recv(0, vec![0..10]);
    assert!(!line.feed(send(Last), PSN + 5, b"x"), "begun without");
    line.far.remote_fault = true;
    assert!(!line.feed(write_imm(4), PSN + 6, b"6666"));
    line.far.remote_fault = false;
    assert!(line.feed(write_imm(4), PSN + 7, b"7777"));
    assert_eq!(line.received(), [(0, 4)], "the receive was kept");
}

#[test]
fn packets_of_other_services_are_ignored() {
    let mut line = Line::new(4096);
    line.post_recv(0, vec![0..100]);
    let part = SendPart::Only(With::Nothing);
    let deth = Deth {
        qkey: 0,
        src_qpn: Qpn::new(1),
    };
    for body in [RcRequest::from(part).into(), Body::Ud { deth, imm: None }] {
        let headers = Headers::new(Bth::new(0xffff, Qpn::new(2), Psn::new(PSN)), body);
        let frame = common::setup::sealed(&headers, b"text");
        assert_eq!(line.deliver(&frame), Ok(false));
    }
    let mut sim = common::setup::sim(Settings::default());
    sim.ends[1].post_recv(0, vec![0..100]);
    let psn = sim.ends[1].responder.expected_psn();
    let headers = Headers::new(
        Bth::new(0xffff, Qpn::new(2), psn),
        Body::Uc(Part::Send(part)),
    );
    let now = sim.now;
    sim.ends[1].deliver(&common::setup::sealed(&headers, b"text"), now);
    assert_eq!(sim.ends[1].responder.expected_psn(), psn);
    assert!(!sim.ends[1].responder.has_output());
}

#[test]
fn only_local_faults_end_a_connection() {
    let mut line = Line::new(4096);
    line.far.bad_receive = true;
    line.post(0, SEND, vec![0..4]);
    line.post(1, SEND, vec![0..4]);
    let frames = line.sent();
    let error = Err(QpError { event: None });
    assert_eq!(line.deliver(&frames[0]), error);
    assert_eq!(line.deliver(&frames[1]), Ok(false), "nothing any more");

    let mut line = Line::new(4096);
    line.post_recv(3, vec![0..8]);
    line.far.local_fault = true;
    assert_eq!(line.deliver(&frames[0]), error);
    let (id, how) = line.far.received[0];
    assert_eq!((id, how.status()), (3, WcStatus::LocProtErr));
    assert_eq!(line.responder.drain().map(|recv| recv.id), None);

    let mut line = Line::new(4096);
    line.post_recv(4, vec![0..3 * MTU]);
    assert!(line.feed(send(Position::First), PSN, &FULL));
    assert_eq!(line.responder.drain().map(|recv| recv.id), Some(4));
}

#[test]
fn messages_that_come_by_another_way() {
    let mut line = Line::new(4096);
    line.post_recv(4, vec![0..3 * MTU]);
    assert!(line.feed(send(Position::First), PSN, &FULL));
    assert_eq!(line.responder.take_receive().map(|recv| recv.id), Some(4));
    line.responder.resume(Psn::new(PSN + 7));
    assert_eq!(line.responder.expected_psn(), Psn::new(PSN + 7));
    line.requester.advance(7);
    assert_eq!(line.requester.next_psn(), Psn::new(PSN + 7));
    assert!(!line.feed(send(Position::Last), PSN + 7, b"x"));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// The channel loses and swaps packets. A SEND is received if and only if all its packets
    /// arrive in order.
    #[test]
    fn whole_messages_or_none(
        lengths in proptest::collection::vec(0..4 * MTU, 1..20),
        loss in 0..40u64,
        swaps in 0..10u64,
        seed: u64,
    ) {
        let mut line = Line::new(64 << 10);
        let mut rng = Rng(seed);
        let mut channel = Vec::new();
        for (id, &len) in lengths.iter().enumerate() {
            line.post(id as u64, SEND, vec![id * 1024..id * 1024 + len]);
            let packets = line.sent();
            let count = packets.len();
            for (index, frame) in packets.into_iter().enumerate() {
                if !rng.chance(loss) {
                    channel.push((id, index, count, frame));
                }
            }
            line.post_recv(id as u64, vec![(32 + id) * 1024..(33 + id) * 1024]);
        }
        for at in 1..channel.len() {
            if rng.chance(swaps) {
                channel.swap(at - 1, at);
            }
        }
        let mut expected = Vec::new();
        let mut at = 0;
        while let Some((id, first, count, _)) = channel.get(at) {
            let whole = *first == 0 && channel.len() >= at + count
                && (0..*count).all(|index| {
                    let (other, position, ..) = &channel[at + index];
                    (other, *position) == (id, index)
                });
            if whole {
                expected.push(*id);
            }
            at += if whole { *count } else { 1 };
        }
        for (.., frame) in &channel {
            prop_assert!(line.deliver(frame).is_ok());
        }
        let received = line.received();
        prop_assert_eq!(received.len(), expected.len());
        for (slot, (&(recv, byte_len), id)) in received.iter().zip(expected).enumerate() {
            prop_assert_eq!((recv, byte_len as usize), (slot as u64, lengths[id]));
            let to = (32 + slot) * 1024;
            let sent = &line.near.memory[id * 1024..id * 1024 + lengths[id]];
            prop_assert_eq!(&line.far.memory[to..to + lengths[id]], sent);
        }
    }
}
