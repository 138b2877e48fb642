// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Resets of virtqueues of existing objects, and work requests that are returned at RESET.

use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::ib::{QpState, WcStatus, WrOpcode};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::queues::QueueNumbers;

use super::{on, on_both_paths};

/// A QP with outstanding work requests, whose peer does not exist.
fn stuck<'vm>(vm: &'vm Vm, cq: &Cq<'vm>) -> Qp<'vm> {
    let qp = Qp::new(vm, cq, cq, Options::default());
    qp.to_init().unwrap();
    qp.to_rtr(vm, Qpn::new(60)).unwrap();
    qp.to_rts().unwrap();
    for id in 0..5 {
        qp.post(&Wr::new(id, WrOpcode::RdmaWrite));
        qp.post_recv(id, &[]);
    }
    qp
}

fn works(vm: &Vm, qp: &Qp<'_>, cq: &Cq<'_>, id: u64) {
    qp.post(&Wr::new(id, WrOpcode::RdmaWrite));
    cq.expect(id, WcStatus::Success);
    assert!(vm.sink.is_empty());
}

// abi
#[test]
fn a_queue_that_is_reset_ends_its_qp_alone() {
    let queues: [fn(&QueueNumbers, Qpn) -> Option<u16>; 2] = [QueueNumbers::sq, QueueNumbers::rq];
    for queue in queues {
        on_both_paths(|setup| {
            let world = World::new(1, setup);
            let vm = &world.vms[0];
            let (cq, other_cq) = (Cq::new(vm, 64), Cq::new(vm, 64));
            let other = Qp::new(vm, &other_cq, &other_cq, Options::default());
            connect(&other, &other);
            let qp = stuck(vm, &cq);
            let number = queue(&mode::numbers(vm), qp.qpn).unwrap();
            vm.sink.disable(number);
            vm.hca.virtqueue_reset(number);
            // After the reset, the device no longer uses the memory of the virtqueue.
            let ring = if number == mode::numbers(vm).sq(qp.qpn).unwrap() {
                &qp.sq
            } else {
                &qp.rq
            };
            let used = ring.used_index();
            qp.wait_for(QpState::Err);
            works(vm, &other, &other_cq, 77);
            qp.to(QpState::Reset);
            assert_eq!(ring.used_index(), used);
            qp.destroy().unwrap();
            works(vm, &other, &other_cq, 78);
            // Both virtqueues can be used by a new QP.
            let (qpn, again) = (qp.qpn, Qp::new(vm, &cq, &cq, Options::default()));
            assert_eq!(again.qpn, qpn);
            while cq.poll().is_some() {}
            connect(&again, &again);
            works(vm, &again, &cq, 79);
        });
    }
}

// abi
#[test]
fn a_cq_that_is_reset_is_dead_and_its_qps_fail() {
    on_both_paths(|setup| {
        let world = World::new(1, setup);
        let vm = &world.vms[0];
        let (cq, other_cq) = (Cq::new(vm, 64), Cq::new(vm, 64));
        let other = Qp::new(vm, &other_cq, &other_cq, Options::default());
        connect(&other, &other);
        let qp = stuck(vm, &cq);
        mode::disable_cq(vm, cq.cqn);
        qp.wait_for(QpState::Err);
        works(vm, &other, &other_cq, 77);
        let used = cq.ring.used_index();
        assert_eq!(used, 0, "nothing is written to it");
        qp.destroy().unwrap();
        cq.destroy().unwrap();
        let (cqn, again) = (cq.cqn, Cq::new(vm, 64));
        assert_eq!(again.cqn, cqn);
        let qp = Qp::new(vm, &again, &again, Options::default());
        connect(&qp, &qp);
        works(vm, &qp, &again, 78);
    });
}

// abi: R-901
#[test]
fn reset_returns_each_request_through_the_used_ring() {
    on_both_paths(|setup| {
        let world = World::new(1, setup);
        let vm = &world.vms[0];
        let cq = Cq::new(vm, 64);
        let qp = stuck(vm, &cq);
        qp.to(QpState::Reset);
        for ring in [&qp.sq, &qp.rq] {
            assert_eq!(ring.used_index(), 5);
            let mut heads: Vec<u32> = (0..5).map(|position| ring.used_head(position)).collect();
            heads.sort_unstable();
            assert_eq!(heads, [0, 1, 2, 3, 4]);
        }
        assert_eq!(cq.poll(), None);
        connect(&qp, &qp);
        works(vm, &qp, &cq, 80);
    });
}

// abi: R-886
#[test]
fn a_device_reset_ends_the_use_of_all_virtqueues() {
    let world = World::new(1, on(PathPolicy::Wire));
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 64);
    let qp = stuck(vm, &cq);
    vm.hca.reset();
    let indices = || [&qp.sq, &qp.rq, &cq.ring].map(|ring| ring.used_index());
    let before = indices();
    vm.hca.notified(mode::numbers(vm).sq(qp.qpn).unwrap());
    vm.hca
        .virtqueue_reset(mode::numbers(vm).sq(qp.qpn).unwrap());
    assert_eq!(indices(), before);
}
