// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Completions and their events through the C entry points. The tests use the device side of the
//! rings in place of a device.

use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;

use provider_testkit::*;
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::ib::WcStatus;
use virtio_rdma_abi::number::Cqn;
use virtio_rdma_abi::ring::Doorbell;
use virtio_rdma_abi::wqe::SqHeader;
use virtio_rdma_provider::cq;
use virtio_rdma_provider::ffi;
use virtio_rdma_provider::qp::Qp;
use virtio_rdma_ring::RingMemory;

// abi: R-532
#[test]
fn a_full_queue_says_so_until_a_completion_was_polled() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let mut device = Work::new(&qp.rings().send);
    let mut completions = Completions::new(&cq);
    let mut wr = send_wr(0, ffi::IBV_WR_SEND, 0, &mut []);
    for id in 0..4 {
        wr.wr_id = 100 + id;
        assert_eq!(post_send(&qp, &mut wr).0, 0);
    }
    assert_eq!(post_send(&qp, &mut wr), (libc::ENOMEM, &mut wr as *mut _));
    let slots: Vec<_> = (0..4)
        .map(|_| device.consume(SqHeader::SIZE).unwrap())
        .collect();
    assert_eq!(
        post_send(&qp, &mut wr).0,
        libc::ENOMEM,
        "nothing was polled"
    );
    // The third work request was signalled: its completion frees the first two slots as well.
    completions.push(sent(slots[2]));
    let wcs = poll(&cq, 8).unwrap();
    assert_eq!(wcs.len(), 1);
    assert_eq!((wcs[0].wr_id, wcs[0].qp_num), (102, QPN.get()));
    for _ in 0..3 {
        assert_eq!(post_send(&qp, &mut wr).0, 0);
    }
    assert_eq!(post_send(&qp, &mut wr).0, libc::ENOMEM);
}

#[test]
fn a_qp_without_a_queue_takes_no_work_for_it() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let cap = ffi::ibv_qp_cap {
        max_recv_wr: 0,
        ..CAP
    };
    let qp = qp(&shared, &cq, &cap, QPN);
    let mut wr = recv_wr(1, &mut []);
    assert_eq!(post_recv(&qp, &mut wr).0, libc::ENOMEM);
    Completions::new(&cq).push(received(0));
    assert!(poll(&cq, 8).unwrap().is_empty());
}

#[test]
fn completions_of_both_queues_come_in_order() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let mut completions = Completions::new(&cq);
    for id in 0..3 {
        let mut wr = send_wr(10 + id, ffi::IBV_WR_SEND, 0, &mut []);
        assert_eq!(post_send(&qp, &mut wr).0, 0);
        let mut wr = recv_wr(20 + id, &mut []);
        assert_eq!(post_recv(&qp, &mut wr).0, 0);
    }
    completions.push(received(0));
    completions.push(sent(0));
    completions.push(Cqe {
        status: WcStatus::WrFlushErr.value(),
        ..received(1)
    });
    completions.push(sent(2));
    let wcs = poll(&cq, 3).unwrap();
    let seen: Vec<_> = wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(seen, [(20, 0), (10, 0), (21, ffi::IBV_WC_WR_FLUSH_ERR)]);
    assert_eq!(poll(&cq, 3).unwrap()[0].wr_id, 12);
    assert!(poll(&cq, 3).unwrap().is_empty());
    assert!(poll(&cq, 0).unwrap().is_empty());
}

// abi: R-534
#[test]
fn a_destroyed_qp_leaves_no_completions_to_the_next_of_its_number() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let old = qp(&shared, &cq, &CAP, QPN);
    let other = qp(&shared, &cq, &CAP, OTHER_QPN);
    let mut completions = Completions::new(&cq);
    completions.push(sent(0));
    let mut wr = send_wr(77, ffi::IBV_WR_SEND, 0, &mut []);
    assert_eq!(post_send(&other, &mut wr).0, 0);
    completions.push(Cqe {
        qp_num: OTHER_QPN,
        ..sent(0)
    });
    completions.push(sent(1));
    old.destroyed();
    drop(old);
    let new = qp(&shared, &cq, &CAP, QPN);
    let wcs = poll(&cq, 8).unwrap();
    assert_eq!(wcs.len(), 1);
    assert_eq!(wcs[0].wr_id, 77);

    // A new QP gets the number before the old QP is detached.
    completions.push(sent(2));
    let mut newest = Qp::in_memory(
        ffi::IBV_QPT_RC,
        &CAP,
        (&cq, &cq, None),
        &shared,
        &shared.threads.into(),
    )
    .unwrap();
    newest.created(QPN).unwrap();
    newest.changed(ffi::IBV_QPS_RTS);
    let mut wr = send_wr(78, ffi::IBV_WR_SEND, 0, &mut []);
    assert_eq!(post_send(&newest, &mut wr).0, 0);
    completions.push(sent(0));
    new.destroyed();
    let wcs = poll(&cq, 8).unwrap();
    assert_eq!(wcs.len(), 1);
    assert_eq!(wcs[0].wr_id, 78);
}

// abi: R-536
#[test]
fn reset_drops_what_was_posted_and_what_was_completed() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let mut completions = Completions::new(&cq);
    let mut wr = send_wr(1, ffi::IBV_WR_SEND, 0, &mut []);
    for _ in 0..4 {
        assert_eq!(post_send(&qp, &mut wr).0, 0);
    }
    completions.push(sent(0));
    qp.changed(ffi::IBV_QPS_RESET);
    assert!(poll(&cq, 8).unwrap().is_empty());
    qp.changed(ffi::IBV_QPS_RTS);
    for _ in 0..4 {
        assert_eq!(post_send(&qp, &mut wr).0, 0);
    }
    assert_eq!(post_send(&qp, &mut wr).0, libc::ENOMEM);
}

// abi
#[test]
fn an_armed_cq_has_one_event_for_each_that_is_fetched() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let _qp = qp(&shared, &cq, &CAP, QPN);
    let mut completions = Completions::new(&cq);
    // SAFETY: the CQ is this provider's.
    let arm = |solicited| unsafe { cq::req_notify_cq(cq.as_ibv(), solicited) };
    assert!(!completions.push(sent(0)), "not armed");
    assert_eq!(arm(0), 0);
    assert_eq!(
        shared.doorbell.last(),
        Some(Doorbell::Cq(Cqn::new(0))),
        "the device is to look at what was not polled"
    );
    assert!(completions.push(sent(0)));
    assert!(!completions.push(sent(0)));
    assert_eq!(arm(1), 0);
    assert!(!completions.push(sent(0)), "the event was not fetched");
    // SAFETY: the CQ is this provider's.
    unsafe { cq::cq_event(cq.as_ibv()) };
    assert_eq!(arm(1), 0);
    assert!(!completions.push(sent(0)), "not solicited");
    assert!(
        completions.push(Cqe {
            status: WcStatus::GeneralErr.value(),
            ..sent(0)
        }),
        "errors are solicited"
    );
}

// abi: R-535
#[test]
fn a_ring_that_was_overwritten_is_an_error_and_nothing_else() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let ring = cq.ring().ring();
    for memory in [ring.map(), qp.rings().send.as_ref().unwrap().memory()] {
        for offset in (0..memory.layout().size()).step_by(2) {
            memory.store_u16(offset, 0xa5a5);
        }
    }
    assert_eq!(poll(&cq, 8).err(), Some(-libc::EIO));
    let mut wr = send_wr(1, ffi::IBV_WR_SEND, 0, &mut []);
    assert_eq!(post_send(&qp, &mut wr).0, 0);
    qp.destroyed();
}

#[test]
fn threads_post_and_poll_while_the_device_works() {
    const ROUNDS: u64 = 10_000;
    const POSTERS: u64 = 2;
    let shared = shared();
    let cq = cq(&shared, 64);
    let cap = ffi::ibv_qp_cap {
        max_send_wr: 16,
        ..CAP
    };
    let qp = qp(&shared, &cq, &cap, QPN);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut device = Work::new(&qp.rings().send);
            let mut completions = Completions::new(&cq);
            while !done.load(Ordering::Relaxed) {
                match device.consume(SqHeader::SIZE) {
                    Some(slot) => {
                        completions.push(sent(slot));
                    }
                    None => thread::yield_now(),
                }
            }
        });
        for poster in 0..POSTERS {
            let qp = &qp;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let mut wr = send_wr((poster << 32) + round, ffi::IBV_WR_SEND, 0, &mut []);
                    while post_send(qp, &mut wr).0 != 0 {
                        thread::yield_now();
                    }
                }
            });
        }
        let mut next = [0; POSTERS as usize];
        while next != [ROUNDS; POSTERS as usize] {
            let wcs = poll(&cq, 16).unwrap();
            if wcs.is_empty() {
                thread::yield_now();
            }
            for wc in wcs {
                let poster = (wc.wr_id >> 32) as usize;
                assert_eq!(wc.wr_id & 0xffff_ffff, next[poster], "each once, in order");
                next[poster] += 1;
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(
        ptr::eq(qp.as_ibv().cast(), &*qp),
        "libibverbs' view is the QP itself"
    );
}
