// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Shared receive queues, and queues that move to other rings.

use crate::connected;
use crate::driver::EVENT;
use crate::endpoint::completion_queue;
use crate::endpoint::cq_request;
use crate::endpoint::Endpoint;
use crate::endpoint::Options;
use crate::endpoint::DEPTH;
use crate::endpoint::PLAIN;
use crate::endpoint::QP_COOKIE;
use crate::endpoint::RECEIVE_COOKIE;
use crate::endpoint::RECEIVE_SHIFT;
use crate::endpoint::SHARED_DEPTH;
use crate::endpoint::SRQ_COOKIE;
use crate::memory::Extent;
use crate::only;
use crate::rings;
use crate::wire::*;

const SHARED: Options = Options {
    features: SRQ | RESIZE_CQ,
    depth: 1,
    is_shared: true,
    ..PLAIN
};

/// Sends `number` in a message. Returns the ID of the receive that the message completes.
fn exchange(a: &mut Endpoint, b: &mut Endpoint, number: u64) -> u64 {
    send(a, number);
    only(&mut b.recv_cq).wr_id
}

fn send(a: &mut Endpoint, number: u64) {
    let send = Send::new(opcode::SEND, number);
    a.post_send(&send.inline(&number.to_le_bytes()));
    assert_eq!(only(&mut a.send_cq).wr_id, number);
    a.sq.done += 1;
}

/// Posts a receive whose buffer in the MR is determined by its ID.
fn post(b: &mut Endpoint, wr_id: u64) {
    let sge = b.region.sge(8 * wr_id as u32, 8);
    b.post_receive(&receive(wr_id, &[sge]));
}

fn modify_srq(b: &mut Endpoint, request: Fields) {
    let done = b.driver.command(command::MODIFY_SRQ, &request.0, 0);
    done.unwrap();
}

/// Executes QUERY_SRQ. Returns `max_wr`, `max_sge` and `limit`.
fn query_srq(b: &mut Endpoint) -> (u32, u32, u32) {
    let srqn = b.srq.as_ref().unwrap().number.to_le_bytes();
    let answer = b.driver.command(command::QUERY_SRQ, &srqn, 12).unwrap();
    (le32(&answer, 0), le32(&answer, 4), le32(&answer, 8))
}

/// Receives of an SRQ are consumed in the order in which they were posted, whatever the order of
/// their slots. An event reports that fewer receives than the limit are left.
#[test]
fn a_shared_queue_tells_its_limit() {
    connected(PLAIN, SHARED, |mut a, mut b| {
        let srqn = b.srq.as_ref().unwrap().number;
        for round in 0..3 {
            for number in 0..SHARED_DEPTH.into() {
                post(&mut b, 8 * round + number);
            }
            // abi
            let limit = Fields::default().le32(srqn).le32(1 << 1).le32(0).le32(3);
            modify_srq(&mut b, limit.zeroes(40));
            // abi: R-563
            assert_eq!(query_srq(&mut b), (SHARED_DEPTH, 2, 3));
            for number in 8 * round..8 * round + 8 {
                // abi: R-565
                assert_eq!(exchange(&mut a, &mut b, number), number);
            }
            // abi: R-568
            assert_eq!(b.driver.sleep(), (SRQ_LIMIT_REACHED, SRQ_COOKIE));
            assert_eq!(query_srq(&mut b), (SHARED_DEPTH, 2, 0));
        }
        let numbers: Vec<u8> = (0..24u64).flat_map(u64::to_le_bytes).collect();
        b.region.expect(&[(0, &numbers)]);
        // abi: R-571
        assert_eq!(b.destroy(command::DESTROY_SRQ, srqn), Err(EBUSY));
        b.modify(state::ERR, 0, &[0; 129]).unwrap();
        // abi: R-567
        assert_eq!(b.driver.sleep(), (QP_LAST_WQE_REACHED, QP_COOKIE));
        a.end();
        b.end();
    });
}

/// An SRQ moves to a longer ring and retains the work requests of the old ring.
// abi
#[test]
fn a_shared_queue_grows() {
    connected(PLAIN, SHARED, |mut a, mut b| {
        for number in 0..7 {
            post(&mut b, number);
        }
        assert_eq!(exchange(&mut a, &mut b, 0), 0);
        let old = b.srq.take().unwrap();
        let longer = old.grown(4 * SHARED_DEPTH, RECEIVE_SHIFT);
        let list = longer.ring.list();
        let request = Fields::default()
            .le32(old.number)
            .le32(1 << 0)
            .le32(4 * SHARED_DEPTH)
            .le32(0)
            .raw(&longer.ring.place(&list));
        modify_srq(&mut b, request);
        drop(list);
        b.srq = Some(longer);
        assert_eq!(query_srq(&mut b).0, 4 * SHARED_DEPTH);
        for number in 7..30 {
            post(&mut b, number);
        }
        for number in 1..30 {
            assert_eq!(exchange(&mut a, &mut b, number), number);
        }
        a.end();
        b.end();
    });
}

/// A CQ is moved to another ring while it holds completions and is armed. The first completion in
/// the new ring triggers the event.
#[test]
fn a_cq_moves() {
    let options = Options {
        features: RESIZE_CQ,
        ..PLAIN
    };
    connected(PLAIN, options, |mut a, mut b| {
        for number in 0..8 {
            post(&mut b, number);
        }
        for number in 0..3 {
            send(&mut a, number);
        }
        while b.recv_cq.pending() < 3 {}
        b.recv_cq.arm(&mut b.driver, rings::NEXT);
        let ring = b.recv_cq.another(4 * DEPTH);
        let list = ring.list();
        // abi: R-578
        let request = Fields::default()
            .le32(b.recv_cq.number)
            .le32(4 * DEPTH)
            .raw(&ring.place(&list));
        let end = b.driver.command(command::RESIZE_CQ, &request.0, 4);
        let end = le32(&end.unwrap(), 0);
        // abi: R-579
        assert_eq!(end, 3);
        let held = b.recv_cq.moves(&mut b.driver, ring, end);
        let ids: Vec<u64> = held.iter().map(|cqe| cqe.wr_id).collect();
        assert_eq!(ids, [0, 1, 2]);
        assert_eq!(b.driver.event(), None);
        send(&mut a, 3);
        // abi: R-581
        assert_eq!(b.driver.sleep(), (COMPLETION, RECEIVE_COOKIE));
        b.recv_cq.told();
        // abi: R-580
        assert_eq!(only(&mut b.recv_cq).wr_id, 3);
        a.end();
        b.end();
    });
}

/// The sequence number of arm requests wraps.
// abi, R-1147
#[test]
fn events_outlast_their_sequence() {
    connected(PLAIN, PLAIN, |mut a, mut b| {
        b.recv_cq.skip((1 << 30) - 2);
        for number in 0..4 {
            b.recv_cq.arm(&mut b.driver, rings::NEXT);
            post(&mut b, number);
            assert_eq!(exchange(&mut a, &mut b, number), number);
            assert_eq!(b.driver.sleep(), (COMPLETION, RECEIVE_COOKIE));
            b.recv_cq.told();
        }
        a.end();
        b.end();
    });
}

/// The CQ doorbell sends an overdue event. An event buffer that is too short stops the device until
/// a reset.
// abi: R-560, R-1140, R-1145
#[test]
fn a_short_event_buffer_stops_the_device() {
    connected(PLAIN, PLAIN, |mut a, mut b| {
        b.recv_cq.demand(&mut b.driver);
        assert_eq!(b.driver.sleep(), (COMPLETION, RECEIVE_COOKIE));
        for room in [EVENT - 1, EVENT] {
            a.driver.initialize_with(room);
            let mut cq = completion_queue(&mut a.driver, 0, 7);
            cq.demand(&mut a.driver);
            match room {
                EVENT => assert_eq!(a.driver.sleep(), (COMPLETION, 7)),
                _ => a.driver.await_failure(),
            }
        }
        b.end();
    });
}

/// A CQ ring must have slots for the requested number of CQEs, up to the limit. It may have more
/// pages than it needs. Unknown flags and nonzero reserved bytes are refused.
// abi, R-1142, R-1158
#[test]
fn a_cq_is_as_it_must_be() {
    connected(PLAIN, PLAIN, |mut a, _| {
        let limit = a.driver.config(&[(144, 4)]);
        let limit = le32(&limit[0], 0).next_power_of_two();
        let extent = Extent::new(&a.driver.memory, 5 * 4096);
        let list = extent.list(0);
        let mut create = |cqe, flags, pages, slots: u32, reserved| {
            let place = Fields::default().le64(list.address()).le32(pages);
            let place = place.le32(slots).u8(12).u8(6).zeroes(24);
            let request = cq_request(&place.0, cqe, flags, 0).u8(reserved);
            let made = a
                .driver
                .command(command::CREATE_CQ, &request.zeroes(56).0, 4);
            made.map(drop)
        };
        assert_eq!(create(64, 0, 2, 64, 0), Ok(()));
        assert_eq!(create(64, 0, 5, 64, 0), Ok(()), "more pages");
        assert_eq!(create(3, 1, 2, 64, 0), Ok(()), "more slots, USER");
        assert_eq!(create(64, 0, 1, 64, 0), Err(EINVAL), "fewer pages");
        assert_eq!(create(65, 0, 2, 64, 0), Err(EINVAL), "fewer slots");
        assert_eq!(create(1, 0, 2, 1, 0), Err(EINVAL), "one slot");
        assert_eq!(create(48, 0, 2, 48, 0), Err(EINVAL), "no power of two");
        assert_eq!(create(1, 0, u32::MAX, 2 * limit, 0), Err(EINVAL), "limit");
        assert_eq!(create(64, 0, 2, 64, 1), Err(EINVAL), "reserved");
        for bit in 1..32 {
            assert_eq!(create(64, 1 << bit, 2, 64, 0), Err(EINVAL), "flag {bit}");
        }
    });
}
