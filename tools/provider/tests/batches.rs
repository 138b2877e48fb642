// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Control verbs between `ibv_start_poll` and `ibv_end_poll`, on the polled CQ.

#[path = "common/extended.rs"]
mod extended_cq;

use std::thread;

use extended_cq::*;
use provider_testkit::*;
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_provider::cq;
use virtio_rdma_provider::cq::Cq;
use virtio_rdma_provider::ffi;

/// The id of the completion that `ex` has delivered.
fn wr_id(ex: *mut ffi::ibv_cq_ex) -> u64 {
    // SAFETY: the CQ is the test's alone.
    unsafe { (*ex).wr_id }
}

/// Runs `control` inside a batch: on the polling thread, and on another thread for which the batch
/// waits.
fn inside_a_batch(control: impl Fn(&Cq) + Sync) {
    for is_other_thread in [false, true] {
        let shared = shared();
        let cq = cq(&shared, 8);
        let qp = qp(&shared, &cq, &CAP, QPN);
        let mut completions = Completions::new(&cq);
        for id in 0..2 {
            let mut wr = send_wr(10 + id, ffi::IBV_WR_SEND, 0, &mut []);
            assert_eq!(post_send(&qp, &mut wr).0, 0);
            completions.push(sent(id));
        }
        let ex = extended(&cq);
        let mut attr = ATTR;
        assert_eq!(call!(ex.start_poll(&mut attr)), 0);
        assert_eq!(wr_id(ex), 10);
        if is_other_thread {
            thread::scope(|scope| {
                scope.spawn(|| control(&cq));
            });
        } else {
            control(&cq);
        }
        assert_eq!(call!(ex.next_poll()), 0);
        assert_eq!(wr_id(ex), 11);
        assert_eq!(call!(ex.next_poll()), libc::ENOENT);
        call!(ex.end_poll());
        assert!(poll(&cq, 8).unwrap().is_empty());
    }
}

#[test]
fn arming() {
    inside_a_batch(|cq| {
        // SAFETY: the CQ is this provider's.
        assert_eq!(unsafe { cq::req_notify_cq(cq.as_ibv(), 0) }, 0);
    });
}

#[test]
fn fetching_an_event() {
    // SAFETY: the CQ is this provider's.
    inside_a_batch(|cq| unsafe { cq::cq_event(cq.as_ibv()) });
}

#[test]
fn creating_a_qp() {
    inside_a_batch(|cq| {
        let shared = shared();
        drop(qp(&shared, cq, &CAP, OTHER_QPN));
    });
}

#[test]
fn destroying_a_qp() {
    inside_a_batch(|cq| {
        let shared = shared();
        let other = qp(&shared, cq, &CAP, OTHER_QPN);
        other.destroyed();
    });
}

#[test]
fn resetting_a_qp() {
    inside_a_batch(|cq| {
        let shared = shared();
        let other = qp(&shared, cq, &CAP, OTHER_QPN);
        other.changed(ffi::IBV_QPS_RESET);
        other.destroyed();
    });
}

// abi: R-534
#[test]
fn a_destroyed_qp_completes_nothing_in_the_batch_that_it_was_destroyed_in() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let old = qp(&shared, &cq, &CAP, QPN);
    let mut completions = Completions::new(&cq);
    let mut wr = send_wr(1, ffi::IBV_WR_SEND, 0, &mut []);
    for id in 0..3 {
        wr.wr_id = 1 + id;
        assert_eq!(post_send(&old, &mut wr).0, 0);
        completions.push(sent(id));
    }
    let ex = extended(&cq);
    let mut attr = ATTR;
    assert_eq!(call!(ex.start_poll(&mut attr)), 0);
    assert_eq!(wr_id(ex), 1);
    old.destroyed();
    drop(old);
    // A new QP gets the number, and completes in the same batch.
    let new = qp(&shared, &cq, &CAP, QPN);
    wr.wr_id = 100;
    assert_eq!(post_send(&new, &mut wr).0, 0);
    completions.push(sent(0));
    assert_eq!(call!(ex.next_poll()), 0);
    assert_eq!(wr_id(ex), 100);
    assert_eq!(call!(ex.next_poll()), libc::ENOENT);
    call!(ex.end_poll());
}

// abi: R-536
#[test]
fn a_reset_in_a_batch_drops_what_was_completed_before() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let mut completions = Completions::new(&cq);
    let mut wr = send_wr(1, ffi::IBV_WR_SEND, 0, &mut []);
    for id in 0..3 {
        assert_eq!(post_send(&qp, &mut wr).0, 0);
        completions.push(sent(id));
    }
    let ex = extended(&cq);
    let mut attr = ATTR;
    assert_eq!(call!(ex.start_poll(&mut attr)), 0);
    for state in [ffi::IBV_QPS_RESET, ffi::IBV_QPS_RTS].repeat(3) {
        qp.changed(state);
    }
    wr.wr_id = 100;
    for _ in 0..4 {
        assert_eq!(post_send(&qp, &mut wr).0, 0, "the queue is empty again");
    }
    completions.push(Cqe { ..sent(3) });
    assert_eq!(call!(ex.next_poll()), 0);
    assert_eq!(wr_id(ex), 100);
    assert_eq!(call!(ex.next_poll()), libc::ENOENT);
    call!(ex.end_poll());
}

/// One thread destroys a QP. Another thread creates a QP with the same number before the first
/// thread has detached the old QP from the CQ.
// abi: R-534
#[test]
fn a_number_comes_back_before_its_last_qp_has_left_the_cq() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let srq = srq(&shared, 4);
    assert_eq!(fill(&srq), 4);
    let first = qp(&shared, &cq, &CAP, OTHER_QPN);
    let mut completions = Completions::new(&cq);
    let mut wr = send_wr(10, ffi::IBV_WR_SEND, 0, &mut []);
    assert_eq!(post_send(&first, &mut wr).0, 0);
    completions.push(Cqe {
        qp_num: OTHER_QPN,
        ..sent(0)
    });
    let ex = extended(&cq);
    let mut attr = ATTR;
    assert_eq!(call!(ex.start_poll(&mut attr)), 0);
    // The reset and the creations of both QPs after it are queued until the end of the batch.
    first.changed(ffi::IBV_QPS_RESET);
    let old = qp_with_srq(&shared, &cq, &srq, QPN);
    completions.push(received(0));
    let new = qp_with_srq(&shared, &cq, &srq, QPN);
    wr.wr_id = 100;
    assert_eq!(post_send(&new, &mut wr).0, 0);
    completions.push(received(1));
    completions.push(sent(0));
    old.destroyed();
    drop(old);
    let mut ids = Vec::new();
    while call!(ex.next_poll()) == 0 {
        ids.push(wr_id(ex));
    }
    call!(ex.end_poll());
    assert_eq!(ids, [1, 100], "those of the new QP");
    assert_eq!(fill(&srq), 2, "the receives of both QPs are free again");
}
