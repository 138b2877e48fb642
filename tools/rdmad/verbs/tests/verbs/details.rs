// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The state of CQs, SRQs and MRs, as the control socket tells it.

use std::time::Duration;

use testkit::engine::*;
use verbs::{Clock, Limits, PathPolicy, RuntimeConfig};
use virtio_rdma_abi::ib::WcStatus;
use virtio_rdma_abi::ring::ArmKind;

/// Two VMs with a clock that only the test advances.
fn world() -> World {
    let config = RuntimeConfig {
        path: PathPolicy::Direct,
        clock: Clock::manual(),
        ..RuntimeConfig::default()
    };
    World::with_config(2, config, Limits::default())
}

#[test]
fn a_cq_tells_what_is_unpolled_and_which_event_is_requested() {
    let world = world();
    let p = Pair::new(&world);
    let told = || p.a.hca.cq_details(Some(p.cq_a.cqn)).remove(0);
    let before = told();
    assert_eq!((before.completions, before.unpolled), (0, Some(0)));
    assert_eq!(before.event, "none is requested");
    assert!(before.is_live);
    assert!(before.qps.contains(&p.qa.qpn.get()));

    p.cq_a.arm(ArmKind::Next);
    assert_eq!(told().event, "is requested for the next completion after 0");
    for id in 1..=3 {
        p.qb.post_recv(id, &[sge(&p.mb, 0, 64)]);
        p.qa.post(&p.send(id, 64));
    }
    world.runtime.advance(Duration::ZERO);
    let after = told();
    assert_eq!((after.completions, after.unpolled), (3, Some(3)));
    assert_eq!(after.event, "was sent, and none is requested since");
    p.cq_a.expect(1, WcStatus::Success);
    assert_eq!(told().unpolled, Some(2));
    assert_eq!(p.a.hca.cq_details(None).len(), 1);
}

#[test]
fn an_srq_tells_how_many_receives_are_left() {
    let world = world();
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 64);
    let srq = Srq::new(vm, 16);
    let qp = Qp::with_srq(vm, &cq, srq.srqn, Options::default()).unwrap();
    let mr = vm.mr(4096);
    for id in 0..5 {
        srq.post(id, &[sge(&mr, 0, 64)]);
    }
    let told = vm.hca.srq_details(Some(srq.srqn)).remove(0);
    assert_eq!((told.posted, told.max_wr, told.limit), (5, 16, 0));
    assert_eq!(told.qps, [qp.qpn.get()]);
    assert!(told.is_live);
}

#[test]
fn an_mr_is_found_by_its_key() {
    let world = world();
    let vm = &world.vms[0];
    let mr = vm.mr(3 * 4096);
    let told = vm.hca.mr_details(Some(mr.key)).remove(0);
    let memory = told.memory.unwrap();
    assert_eq!(memory.key, format!("{:#x}", mr.key));
    assert_eq!(memory.address, format!("{:#x}", mr.addr));
    assert_eq!((memory.length, memory.page), (3 * 4096, 4096));
    assert!(
        memory.access.contains(&"REMOTE_WRITE"),
        "{:?}",
        memory.access
    );
    assert!(!told.is_fast && !told.is_revoked);
    assert_eq!(
        vm.hca.mr_details(Some(mr.key ^ 1)).len(),
        1,
        "an old key of it"
    );
    assert!(vm.hca.mr_details(Some(mr.key ^ 0x8000_0000)).is_empty());
}
