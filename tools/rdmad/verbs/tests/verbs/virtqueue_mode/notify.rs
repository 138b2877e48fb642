// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! REQ_NOTIFY_CQ: the device sends only requested interrupts.

use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{QpState, SendFlags, WcFlags, WcStatus, WrOpcode};
use virtio_rdma_abi::number::Cqn;
use virtio_rdma_abi::ring::ArmKind;
use virtio_rdma_abi::wire::Wire;

use super::on;

const COMPLETION: EventKind = EventKind::Completion;
const EINVAL: u8 = 22;

/// Waits until the device has written `count` completions in total.
fn wait_for_used(cq: &Cq<'_>, count: u16) {
    wait("completions", || {
        let used = cq.ring.used_index();
        (used == count).then_some(())
    });
}

#[test]
fn completions_that_are_not_polled_yet_count() {
    let world = World::new(1, on(PathPolicy::Direct));
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 16);
    let qp = Qp::new(vm, &cq, &cq, Options::default());
    connect(&qp, &qp);
    // The CQ is armed after the completion was written, as when the command arrives late.
    qp.post(&Wr::new(1, WrOpcode::RdmaWrite));
    wait_for_used(&cq, 1);
    // abi: R-902
    assert_eq!(cq.ring.used_length(0), 38);
    // abi: R-909
    assert!(vm.sink.is_empty(), "not armed, and not for the SQ");
    // abi: R-916
    cq.arm(ArmKind::Solicited);
    assert!(vm.sink.is_empty(), "not solicited");
    cq.arm(ArmKind::Next);
    // abi
    vm.sink.expect(COMPLETION, cq.cookie);
    cq.expect(1, WcStatus::Success);
    cq.arm(ArmKind::Next);
    // abi: R-913
    assert!(vm.sink.is_empty(), "polled");
    qp.post(&Wr::new(2, WrOpcode::RdmaWrite));
    // abi: R-908
    vm.sink.expect(COMPLETION, cq.cookie);
    cq.expect(2, WcStatus::Success);
    // The CQ is armed for solicited completions. The only solicited completion is unpolled, and
    // other unpolled completions follow it.
    qp.post_recv(3, &[]);
    qp.post(&Wr::new(4, WrOpcode::Send).flags(SendFlags::SOLICITED));
    wait_for_used(&cq, 3);
    for id in 5..8 {
        qp.post(&Wr::new(id, WrOpcode::RdmaWrite));
    }
    wait_for_used(&cq, 6);
    cq.arm(ArmKind::Solicited);
    vm.sink.expect(COMPLETION, cq.cookie);
    let solicited = cq.expect(3, WcStatus::Success);
    // abi
    assert!(solicited.wc_flags.contains(WcFlags::SOLICITED));
    assert_eq!(cq.expect(5, WcStatus::Success).wc_flags, WcFlags::NONE);
    cq.arm(ArmKind::Solicited);
    for id in 6..8 {
        cq.expect(id, WcStatus::Success);
    }
    assert!(vm.sink.is_empty(), "it was polled");
}

#[test]
fn errors_are_solicited_and_a_wish_is_not_narrowed() {
    let world = World::new(1, on(PathPolicy::Direct));
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 16);
    let qp = Qp::new(vm, &cq, &cq, Options::default());
    connect(&qp, &qp);
    // abi: R-905
    cq.arm(ArmKind::Next);
    cq.arm(ArmKind::Solicited);
    qp.post(&Wr::new(1, WrOpcode::RdmaWrite));
    // abi
    vm.sink.expect(COMPLETION, cq.cookie);
    cq.expect(1, WcStatus::Success);
    cq.arm(ArmKind::Solicited);
    qp.to(QpState::Err);
    assert!(vm.sink.is_empty());
    qp.post(&Wr::new(2, WrOpcode::RdmaWrite));
    // abi: R-907
    vm.sink.expect(COMPLETION, cq.cookie);
    let flushed = cq.expect(2, WcStatus::WrFlushErr);
    // abi
    assert!(flushed.wc_flags.contains(WcFlags::SOLICITED));
}

// abi
#[test]
fn requests_that_make_no_sense() {
    let world = World::new(1, on(PathPolicy::Direct));
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 16);
    for (cqn, flags) in [
        (cq.cqn, 0),
        (cq.cqn, 4),
        (cq.cqn, u32::MAX),
        (Cqn::new(cq.cqn.get() + 1), 1),
        (Cqn::new(u32::MAX), 2),
    ] {
        let flags = NotifyFlags(flags);
        assert_eq!(vm.call(CmdReqNotify { cqn, flags }), Err(EINVAL));
    }
    let both = NotifyFlags::SOLICITED | NotifyFlags::NEXT_COMPLETION;
    let request = CmdReqNotify {
        cqn: cq.cqn,
        flags: both,
    };
    assert_eq!(vm.call(request), Ok(Empty::ZERO));
    let qp = Qp::new(vm, &cq, &cq, Options::default());
    connect(&qp, &qp);
    qp.post(&Wr::new(1, WrOpcode::RdmaWrite));
    vm.sink.expect(COMPLETION, cq.cookie);
}

// abi: R-911
#[test]
fn the_device_asks_for_no_notification_of_cqe_buffers() {
    let world = World::new(1, on(PathPolicy::Direct));
    let cq = Cq::new(&world.vms[0], 16);
    assert_eq!(cq.ring.used_flags(), 1);
}
