// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Unreliable connections: order and start of work requests, and limits of messages.

// Local memory is a list of ranges. Many lists have a single range, such as `vec![0..8]`.
#![allow(clippy::single_range_in_vec_init)]

mod common;

use common::endpoint::{BASE, LOCAL_FAULT};
use common::line::{Line, FULL, MTU, PSN};
use common::parts::{range, send, write, write_to};
use common::setup::{at, SEND};
use roce::env::Incident;
use roce::headers::Reth;
use roce::net::Addresses;
use roce::opcode::Position::{First, Last, Middle, Only};
use roce::work::{SendFlags, SendOp, SendWr, WcStatus, MAX_MESSAGE};
use roce::{Packet, Path, Psn, QpError};

fn wr(id: u64, length: u32) -> SendWr<common::endpoint::Pieces> {
    SendWr {
        id,
        op: SEND,
        length,
        flags: SendFlags::NONE,
        local: vec![0..8],
    }
}

#[test]
fn there_is_room_for_as_many_as_were_asked_for() {
    let mut line = Line::new(4096);
    assert!(line.requester.is_empty());
    for id in 0..8 {
        assert!(line.requester.has_room());
        line.requester.post(wr(id, 8)).unwrap();
        assert!(!line.requester.is_empty());
    }
    assert!(!line.requester.has_room());
    assert_eq!(line.requester.post(wr(8, 8)).unwrap_err().id, 8);
    assert_eq!(line.sent().len(), 8);
    assert!(line.requester.has_room() && line.requester.is_empty());
}

#[test]
fn what_is_held_does_not_begin() {
    let mut line = Line::new(4096);
    line.post(0, SEND, vec![0..2 * MTU]);
    assert!(line.requester.is_drained(), "nothing has begun");
    line.requester.transmit(1, &mut line.near).unwrap();
    assert_eq!(line.near.out.drain(..).count(), 1);
    assert!(!line.requester.is_drained());
    line.requester.hold(true);
    line.post(1, SEND, vec![0..8]);
    assert_eq!(line.sent().len(), 1, "the rest of what has begun");
    assert!(line.requester.is_drained() && !line.requester.is_empty());
    line.requester.hold(false);
    assert_eq!(line.sent().len(), 1);
    assert!(line.requester.is_empty());
}

#[test]
fn work_that_was_found_bad_ends_in_its_turn() {
    let too_long = wr(1, MAX_MESSAGE + 1);
    for (posted, found, status) in [
        (wr(1, 8), Some(LOCAL_FAULT), WcStatus::LocProtErr),
        (too_long, None, WcStatus::LocLenErr),
    ] {
        let mut line = Line::new(4096);
        line.post(0, SEND, vec![0..8]);
        let taken = match found {
            Some(fault) => line.requester.post_failed(posted, fault),
            None => line.requester.post(posted),
        };
        taken.unwrap();
        line.post(2, SEND, vec![0..8]);
        assert_eq!(line.near.sent, []);
        let error = line.requester.transmit(usize::MAX, &mut line.near);
        assert_eq!(error, Err(QpError { event: None }));
        assert_eq!(line.near.sent, [(0, WcStatus::Success), (1, status)]);
        line.near.out.clear();
        assert_eq!(line.sent().len(), 0, "the QP has failed");
    }
}

#[test]
fn packets_take_the_path_that_was_set() {
    let mut line = Line::new(4096);
    let addresses = Addresses::V4([10, 9, 0, 1].into(), [10, 9, 0, 9].into());
    let path = Path::new([2; 6], [6; 6], addresses);
    line.requester.set_path(path);
    line.post(0, SEND, vec![0..8]);
    let frame = line.sent().remove(0);
    let packet = Packet::parse(&frame).unwrap();
    assert_eq!(
        (packet.path.dst_mac, packet.path.addresses),
        ([6; 6], addresses)
    );
}

#[test]
fn gaps_are_counted() {
    let mut line = Line::new(4096);
    line.post_recv(0, vec![0..3 * MTU]);
    assert!(line.feed(send(First), PSN, &FULL));
    assert!(line.feed(send(Middle), PSN + 1, &FULL));
    assert_eq!(line.far.incidents, []);
    assert!(!line.feed(send(Last), PSN + 3, b"end"));
    assert_eq!(line.far.incidents, [Incident::OutOfSequence]);
    assert_eq!(line.responder.expected_psn(), Psn::new(PSN + 2));
}

#[test]
fn a_message_ends_where_its_receive_does() {
    let mut line = Line::new(4096);
    line.post_recv(0, vec![0..MTU + 8]);
    assert!(line.feed(send(First), PSN, &FULL));
    assert!(!line.feed(send(Last), PSN + 1, b"too long."));
    assert!(line.feed(send(First), PSN + 2, &FULL));
    assert!(line.feed(send(Last), PSN + 3, b"as long."));
    assert_eq!(line.received(), [(0, MTU as u32 + 8)]);
}

#[test]
fn all_of_a_write_is_checked_before_its_first_packet_is_written() {
    let memory = 2 * MTU;
    let mut line = Line::new(memory);
    let beyond = Reth {
        va: BASE + memory as u64 - MTU as u64,
        ..range(MTU as u32 + 8)
    };
    assert!(!line.feed(write_to(First, beyond), PSN, &FULL));
    assert_eq!(line.far.memory, vec![0; memory]);
    // The address and R_Key of an empty WRITE are not checked.
    let nowhere = Reth {
        va: 0,
        rkey: 0,
        length: 0,
    };
    assert!(line.feed(write_to(Only, nowhere), PSN + 1, &[]));
}

#[test]
fn a_write_has_a_longest_length() {
    let mut line = Line::new(4096);
    line.far.endless = true;
    assert!(!line.feed(write(First, MAX_MESSAGE + 1), PSN, &FULL));
    assert!(line.feed(write(First, MAX_MESSAGE), PSN + 1, &FULL));
    let remote = at(0);
    let mut long = wr(0, MAX_MESSAGE);
    long.op = SendOp::Write { remote, imm: None };
    long.local = vec![0..4096];
    line.requester.post(long).unwrap();
    line.requester.transmit(1, &mut line.near).unwrap();
    assert_eq!(line.near.out.len(), 1);
}
