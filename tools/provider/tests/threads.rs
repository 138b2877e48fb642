// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Control verbs and CQ resizes in other threads while one thread polls. The tests use the device
//! side of the rings in place of a device.

use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use provider_testkit::*;
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::wqe::SqHeader;
use virtio_rdma_provider::cq;
use virtio_rdma_provider::cq::Cq;
use virtio_rdma_provider::cq_ex;
use virtio_rdma_provider::ffi;
use virtio_rdma_provider::lock::Threads;
use virtio_rdma_provider::qp::Qp;
use virtio_rdma_provider::srq::Srq;

/// Resizes `cq` to `slots` slots. `meanwhile` runs after the device has moved, before the verb
/// continues.
fn resize(cq: &Cq, device: &Mutex<Completions>, slots: u32, meanwhile: impl FnOnce()) -> bool {
    let layout = cq::ring_layout(slots, 32_768).unwrap();
    let resized = cq.ring().resize(layout, |ring| {
        let end = device.lock().unwrap().move_to(ring);
        meanwhile();
        Ok(end)
    });
    resized.unwrap()
}

fn post(qp: &Qp, wr_id: u64) {
    let mut wr = send_wr(wr_id, ffi::IBV_WR_SEND, 0, &mut []);
    assert_eq!(post_send(qp, &mut wr).0, 0);
}

fn ids(cq: &Cq) -> Vec<u64> {
    poll(cq, 16).unwrap().iter().map(|wc| wc.wr_id).collect()
}

// abi: R-583
#[test]
fn completions_of_the_old_ring_come_first() {
    let shared = shared();
    let cq = cq(&shared, 4);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let device = Mutex::new(Completions::new(&cq));
    let push = |slot| device.lock().unwrap().push(sent(slot));
    (0..4).for_each(|id| post(&qp, 10 + id));
    push(0);
    push(1);
    assert_eq!(poll(&cq, 1).unwrap()[0].wr_id, 10);
    resize(&cq, &device, 8, || ());
    push(2);
    resize(&cq, &device, 2, || ());
    push(3);
    assert_eq!(ids(&cq), [11, 12, 13]);
    // Only the present ring is left.
    for round in 0..10 {
        post(&qp, 20 + round);
        push(4 + round);
        assert_eq!(ids(&cq), [20 + round]);
    }
}

// abi
#[test]
fn an_event_that_was_asked_for_survives_a_resize() {
    let shared = shared();
    let cq = cq(&shared, 4);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let device = Mutex::new(Completions::new(&cq));
    let push = |slot| device.lock().unwrap().push(sent(slot));
    // SAFETY: the CQ is this provider's.
    let arm = || assert_eq!(unsafe { cq::req_notify_cq(cq.as_ibv(), 0) }, 0);
    (0..4).for_each(|id| post(&qp, id));
    arm();
    assert!(!resize(&cq, &device, 8, || ()), "nothing has come");
    assert!(push(0));
    // SAFETY: the CQ is this provider's.
    unsafe { cq::cq_event(cq.as_ibv()) };
    assert!(!push(1), "nobody asked for another");
    arm();
    assert!(
        resize(&cq, &device, 4, || ()),
        "what came last was not seen"
    );
    assert!(device.lock().unwrap().look());
    assert_eq!(ids(&cq), [0, 1]);
}

/// Number of attempts of a test with two racing threads.
const ATTEMPTS: usize = 20;

/// Starts `act` in another thread, and gives it time to end or to block.
fn start<'s>(scope: &'s thread::Scope<'s, '_>, act: impl FnOnce() + Send + 's) {
    let (started, starts) = mpsc::channel();
    scope.spawn(move || {
        let _ = started.send(());
        act();
    });
    starts.recv().unwrap();
    thread::sleep(Duration::from_millis(1));
}

#[test]
fn a_qp_that_goes_while_its_cq_is_resized_leaves_nothing() {
    // Several attempts, since the other thread may be slow.
    for same_number in [false, true].repeat(ATTEMPTS) {
        let shared = shared();
        let cq = cq(&shared, 8);
        let srq = srq(&shared, 4);
        assert_eq!(fill(&srq), 4);
        let old = qp_with_srq(&shared, &cq, &srq, QPN);
        let device = Mutex::new(Completions::new(&cq));
        device.lock().unwrap().push(received(0));
        thread::scope(|scope| {
            resize(&cq, &device, 16, || {
                // Completions of the old QP in the new ring. The QP is destroyed before the process
                // knows this ring.
                for slot in 1..3 {
                    device.lock().unwrap().push(received(slot));
                }
                start(scope, || old.destroyed());
            });
        });
        let next = match same_number {
            true => qp_with_srq(&shared, &cq, &srq, QPN),
            false => qp_with_srq(&shared, &cq, &srq, OTHER_QPN),
        };
        assert_eq!(ids(&cq), []);
        assert_eq!(fill(&srq), 3, "receives of the old QP are free again");
        drop(next);
    }
}

#[test]
fn a_reset_while_the_cq_is_resized_drops_what_was_completed() {
    // Several attempts, since the other thread may be slow.
    for _ in 0..ATTEMPTS {
        let shared = shared();
        let cq = cq(&shared, 8);
        let qp = qp(&shared, &cq, &CAP, QPN);
        let device = Mutex::new(Completions::new(&cq));
        (0..4).for_each(|id| post(&qp, id));
        device.lock().unwrap().push(sent(0));
        thread::scope(|scope| {
            resize(&cq, &device, 16, || {
                device.lock().unwrap().push(sent(1));
                start(scope, || qp.changed(ffi::IBV_QPS_RESET));
            });
        });
        qp.changed(ffi::IBV_QPS_RTS);
        assert_eq!(ids(&cq), []);
        (0..4).for_each(|id| post(&qp, 100 + id));
        device.lock().unwrap().push(sent(4));
        assert_eq!(ids(&cq), [100]);
    }
}

#[test]
fn a_resize_that_fails_changes_nothing() {
    let shared = shared();
    let cq = cq(&shared, 4);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let mut device = Completions::new(&cq);
    let layout = cq::ring_layout(8, 32_768).unwrap();
    for _ in 0..3 {
        assert_eq!(
            cq.ring().resize(layout, |_| Err(libc::EBUSY)),
            Err(libc::EBUSY)
        );
    }
    post(&qp, 1);
    device.push(sent(0));
    assert_eq!(ids(&cq), [1]);
}

/// The interface through which the poller polls.
#[derive(Clone, Copy)]
enum Poll {
    Plain,
    Batches,
}

/// Polls once and returns the ids that were delivered.
fn poll_ids(cq: &Cq, how: Poll) -> Vec<u64> {
    if let Poll::Plain = how {
        return ids(cq);
    }
    let ex: *mut ffi::ibv_cq_ex = cq.as_ibv().cast();
    let mut attr = ffi::ibv_poll_cq_attr { comp_mask: 0 };
    let mut ids = Vec::new();
    // SAFETY: the CQ is this provider's, and has the functions of extended CQs.
    unsafe {
        if (*ex).start_poll.unwrap()(ex, &mut attr) == 0 {
            loop {
                ids.push((*ex).wr_id);
                if ids.len() == 8 || (*ex).next_poll.unwrap()(ex) != 0 {
                    break;
                }
            }
            (*ex).end_poll.unwrap()(ex);
        }
    }
    ids
}

/// Pushes a CQE once there is room. Gives up when the test is done.
fn complete(device: &Mutex<Completions>, done: &AtomicBool, cqe: Cqe) {
    while !done.load(Ordering::Relaxed) {
        let mut device = device.lock().unwrap();
        if device.has_room() {
            device.push(cqe);
            return;
        }
        drop(device);
        thread::yield_now();
    }
}

/// Bit in the work request ids of the churning QPs. The lower bits are the number of the QP's life.
const CHURN: u64 = 1 << 63;
const CHURN_QPN: Qpn = Qpn::new(0x0040_0000);

/// Creates, resets and destroys QPs that complete to `cq`, with unpolled completions, until `done`.
/// `ended` counts the destroyed QPs.
fn churn(cq: &Cq, srq: &Srq, device: &Mutex<Completions>, done: &AtomicBool, ended: &AtomicU64) {
    let shared = shared();
    let mut life = 0;
    while !done.load(Ordering::Relaxed) {
        // QP numbers are reused, and span many nodes of the table.
        let qpn = (life % 3) as u32 * 0x1_0000 + (life % 1000) as u32;
        let qpn = Qpn::new(CHURN_QPN.get() + qpn);
        let qp = qp_with_srq(&shared, cq, srq, qpn);
        life += 1;
        for slot in 0..3 {
            post(&qp, CHURN | life);
            let cqe = Cqe {
                qp_num: qpn,
                ..sent(slot)
            };
            complete(device, done, cqe);
        }
        if life % 2 == 0 {
            qp.changed(ffi::IBV_QPS_RESET);
            ended.store(life, Ordering::SeqCst);
            life += 1;
            qp.changed(ffi::IBV_QPS_RTS);
            post(&qp, CHURN | life);
            let cqe = Cqe {
                qp_num: qpn,
                ..sent(3)
            };
            complete(device, done, cqe);
        }
        qp.destroyed();
        drop(qp);
        ended.store(life, Ordering::SeqCst);
    }
}

/// Ends the other threads of a test, also when the test's own thread fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Polls the completions of one QP while other threads create, reset and destroy QPs, arm the CQ,
/// fetch events and resize the CQ. Each completion of the QP arrives once and in order, and no
/// completion of a destroyed QP arrives.
fn everything_at_once(how: Poll) {
    const ROUNDS: u64 = 1_000;
    let shared = shared();
    let cq = cq(&shared, 64);
    let srq = srq(&shared, 4);
    // SAFETY: the CQ is the test's alone.
    cq_ex::install(unsafe { &mut *cq.as_ibv().cast() });
    let device = Mutex::new(Completions::new(&cq));
    // SAFETY: one thread posts to the QP, as in a thread domain.
    let domain = unsafe { Threads::one() }.into();
    let mut qp = Qp::in_memory(ffi::IBV_QPT_RC, &CAP, (&cq, &cq, None), &shared, &domain).unwrap();
    qp.created(QPN).unwrap();
    qp.changed(ffi::IBV_QPS_RTS);
    let (done, ended) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _end = End(&done);
        scope.spawn(|| churn(&cq, &srq, &device, &done, &ended));
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // SAFETY: the CQ is this provider's.
                unsafe {
                    cq::req_notify_cq(cq.as_ibv(), 0);
                    cq::cq_event(cq.as_ibv());
                }
                thread::yield_now();
            }
        });
        scope.spawn(|| {
            for slots in [128, 64, 256].into_iter().cycle() {
                resize(&cq, &device, slots, || ());
                thread::yield_now();
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        scope.spawn(|| {
            let mut work = Work::new(&qp.rings().send);
            for id in 0..ROUNDS {
                let mut wr = send_wr(id, ffi::IBV_WR_SEND, 0, &mut []);
                while post_send(&qp, &mut wr).0 != 0 {
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    thread::yield_now();
                }
                let slot = work.consume(SqHeader::SIZE).unwrap();
                complete(&device, &done, sent(slot));
            }
        });
        let mut next = 0;
        while next < ROUNDS {
            let over = ended.load(Ordering::SeqCst);
            let ids = poll_ids(&cq, how);
            if ids.is_empty() {
                thread::yield_now();
            }
            for id in ids {
                if id & CHURN != 0 {
                    assert!(id & !CHURN > over, "of a QP that was over");
                } else {
                    assert_eq!(id, next, "each once, in order");
                    next += 1;
                }
            }
        }
    });
    while !poll_ids(&cq, how).is_empty() {}
    assert_eq!(fill(&srq), 4);
    assert!(ptr::eq(qp.as_ibv().cast(), &*qp));
}

#[test]
fn control_verbs_beside_a_thread_that_polls() {
    everything_at_once(Poll::Plain);
}

#[test]
fn control_verbs_beside_a_thread_that_polls_in_batches() {
    everything_at_once(Poll::Batches);
}
