// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Single packets, also such as no sound peer sends, and what is answered.

// Local memory in one piece is a vector of one range.
#![allow(clippy::single_range_in_vec_init)]

mod common;

use common::endpoint::{Settings, BASE, RKEY};
use common::setup::{at, local, sealed, sim, statuses, LEN, MEMORY, SEND};
use common::sim::Sim;
use roce::headers::{Bth, NakCode, Reth, Syndrome, Transport};
use roce::opcode::{Extra, Op, Opcode, Position};
use roce::work::{AccessFlags, AsyncEvent, Mtu, SendOp, WcStatus};
use roce::{Packet, Psn, QpError};

/// A frame from side 0 to side 1, `ahead` packets from what side 1 expects.
fn request(sim: &Sim, op: Op, ahead: u32, reth: Option<Reth>, payload: &[u8]) -> Vec<u8> {
    let end = &sim.ends[1];
    let bth = Bth::new(
        Opcode::rc(op),
        0xffff,
        end.qpn,
        end.responder.expected_psn().add(ahead),
    );
    let mut transport = Transport::new(bth);
    transport.bth.ack_req = true;
    transport.reth = reth;
    if let Op::Send(_, Extra::Imm) | Op::Write(_, Extra::Imm) = op {
        transport.imm = Some([0; 4]);
    }
    transport.invalidate = matches!(op, Op::Send(_, Extra::Inv)).then_some(5);
    sealed(&transport, payload)
}

/// The acknowledgements and NAKs that side 1 sends now.
fn answers(sim: &mut Sim) -> Vec<(Psn, Syndrome)> {
    sim.ends[1].transmit(usize::MAX, sim.now);
    let frames: Vec<_> = sim.ends[1].world.out.drain(..).collect();
    frames
        .iter()
        .map(|frame| Packet::parse(frame).unwrap().transport)
        .filter_map(|transport| {
            transport
                .aeth
                .map(|aeth| (transport.bth.psn, aeth.syndrome))
        })
        .collect()
}

fn reth(length: u32) -> Option<Reth> {
    Some(Reth {
        va: BASE,
        rkey: RKEY,
        length,
    })
}

/// A packet of a message: operation, RETH, payload.
type Step<'a> = (Op, Option<Reth>, &'a [u8]);

#[test]
fn broken_messages_are_invalid_requests() {
    use {Extra::*, Position::*};
    let full = [0u8; 1024];
    let cases: [&[Step]; 15] = [
        &[(Op::Send(Middle, None), Option::None, &full)],
        &[(Op::Send(Last, None), Option::None, &full)],
        &[(Op::Send(First, None), Option::None, &full[1..])],
        &[
            (Op::Send(First, None), Option::None, &full),
            (Op::Send(First, None), Option::None, &full),
        ],
        &[
            (Op::Send(First, None), Option::None, &full),
            (Op::Send(Only, None), Option::None, &full),
        ],
        &[
            (Op::Send(First, None), Option::None, &full),
            (Op::Write(Last, None), Option::None, &full),
        ],
        &[
            (Op::Send(First, None), Option::None, &full),
            (Op::Send(Last, None), Option::None, &[]),
        ],
        &[
            (Op::Send(First, None), Option::None, &full),
            (Op::ReadRequest, reth(4), &[]),
        ],
        &[(Op::Write(Middle, None), Option::None, &full)],
        &[(Op::Write(Only, None), reth(5), &full[..4])],
        &[(Op::Write(Only, None), reth(3), &full[..4])],
        &[(Op::Write(First, None), reth(1024), &full)],
        &[
            (Op::Write(First, None), reth(1030), &full),
            (Op::Write(Last, None), Option::None, &full[..7]),
        ],
        &[
            (Op::Write(First, None), reth(1030), &full),
            (Op::Write(Last, None), Option::None, &full[..5]),
        ],
        &[(Op::ReadRequest, reth((1 << 31) + 1), &[])],
    ];
    for (number, case) in cases.iter().enumerate() {
        let mut sim = sim(Settings {
            mtu: Mtu::Mtu1024,
            ..Settings::default()
        });
        sim.ends[1].post_recv(0, vec![0..LEN]);
        for (op, reth, payload) in *case {
            assert_eq!(sim.ends[1].errors, []);
            let frame = request(&sim, *op, 0, *reth, payload);
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
        let frame = request(&sim, Op::ReadRequest, 0, reth(10), &[]);
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
    let send = Op::Send(Position::Only, Extra::None);
    sim.ends[1].post_recv(0, vec![0..LEN]);
    sim.ends[1].post_recv(1, vec![0..LEN]);
    let start = sim.ends[1].responder.expected_psn();
    let early = request(&sim, send, 1, None, b"late");
    let due = request(&sim, send, 0, None, b"due!");
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
    let past = request(&sim, send, 5, None, b"gap");
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
    let first = request(&sim, Op::ReadRequest, 0, reth(LEN as u32), &[]);
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
    let again = request(&sim, Op::ReadRequest, 0x100_0000 - 2, Some(middle), &[]);
    sim.ends[1].deliver(&again, sim.now);
    sim.ends[1].deliver(&again, sim.now);
    sim.ends[1].transmit(usize::MAX, sim.now);
    let frames: Vec<_> = sim.ends[1].world.out.drain(..).collect();
    let payload: Vec<_> = frames
        .iter()
        .flat_map(|frame| Packet::parse(frame).unwrap().payload.to_vec())
        .collect();
    assert_eq!(payload, sim.ends[1].world.memory[1024..LEN]);

    // Longer than what was executed, or of memory that is gone: nothing, and no error.
    let longer = Reth {
        length: LEN as u32 + 100,
        ..middle
    };
    let frame = request(&sim, Op::ReadRequest, 0x100_0000 - 2, Some(longer), &[]);
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
    let read = request(&sim, Op::ReadRequest, 0, reth(LEN as u32), &[]);
    sim.ends[1].deliver(&read, sim.now);
    let last = Reth {
        va: BASE + 2048,
        rkey: RKEY,
        length: LEN as u32 - 2048,
    };
    let again = request(&sim, Op::ReadRequest, 0x100_0000 - 1, Some(last), &[]);
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
fn ranges_are_checked_as_a_whole_and_if_there_is_one() {
    use Position::*;
    let nowhere = Some(Reth {
        va: 0,
        rkey: 0,
        length: 0,
    });
    let mut sim = sim(Settings::default());
    for op in [Op::ReadRequest, Op::Write(Only, Extra::None)] {
        let empty = request(&sim, op, 0, nowhere, &[]);
        sim.ends[1].deliver(&empty, sim.now);
        assert_eq!(sim.ends[1].errors, [], "{op:?}");
    }
    let beyond = Some(Reth {
        va: BASE + MEMORY as u64 - 1024,
        rkey: RKEY,
        length: 1025,
    });
    let before = sim.ends[1].world.memory.clone();
    let first = request(&sim, Op::Write(First, Extra::None), 0, beyond, &[7; 1024]);
    sim.ends[1].deliver(&first, sim.now);
    assert_eq!(sim.ends[1].world.memory, before);
    let event = Some(AsyncEvent::QpAccessErr);
    assert_eq!(sim.ends[1].errors, [QpError { event }]);
}

/// Feeds side 0 a READ response at the PSN that it waits for.
fn respond(sim: &mut Sim, op: Op, payload: &[u8]) {
    let psn = Psn::new(sim.ends[0].requester.attr().sq_psn);
    let mut transport = Transport::new(Bth::new(Opcode::rc(op), 0xffff, sim.ends[0].qpn, psn));
    transport.aeth = Some(roce::headers::Aeth {
        syndrome: Syndrome::ACK,
        msn: 1,
    });
    let frame = sealed(&transport, payload);
    sim.ends[0].deliver(&frame, sim.now);
}

// abi
#[test]
fn bad_read_responses() {
    let only = Op::ReadResponse(Position::Only);
    let read = SendOp::Read { remote: at(0) };
    for (posted, op, payload, status) in [
        (read, only, &[1u8; 11][..], WcStatus::LocLenErr),
        (read, only, &[1; 9], WcStatus::LocLenErr),
        (
            read,
            Op::ReadResponse(Position::First),
            &[1; 1024],
            WcStatus::BadRespErr,
        ),
        (SEND, only, &[], WcStatus::BadRespErr),
        (read, only, &[1; 10], WcStatus::Success),
    ] {
        let mut sim = sim(Settings::default());
        sim.ends[0].post(0, posted, vec![0..10]);
        sim.ends[0].transmit(usize::MAX, sim.now);
        respond(&mut sim, op, payload);
        assert_eq!(statuses(&sim), [status]);
    }
}

#[test]
fn responses_to_nothing_are_ignored() {
    let mut sim = sim(Settings::default());
    respond(&mut sim, Op::Ack, &[]);
    respond(&mut sim, Op::ReadResponse(Position::Only), &[]);
    assert_eq!(sim.ends[0].errors, []);
    sim.ends[0].post(0, SEND, vec![0..10]);
    respond(&mut sim, Op::Ack, &[]);
    assert_eq!(statuses(&sim), [], "posted but not sent");
}

#[test]
fn draining_returns_what_is_left() {
    let mut sim = sim(Settings::default());
    sim.ends[1].post_recv(9, vec![0..LEN]);
    let frame = request(
        &sim,
        Op::Send(Position::First, Extra::None),
        0,
        None,
        &[0; 1024],
    );
    sim.ends[1].deliver(&frame, sim.now);
    assert_eq!(sim.ends[1].responder.drain().map(|recv| recv.id), Some(9));
    sim.ends[0].post(4, SEND, local());
    sim.ends[0].post(5, SEND, local());
    let ids: Vec<_> = sim.ends[0].requester.drain().map(|wr| wr.id).collect();
    assert_eq!(ids, [4, 5]);
    assert!(sim.ends[0].requester.is_empty());
}
