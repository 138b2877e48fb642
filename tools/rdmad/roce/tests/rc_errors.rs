// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Errors end the connection with the status that the IBTA names, and nothing before them is lost.

// Local memory in one piece is a vector of one range.
#![allow(clippy::single_range_in_vec_init)]

mod common;

use std::time::Duration;

use common::endpoint::{Pieces, Settings, BASE, RKEY};
use common::sim::{Faults, Sim};
use roce::headers::{Bth, NakCode, Reth, Syndrome, Transport};
use roce::opcode::{Extra, Op, Opcode, Position};
use roce::packet::{build, frame_size};
use roce::rc::{rnr_delay, QpError};
use roce::work::{AccessFlags, AsyncEvent, Mtu, Remote, SendFlags, SendOp, SendWr, WcStatus};
use roce::{Packet, Psn};

const MEMORY: usize = 64 << 10;
const LEN: usize = 3000;
const SEND: SendOp = SendOp::Send { imm: None };

fn sim(settings: Settings) -> Sim {
    Sim::new(MEMORY, settings, Faults::default(), 1)
}

fn at(offset: u64) -> Remote {
    Remote {
        va: BASE + offset,
        rkey: RKEY,
    }
}

fn local() -> Pieces {
    vec![0..LEN]
}

fn write(remote: Remote) -> SendOp {
    SendOp::Write { remote, imm: None }
}

/// Sends of side 0 that ended, in order.
fn statuses(sim: &Sim) -> Vec<WcStatus> {
    let sent = &sim.ends[0].world.sent;
    assert!(
        sent.iter()
            .enumerate()
            .all(|(id, (wr, _))| id as u64 == *wr),
        "in order of posting"
    );
    sent.iter().map(|(_, status)| *status).collect()
}

/// Posts a good WRITE, the operation to test and another WRITE; the first completes, the second fails as told, the last
/// is flushed. Returns the event at the responder.
fn fails(mut sim: Sim, op: SendOp, status: WcStatus) -> (Sim, Option<AsyncEvent>) {
    for (id, op) in [write(at(0)), op, write(at(0))].into_iter().enumerate() {
        sim.ends[0].post(id as u64, op, local());
    }
    sim.run();
    assert_eq!(
        statuses(&sim),
        [WcStatus::Success, status, WcStatus::WrFlushErr]
    );
    assert_eq!(sim.ends[0].errors, [QpError { event: None }]);
    let errors = &sim.ends[1].errors;
    assert!(errors.len() <= 1);
    let event = errors.first().and_then(|error| error.event);
    (sim, event)
}

#[test]
fn remote_access() {
    let unknown_key = Remote { rkey: 1, ..at(0) };
    let beyond = at((MEMORY - LEN + 1) as u64);
    let before = Remote {
        va: BASE - 1,
        rkey: RKEY,
    };
    let wraps = Remote {
        va: u64::MAX - 100,
        rkey: RKEY,
    };
    for remote in [unknown_key, beyond, before, wraps] {
        for op in [write(remote), SendOp::Read { remote }] {
            let (sim, event) = fails(sim(Settings::default()), op, WcStatus::RemAccessErr);
            assert_eq!(event, Some(AsyncEvent::QpAccessErr));
            assert_eq!(sim.ends[1].world.received, []);
        }
    }
}

#[test]
fn rights_of_the_memory() {
    let mut sim = sim(Settings::default());
    sim.ends[1].world.access = AccessFlags::REMOTE_WRITE;
    fails(sim, SendOp::Read { remote: at(0) }, WcStatus::RemAccessErr);
}

#[test]
fn rights_of_the_qp() {
    let access = AccessFlags::REMOTE_WRITE;
    let (_, event) = fails(
        sim(Settings {
            access,
            ..Settings::default()
        }),
        SendOp::Read { remote: at(0) },
        WcStatus::RemInvReqErr,
    );
    assert_eq!(event, Some(AsyncEvent::QpReqErr));
}

#[test]
fn remote_memory_that_fails() {
    for op in [write(at(0)), SendOp::Read { remote: at(0) }] {
        let mut sim = sim(Settings::default());
        sim.ends[1].world.remote_fault = true;
        sim.ends[0].post(0, op, local());
        sim.run();
        assert_eq!(statuses(&sim), [WcStatus::RemOpErr]);
        assert_eq!(
            sim.ends[1].errors,
            [QpError {
                event: Some(AsyncEvent::QpFatal)
            }]
        );
    }
}

#[test]
fn message_longer_than_the_receive() {
    let mut sim = sim(Settings::default());
    sim.ends[1].post_recv(7, vec![0..LEN - 1]);
    let (sim, event) = fails(sim, SEND, WcStatus::RemInvReqErr);
    assert_eq!(event, None, "the receive tells");
    let (id, how) = sim.ends[1].world.received[0];
    assert_eq!((id, how.status), (7, WcStatus::LocLenErr));
}

#[test]
fn receive_that_is_bad() {
    let mut sim = sim(Settings::default());
    sim.ends[1].world.bad_receive = true;
    fails(sim, SEND, WcStatus::RemOpErr);
}

#[test]
fn receive_into_bad_memory() {
    let mut sim = sim(Settings::default());
    sim.ends[1].post_recv(3, vec![0..LEN]);
    sim.ends[1].world.local_fault = true;
    let (sim, event) = fails(sim, SEND, WcStatus::RemOpErr);
    assert_eq!(event, None);
    assert_eq!(sim.ends[1].world.received[0].1.status, WcStatus::LocProtErr);
}

#[test]
fn local_memory_that_fails_ends_only_its_own_request() {
    // The bad request is found while the first is in flight.
    let mut sim = sim(Settings::default());
    sim.budget = usize::MAX;
    sim.ends[0].post(0, write(at(0)), local());
    sim.step();
    sim.ends[0].world.local_fault = true;
    sim.ends[0].post(1, write(at(0)), local());
    sim.ends[0].post(2, write(at(0)), local());
    sim.run();
    assert_eq!(
        statuses(&sim),
        [
            WcStatus::Success,
            WcStatus::LocProtErr,
            WcStatus::WrFlushErr
        ]
    );
}

#[test]
fn read_into_bad_memory() {
    let mut sim = sim(Settings::default());
    sim.ends[0].world.local_fault = true;
    sim.ends[0].post(0, SendOp::Read { remote: at(0) }, local());
    sim.run();
    assert_eq!(statuses(&sim), [WcStatus::LocProtErr]);
}

#[test]
fn requests_found_bad_at_posting_wait_for_their_turn() {
    let wr = |id, op, length| SendWr {
        id,
        op,
        length,
        flags: SendFlags::NONE,
        local: local(),
    };
    let mut sim = sim(Settings {
        rd_atomic: 0,
        ..Settings::default()
    });
    sim.ends[0].post(0, write(at(0)), local());
    sim.ends[0]
        .requester
        .post_failed(wr(1, SEND, LEN as u32), WcStatus::LocQpOpErr)
        .unwrap();
    sim.ends[0].post(2, write(at(0)), local());
    sim.run();
    assert_eq!(
        statuses(&sim),
        [
            WcStatus::Success,
            WcStatus::LocQpOpErr,
            WcStatus::WrFlushErr
        ]
    );
    assert!(
        sim.ends[0].requester.post(wr(3, SEND, 1)).is_err(),
        "the connection is over"
    );

    for (op, length, status) in [
        (SendOp::Read { remote: at(0) }, 1, WcStatus::LocQpOpErr),
        (SEND, (1 << 31) + 1, WcStatus::LocLenErr),
    ] {
        let mut sim = self::sim(Settings {
            rd_atomic: 0,
            ..Settings::default()
        });
        sim.ends[0].requester.post(wr(0, op, length)).unwrap();
        sim.run();
        assert_eq!(statuses(&sim), [status]);
    }
}

/// Frames that side 0 sent.
fn requests(sim: &Sim) -> Vec<Bth> {
    let sent = sim.log.iter().filter(|(from, _)| *from == 0);
    sent.map(|(_, frame)| Packet::parse(frame).unwrap().transport.bth)
        .collect()
}

#[test]
fn no_receive() {
    for (op, tries_packets) in [
        (SEND, [0, 1, 2]),
        (
            SendOp::Write {
                remote: at(0),
                imm: Some([1; 4]),
            },
            [2, 2, 2],
        ),
    ] {
        let mut sim = sim(Settings {
            rnr_retry: 3,
            min_rnr_timer: 20,
            ..Settings::default()
        });
        sim.ends[1].world.memory.fill(0x55);
        sim.ends[0].post(0, op, local());
        sim.run();
        assert_eq!(statuses(&sim), [WcStatus::RnrRetryExcErr]);
        assert_eq!(sim.ends[1].errors, [], "only the requester gives up");
        let waited = sim.now - sim.start;
        assert!(
            waited >= 3 * rnr_delay(20) && waited < 4 * rnr_delay(20),
            "{waited:?}"
        );
        // The packet that needs the receive goes out four times.
        let needy = sim.ends[0].requester.attr().sq_psn + tries_packets[0];
        assert_eq!(
            requests(&sim)
                .iter()
                .filter(|bth| bth.psn == Psn::new(needy))
                .count(),
            4
        );
        assert!(
            sim.ends[1].world.memory[2048..LEN]
                .iter()
                .all(|&byte| byte == 0x55),
            "no trace of the last packet"
        );
    }
}

#[test]
fn a_receive_that_comes_late_is_waited_for() {
    let mut sim = sim(Settings {
        rnr_retry: 7,
        min_rnr_timer: 1,
        ..Settings::default()
    });
    sim.ends[0].post(0, SEND, local());
    while sim.now < sim.start + Duration::from_millis(50) {
        assert!(sim.step());
    }
    assert_eq!(statuses(&sim), []);
    sim.ends[1].post_recv(0, vec![0..LEN]);
    sim.run();
    assert_eq!(statuses(&sim), [WcStatus::Success]);
    assert_eq!(
        sim.ends[1].world.memory[..LEN],
        sim.ends[0].world.memory[..LEN]
    );
}

#[test]
fn peer_gone() {
    for op in [SEND, write(at(0)), SendOp::Read { remote: at(0) }] {
        let mut sim = sim(Settings {
            retry_cnt: 4,
            ..Settings::default()
        });
        sim.faults.drop = 100;
        sim.ends[0].post(0, op, local());
        sim.ends[0].post(1, op, local());
        sim.run();
        assert_eq!(
            statuses(&sim),
            [WcStatus::RetryExcErr, WcStatus::WrFlushErr]
        );
        let first = requests(&sim)[0].psn;
        assert_eq!(
            requests(&sim).iter().filter(|bth| bth.psn == first).count(),
            5,
            "once and four retries"
        );
    }
}

#[test]
fn without_a_timeout_a_requester_waits_for_ever() {
    let mut sim = sim(Settings {
        timeout: 0,
        ..Settings::default()
    });
    sim.faults.drop = 100;
    sim.ends[0].post(0, SEND, local());
    sim.run();
    assert_eq!(statuses(&sim), []);
    assert_eq!(sim.ends[0].requester.next_deadline(), None);
}

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

fn sealed(transport: &Transport, payload: &[u8]) -> Vec<u8> {
    let path = roce::Path::new(
        [1; 6],
        [2; 6],
        roce::net::Addresses::V6(1u128.into(), 2u128.into()),
    );
    let mut frame = vec![0; frame_size(&path, transport, payload.len())];
    let filled: Result<(), ()> = build(&mut frame, &path, 0, transport, payload.len(), |out| {
        out.copy_from_slice(payload);
        Ok(())
    });
    filled.unwrap();
    frame
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
    let cases: [&[Step]; 16] = [
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
        &[(Op::Send(Only, Inv), Option::None, &full[..4])],
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
fn a_fence_waits_for_reads() {
    let mut sim = sim(Settings::default());
    sim.ends[0].post(0, SendOp::Read { remote: at(0) }, local());
    let wr = SendWr {
        id: 1,
        op: write(at(0)),
        length: 8,
        flags: SendFlags::FENCE,
        local: vec![0..8],
    };
    sim.ends[0].requester.post(wr).unwrap();
    sim.run();
    assert_eq!(statuses(&sim), [WcStatus::Success; 2]);
    let order: Vec<_> = sim
        .log
        .iter()
        .map(|(from, frame)| (*from, Packet::parse(frame).unwrap().opcode().op))
        .collect();
    let position = |wanted: (usize, Op)| order.iter().position(|seen| *seen == wanted).unwrap();
    assert!(
        position((0, Op::Write(Position::Only, Extra::None)))
            > position((1, Op::ReadResponse(Position::Last)))
    );
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

#[test]
fn packets_of_another_path_are_counted() {
    let mut sim = sim(Settings::default());
    sim.ends[0].requester.advance(1000);
    sim.ends[1].responder.advance(1000, 3);
    assert_eq!(
        sim.ends[0].requester.next_psn(),
        sim.ends[1].responder.expected_psn()
    );
    sim.ends[0].post(0, write(at(0)), local());
    sim.run();
    assert_eq!(statuses(&sim), [WcStatus::Success]);
    assert_eq!(sim.ends[1].responder.msn(), 4);
}
