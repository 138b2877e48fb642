// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Errors end the connection with the status of the IBTA. Earlier work requests succeed.

// Local memory is a list of ranges. Many lists have a single range, such as `vec![0..8]`.
#![allow(clippy::single_range_in_vec_init)]

mod common;

use std::time::Duration;

use common::endpoint::{Settings, BASE, RKEY};
use common::setup::{
    at, local, opcode, requests, sim, statuses, write, LEN, MEMORY, READ_RESPONSE_LAST, SEND,
    WRITE_ONLY,
};
use common::sim::Sim;
use roce::env::Incident;
use roce::rc::rnr_delay;
use roce::work::{AccessFlags, AsyncEvent, Remote, SendFlags, SendOp, SendWr, WcFault, WcStatus};
use roce::{Psn, QpError};

/// Posts a valid WRITE, the operation to test and another WRITE. Checks that the first succeeds,
/// the second fails with `status` and the last is flushed. Returns the event of the responder.
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
fn access_flags_of_the_memory() {
    let mut sim = sim(Settings::default());
    sim.ends[1].world.access = AccessFlags::REMOTE_WRITE;
    fails(sim, SendOp::Read { remote: at(0) }, WcStatus::RemAccessErr);
}

#[test]
fn access_flags_of_the_qp() {
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
    assert_eq!((id, how.status()), (7, WcStatus::LocLenErr));
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
    assert_eq!(
        sim.ends[1].world.received[0].1.status(),
        WcStatus::LocProtErr
    );
}

#[test]
fn local_memory_that_fails_ends_only_its_own_request() {
    // The second work request fails while the first is in flight.
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
        .post_failed(wr(1, SEND, LEN as u32), WcFault::NOT_PERMITTED)
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
        // The packet that needs a receive is sent four times: once, and for three retries.
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
        let tries: Vec<_> = requests(&sim)
            .into_iter()
            .filter(|bth| bth.psn == first)
            .collect();
        assert!(tries.len() >= 5, "once, four retries, and probes");
        assert!(tries[1..].iter().all(|bth| bth.ack_req));
        let incidents = &sim.ends[0].world.incidents;
        let timeouts = incidents.iter().filter(|what| **what == Incident::Timeout);
        assert_eq!(timeouts.count(), 5, "of the first and of four retries");
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
        .map(|(from, frame)| (*from, opcode(frame)))
        .collect();
    let position = |wanted: (usize, u8)| order.iter().position(|seen| *seen == wanted).unwrap();
    assert!(position((0, WRITE_ONLY)) > position((1, READ_RESPONSE_LAST)));
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
