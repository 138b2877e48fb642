// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! SENDs that invalidate an R_Key of the receiver, and operations on local keys.

// Local memory is a list of ranges. Many lists have a single range, such as `vec![0..8]`.
#![allow(clippy::single_range_in_vec_init)]

mod common;

use common::endpoint::Settings;
use common::setup::{at, invalidate, opcode, requests, sent, sim, statuses, write};
use roce::work::{AsyncEvent, SendFlags, SendOp, SendWr, WcFault, WcStatus};
use roce::QpError;

// abi
#[test]
fn a_key_that_can_not_be_invalidated() {
    let mut sim = sim(Settings::default());
    sim.ends[1].post_recv(6, vec![0..100]);
    sim.ends[0].post(0, invalidate(77), vec![0..100]);
    sim.ends[0].post(1, write(at(0)), vec![0..100]);
    sim.run();
    assert_eq!(
        statuses(&sim),
        [WcStatus::RemAccessErr, WcStatus::WrFlushErr]
    );
    let (id, how) = sim.ends[1].world.received[0];
    assert_eq!((id, how.status()), (6, WcStatus::RemInvReqErr));
    let event = Some(AsyncEvent::QpAccessErr);
    assert_eq!(sim.ends[1].errors, [QpError { event }]);
}

// abi: R-622
#[test]
fn a_key_is_invalidated_once_and_with_the_last_packet() {
    let mut sim = sim(Settings::default());
    sim.ends[1].world.keys = vec![5, 9];
    sim.ends[1].post_recv(0, vec![0..3000]);
    sim.ends[0].post(0, invalidate(9), vec![0..3000]);
    let now = sim.now;
    let frames = sent(&mut sim, 0);
    let opcodes: Vec<_> = frames.iter().map(|frame| opcode(frame)).collect();
    assert_eq!(opcodes, [0x00, 0x01, 0x16]);
    for frame in &frames {
        assert_eq!(sim.ends[1].world.keys, [5, 9]);
        sim.ends[1].deliver(frame, now);
    }
    assert_eq!(sim.ends[1].world.keys, [5]);
    sim.ends[1].deliver(&frames[2], now);
    assert_eq!(sim.ends[1].errors, [], "a duplicate is acknowledged alone");
    assert_eq!(sim.ends[1].world.received.len(), 1);
}

#[test]
fn local_work_that_fails_ends_the_connection_in_its_turn() {
    let mut sim = sim(Settings::default());
    sim.ends[0].post(0, write(at(0)), vec![]);
    sim.ends[0].post(1, SendOp::Local { drained: false }, vec![]);
    sim.ends[0].post(2, write(at(0)), vec![0..8]);
    sim.ends[0].world.local_fault = true;
    sim.run();
    assert_eq!(
        statuses(&sim),
        [
            WcStatus::Success,
            WcStatus::LocProtErr,
            WcStatus::WrFlushErr
        ]
    );
    assert_eq!(requests(&sim).len(), 1, "nothing after it is sent");
}

// abi
#[test]
fn local_work_waits_for_what_it_must() {
    let mut sim = sim(Settings::default());
    sim.ends[0].post(0, write(at(0)), vec![0..8]);
    sim.ends[0].post(1, SendOp::Local { drained: false }, vec![]);
    sim.ends[0].post(2, write(at(0)), vec![0..8]);
    sim.ends[0].post(3, SendOp::Local { drained: true }, vec![]);
    sim.ends[0].post(4, write(at(0)), vec![0..8]);
    assert_eq!(sent(&mut sim, 0).len(), 2);
    assert_eq!(sim.ends[0].world.local_operations, [0]);
    assert_eq!(statuses(&sim), [], "completions come in order");
    // The packets sent so far are lost. They are retransmitted, but the first operation on local
    // keys is not executed again.
    sim.run();
    assert_eq!(statuses(&sim), [WcStatus::Success; 5]);
    assert_eq!(sim.ends[0].world.local_operations, [0, 3]);
}

#[test]
fn local_work_alone_needs_no_peer() {
    let mut sim = sim(Settings::default());
    let wr = SendWr {
        id: 0,
        op: SendOp::Local { drained: true },
        length: 0,
        flags: SendFlags::NONE,
        local: vec![],
    };
    sim.ends[0].requester.post(wr.clone()).unwrap();
    assert_eq!(sent(&mut sim, 0), Vec::<Vec<u8>>::new());
    assert_eq!(statuses(&sim), [WcStatus::Success]);
    // An invalid work request is not passed to the environment.
    let bad = SendWr { id: 1, ..wr };
    let fault = WcFault::NOT_PERMITTED;
    sim.ends[0].requester.post_failed(bad, fault).unwrap();
    sent(&mut sim, 0);
    assert_eq!(statuses(&sim), [WcStatus::Success, fault.status]);
    assert_eq!(sim.ends[0].world.local_operations, [0]);
}
