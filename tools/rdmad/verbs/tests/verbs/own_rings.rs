// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Features that only own rings have: arm words, event queues, and WQEs that a process writes.

use std::sync::atomic::Ordering;

use testkit::engine::*;
use verbs::{Limits, PathPolicy, RuntimeConfig};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{WcStatus, WrOpcode};
use virtio_rdma_abi::ring::{ArmKind, ArmWord};
use virtio_rdma_ring::RingMemory;

use crate::events::{complete_one, qp, COMPLETION};
use crate::registration::{fails, reg, Fast};

// abi
#[test]
fn a_doorbell_makes_up_for_a_missed_arm_word() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 16);
    let qp = qp(vm, &cq);
    // The consumer read the producer index before this completion, and stores its arm word after
    // the completion was written.
    let before = 0;
    qp.post(&Wr::new(1, WrOpcode::RdmaWrite));
    cq.expect(1, WcStatus::Success);
    let word = ArmWord {
        sequence: 1,
        kind: ArmKind::Next,
        position: before,
    };
    cq.ring
        .store_u64(cq.ring.layout.arm(), word.to_u64().to_le());
    cq.ring_doorbell();
    vm.sink.expect(COMPLETION, cq.cookie);
    cq.ring_doorbell();
    complete_one(&qp, &cq);
    assert!(vm.sink.is_empty());
}

#[test]
fn events_wait_for_buffers_in_their_order() {
    // With two workers, the events could be in another order than the completions.
    let config = RuntimeConfig {
        workers: Some(1),
        ..RuntimeConfig::default()
    };
    let world = World::with_config(1, config, Limits::default());
    let vm = &world.vms[0];
    let cqs: Vec<_> = (0..5).map(|_| Cq::new(vm, 16)).collect();
    let qps: Vec<_> = cqs.iter().map(|cq| qp(vm, cq)).collect();
    vm.sink.buffers.store(0, Ordering::SeqCst);
    for (qp, cq) in qps.iter().zip(&cqs).rev() {
        cq.arm(ArmKind::Next);
        complete_one(qp, cq);
    }
    // This CQ is destroyed before its event is sent.
    qps[2].destroy().unwrap();
    cqs[2].destroy().unwrap();
    assert!(vm.sink.is_empty());
    for index in [4, 3, 1, 0] {
        vm.sink.buffers.store(1, Ordering::SeqCst);
        vm.hca.notified(2);
        // abi: R-545
        wait("the event", || (!vm.sink.is_empty()).then_some(()));
        // abi
        assert_eq!(
            *vm.sink.events.lock().unwrap(),
            [(2, COMPLETION, cqs[index].cookie)]
        );
        vm.sink.events.lock().unwrap().clear();
    }
    vm.sink.buffers.store(9, Ordering::SeqCst);
    vm.hca.notified(2);
    vm.hca.notified(77);
    complete_one(&qps[0], &cqs[0]);
    // abi: R-548
    assert!(vm.sink.is_empty());
}

// abi
#[test]
fn processes_register_nothing() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let user = Options::default();
        let p = Pair::with(&world, user, user);
        world.negotiate(&[Feature::RegPages]);
        let a = Fast::new(p.a, p.a.pdn);
        let forged = reg(1, &a.reg_pages(a.mr.key));
        fails(&p, &forged, WcStatus::LocQpOpErr);
    });
}

/// Bytes of a slot after its WQE, for example of an earlier longer WQE, are ignored.
// abi: R-649
#[test]
fn bytes_after_a_wqe_mean_nothing() {
    each(|p| {
        p.a.write(p.ma.iova, &[0x5a; 100]);
        let mut wqe = p.wr(1, WrOpcode::RdmaWrite, 100).bytes();
        wqe.resize(p.qa.sq.layout.slot_size() as usize, 0xff);
        p.qa.post_bytes(&wqe);
        p.cq_a.expect(1, WcStatus::Success);
        assert_eq!(p.b.read(p.mb.iova, 100), [0x5a; 100]);
        p.responder_lives();
    });
}

/// Changes of a WQE after the device has taken it have no effect, even while the device retries it.
// abi: R-644
#[test]
fn a_wqe_is_copied_before_its_execution() {
    each(|p| {
        p.a.negotiate(&[Feature::Counters]);
        p.a.write(p.ma.iova, &[0x5a; 100]);
        p.qa.post(&p.send(1, 100));
        wait("an RNR NAK", || {
            (p.a.counters().rnr_naks_received > 0).then_some(())
        });
        let ring = &p.qa.sq;
        for offset in 0..ring.layout.slot_size() {
            ring.scribble(ring.layout.slot(0) + offset, 0xff);
        }
        p.qb.post_recv(7, &[sge(&p.mb, 0, 100)]);
        p.cq_a.expect(1, WcStatus::Success);
        p.cq_b.expect(7, WcStatus::Success);
        assert_eq!(p.b.read(p.mb.iova, 100), [0x5a; 100]);
    });
}
