// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Connections: SEND, WRITE with immediate data, wrong keys, events, resets.

use crate::apart;
use crate::between;
use crate::endpoint::Endpoint;
use crate::endpoint::DEPTH;
use crate::endpoint::INLINE_LEN;
use crate::endpoint::PLAIN;
use crate::endpoint::QP_COOKIE;
use crate::endpoint::RECEIVE_COOKIE;
use crate::only;
use crate::pattern;
use crate::region::LEN;
use crate::rings;
use crate::wire::*;

/// Sends a message of several packets from two SGEs to two SGEs. The receiver sleeps until the
/// completion event.
#[test]
fn a_send_wakes_its_receiver() {
    between(|mut a, mut b| {
        let message = pattern(5001);
        a.region.write(7, &message);
        let into = [b.region.sge(8000, 1001), b.region.sge(2000, 4100)];
        b.post_receive(&receive(0x1122_3344_5566_7788, &into));
        assert_eq!(b.recv_cq.poll(), None);
        b.recv_cq.arm(&mut b.driver, rings::NEXT);

        let send = Send::new(opcode::SEND, 0x99aa_bbcc_ddee_ff00);
        let from = [a.region.sge(7, 4097), a.region.sge(7 + 4097, 904)];
        a.post_send(&send.with(&from));

        // abi: R-560, R-1147
        assert_eq!(b.driver.sleep(), (COMPLETION, RECEIVE_COOKIE));
        b.recv_cq.told();
        let received = Cqe::received(b.qpn(), 0x1122_3344_5566_7788, 5001);
        assert_eq!(only(&mut b.recv_cq), received);
        // abi
        b.region
            .expect(&[(8000, &message[..1001]), (2000, &message[1001..])]);
        let sent = Cqe::sent(a.qpn(), 0x99aa_bbcc_ddee_ff00, opcode::SEND, 5001);
        // abi: R-1157
        assert_eq!(only(&mut a.send_cq), sent);
        for side in [&mut a, &mut b] {
            // abi: R-121
            assert_eq!(side.destroy(command::DESTROY_PD, side.pd), Err(EBUSY));
            let cqn = side.recv_cq.number;
            assert_eq!(side.destroy(command::DESTROY_CQ, cqn), Err(EBUSY));
        }
        a.end();
        b.end();
    });
}

/// Rings wrap several times. Messages have inline data, and every third message is signaled.
#[test]
fn rings_go_round() {
    between(|mut a, mut b| {
        let send = |number: u32| {
            // abi: R-181
            let flags = if number % 3 == 2 { SIGNALED } else { 0 };
            Send::new(opcode::SEND, number.into()).flags(flags)
        };
        for number in 0..3 * DEPTH {
            let offset = number * INLINE_LEN;
            let into = b.region.sge(offset, INLINE_LEN);
            b.post_receive(&receive(number.into(), &[into]));
            let payload = &pattern(offset + INLINE_LEN)[offset as usize..];
            a.post_send(&send(number).inline(payload));
            let received = only(&mut b.recv_cq);
            assert_eq!((received.wr_id, received.status), (number.into(), SUCCESS));
            b.rq.done += 1;
            // abi: R-707
            if number % 3 == 2 {
                let sent = only(&mut a.send_cq);
                // abi: R-708
                assert_eq!((sent.wr_id, sent.status), (number.into(), SUCCESS));
                a.sq.done += 3;
            }
        }
        // abi: R-501
        b.region.expect(&[(0, &pattern(3 * DEPTH * INLINE_LEN))]);
        a.end();
        b.end();
    });
}

/// A CQ that is armed for solicited completions ignores other completions. It sends one event, and
/// sends another event only after it was armed again.
// abi
#[test]
fn an_event_is_sent_for_what_was_asked() {
    between(|mut a, mut b| {
        let exchange = |a: &mut Endpoint, b: &mut Endpoint, flags| {
            b.post_receive(&receive(0, &[]));
            let send = Send::new(opcode::SEND, 0).flags(SIGNALED | flags);
            a.post_send(&send.with(&[]));
            assert_eq!(only(&mut a.send_cq).status, SUCCESS);
            assert_eq!(only(&mut b.recv_cq).status, SUCCESS);
        };
        b.recv_cq.arm(&mut b.driver, rings::SOLICITED);
        exchange(&mut a, &mut b, 0);
        exchange(&mut a, &mut b, SOLICITED);
        assert_eq!(b.driver.sleep(), (COMPLETION, RECEIVE_COOKIE));
        b.recv_cq.told();
        exchange(&mut a, &mut b, SOLICITED);
        b.recv_cq.arm(&mut b.driver, rings::NEXT);
        exchange(&mut a, &mut b, 0);
        assert_eq!(b.driver.sleep(), (COMPLETION, RECEIVE_COOKIE));
        b.recv_cq.told();
        a.end();
        b.end();
    });
}

/// A WRITE with immediate data writes to its remote address, and completes a receive without SGEs.
#[test]
fn a_write_with_immediate_data() {
    between(|mut a, mut b| {
        let message = pattern(6000);
        a.region.write(LEN - 6000, &message);
        b.post_receive(&receive(5, &[]));
        let immediate = [0xca, 0xfe, 0xba, 0xbe];
        // abi: R-614
        let write = Send::new(opcode::RDMA_WRITE_WITH_IMM, 6)
            .to(b.region.address + 11, b.region.rkey)
            .ex(immediate);
        a.post_send(&write.with(&[a.region.sge(LEN - 6000, 6000)]));
        let received = Cqe {
            // abi: R-684
            opcode: RECEIVED_WRITE as u8,
            // abi: R-687
            ex: immediate,
            // abi: R-696
            wc_flags: WITH_IMM,
            ..Cqe::received(b.qpn(), 5, 6000)
        };
        assert_eq!(only(&mut b.recv_cq), received);
        // abi: R-653
        b.region.expect(&[(11, &message)]);
        let sent = Cqe::sent(a.qpn(), 6, opcode::RDMA_WRITE_WITH_IMM, 6000);
        // abi: R-1157
        assert_eq!(only(&mut a.send_cq), sent);
        a.end();
        b.end();
    });
}

/// A QP that is reset and connected again continues at the present positions of its rings. Work
/// requests that were posted before the reset get no CQE.
// abi
#[test]
fn a_qp_starts_again() {
    between(|mut a, mut b| {
        let exchange = |a: &mut Endpoint, b: &mut Endpoint, wr_id| {
            b.post_receive(&receive(wr_id, &[b.region.sge(0, 8)]));
            let send = Send::new(opcode::SEND, wr_id);
            a.post_send(&send.inline(&wr_id.to_le_bytes()));
            assert_eq!(only(&mut b.recv_cq).wr_id, wr_id);
            assert_eq!(only(&mut a.send_cq).wr_id, wr_id);
            b.region.expect(&[(0, &wr_id.to_le_bytes())]);
        };
        exchange(&mut a, &mut b, 1);
        b.post_receive(&receive(2, &[]));
        for side in [&mut a, &mut b] {
            side.modify(state::RESET, 0, &[0; 129]).unwrap();
            assert_eq!(side.state(), Ok(state::RESET));
        }
        b.connect(a.peer(), 1, 2);
        a.connect(b.peer(), 2, 1);
        exchange(&mut a, &mut b, 3);
        a.end();
        b.end();
    });
}

/// Work requests wait until the QP is in a state that serves them. RESET drops them.
// abi: R-209, R-1150
#[test]
fn work_waits_for_its_state() {
    apart(PLAIN, PLAIN, |mut a, mut b| {
        let send = |wr_id| Send::new(opcode::SEND, wr_id).with(&[]);
        for round in 0..2 {
            a.post_send(&send(10));
            b.post_receive(&receive(20, &[]));
            b.post_receive(&receive(21, &[]));
            b.connect(a.peer(), 1, 2);
            a.receive_from(b.peer(), 1, |a| a.post_send(&send(11)));
            a.post_send(&send(12));
            b.post_receive(&receive(22, &[]));
            assert_eq!(a.send_cq.poll(), None);
            if round == 0 {
                for side in [&mut a, &mut b] {
                    side.modify(state::RESET, 0, &[0; 129]).unwrap();
                }
            }
        }
        a.send_from(2);
        for number in 0..3 {
            assert_eq!(a.send_cq.wait().wr_id, 10 + number);
            assert_eq!(b.recv_cq.wait().wr_id, 20 + number);
        }
        a.modify(state::SQD, 0, &[0; 129]).unwrap();
        b.post_receive(&receive(23, &[]));
        a.post_send(&send(13));
        assert_eq!(a.state(), Ok(state::SQD));
        assert_eq!((a.send_cq.poll(), b.recv_cq.poll()), (None, None));
        a.modify(state::RTS, 0, &[0; 129]).unwrap();
        assert_eq!(a.send_cq.wait().wr_id, 13);
        assert_eq!(b.recv_cq.wait().wr_id, 23);
        for cq in [&mut a.send_cq, &mut b.recv_cq] {
            assert_eq!(cq.poll(), None);
        }
        a.end();
        b.end();
    });
}

/// The state ERR flushes work requests that were posted in a state that does not serve them.
// abi: R-202, R-1150
#[test]
fn waiting_work_is_flushed() {
    apart(PLAIN, PLAIN, |mut a, b| {
        for wr_id in [10, 11] {
            a.post_send(&Send::new(opcode::SEND, wr_id).with(&[]));
            a.post_receive(&receive(10 + wr_id, &[]));
        }
        a.modify(state::ERR, 0, &[0; 129]).unwrap();
        for wr_id in [10, 11] {
            let flushed = a.send_cq.wait().failure();
            assert_eq!(flushed, (wr_id, WR_FLUSH_ERR, a.qpn(), false));
            let flushed = a.recv_cq.wait().failure();
            assert_eq!(flushed, (10 + wr_id, WR_FLUSH_ERR, a.qpn(), true));
        }
        assert_eq!((a.send_cq.poll(), a.recv_cq.poll()), (None, None));
        a.end();
        b.end();
    });
}

/// A QP may be its own peer.
// abi: R-1152, R-1157
#[test]
fn a_qp_sends_to_itself() {
    apart(PLAIN, PLAIN, |mut a, b| {
        a.connect(a.peer(), 1, 1);
        a.post_receive(&receive(1, &[a.region.sge(0, 8)]));
        a.post_send(&Send::new(opcode::SEND, 2).inline(&[7; 8]));
        assert_eq!(only(&mut a.send_cq), Cqe::sent(a.qpn(), 2, opcode::SEND, 8));
        assert_eq!(only(&mut a.recv_cq), Cqe::received(a.qpn(), 1, 8));
        a.region.expect(&[(0, &[7; 8])]);
        a.end();
        b.end();
    });
}

/// A device reset destroys all objects of a driver.
// abi
#[test]
fn a_reset_destroys_all_objects() {
    between(|mut a, mut b| {
        a.forget();
        b.forget();
    });
}

/// A WRITE with a wrong R_Key writes nothing and moves both QPs to ERR. A CQE reports this to the
/// requester, and an event to the responder. All other work requests of both sides are flushed.
#[test]
fn a_wrong_key_ends_both_qps() {
    between(|mut a, mut b| {
        a.region.write(0, &pattern(100));
        b.post_receive(&receive(1, &[b.region.sge(0, 100)]));
        let write = Send::new(opcode::RDMA_WRITE_WITH_IMM, 2)
            .to(b.region.address, b.region.rkey ^ 1)
            .flags(0);
        a.post_send(&write.with(&[a.region.sge(0, 100)]));
        let failed = a.send_cq.wait();
        // abi: R-722
        assert_eq!(failed.failure(), (2, REM_ACCESS_ERR, a.qpn(), false));
        // abi: R-589
        assert_eq!(b.driver.sleep(), (QP_ACCESS_ERR, QP_COOKIE));
        let flushed = only(&mut b.recv_cq);
        // abi
        assert_eq!(flushed.failure(), (1, WR_FLUSH_ERR, b.qpn(), true));
        for side in [&mut a, &mut b] {
            // abi: R-204, R-1151
            assert_eq!(side.state(), Ok(state::ERR));
        }
        a.post_send(&write.with(&[]));
        let flushed = only(&mut a.send_cq);
        // abi: R-734
        assert_eq!(flushed.failure(), (2, WR_FLUSH_ERR, a.qpn(), false));
        // abi: R-280
        b.region.expect(&[]);
        a.end();
        b.end();
    });
}
