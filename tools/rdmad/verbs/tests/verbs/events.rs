// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Completion events: raised once each time a CQ is armed, and never lost.

use testkit::engine::*;
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{QpState, SendFlags, WcStatus, WrOpcode};
use virtio_rdma_abi::ring::ArmKind;

pub const COMPLETION: EventKind = EventKind::Completion;

/// A QP that is connected to itself: each WRITE causes one completion.
pub fn qp<'vm>(vm: &'vm Vm, cq: &Cq<'vm>) -> Qp<'vm> {
    let qp = Qp::new(vm, cq, cq, Options::default());
    connect(&qp, &qp);
    qp
}

pub fn complete_one(qp: &Qp<'_>, cq: &Cq<'_>) {
    qp.post(&Wr::new(1, WrOpcode::RdmaWrite));
    cq.expect(1, WcStatus::Success);
}

// abi: R-560
#[test]
fn one_event_each_time_it_is_armed() {
    in_all_setups(|setup| {
        let world = World::new(1, setup);
        let vm = &world.vms[0];
        let cq = Cq::new(vm, 16);
        let qp = qp(vm, &cq);
        complete_one(&qp, &cq);
        assert!(vm.sink.is_empty(), "not armed");
        for _ in 0..10 {
            cq.arm(ArmKind::Next);
            complete_one(&qp, &cq);
            vm.sink.expect(COMPLETION, cq.cookie);
            complete_one(&qp, &cq);
            assert!(vm.sink.is_empty(), "once");
            cq.event_received();
        }
    });
}

// abi
#[test]
fn solicited_only() {
    in_all_setups(|setup| {
        let world = World::new(1, setup);
        let vm = &world.vms[0];
        let cq = Cq::new(vm, 16);
        let qp = qp(vm, &cq);
        cq.arm(ArmKind::Solicited);
        let round = |flags| {
            qp.post_recv(5, &[]);
            qp.post(&Wr::new(6, WrOpcode::Send).flags(flags));
            let mut ids = [cq.next().wr_id, cq.next().wr_id];
            ids.sort();
            assert_eq!(ids, [5, 6]);
        };
        round(SendFlags::SIGNALED);
        assert!(vm.sink.is_empty());
        round(SendFlags::SIGNALED | SendFlags::SOLICITED);
        vm.sink.expect(COMPLETION, cq.cookie);
        cq.event_received();
        // An error counts as solicited.
        cq.arm(ArmKind::Solicited);
        qp.to(QpState::Err);
        qp.post_recv(7, &[]);
        cq.expect(7, WcStatus::WrFlushErr);
        vm.sink.expect(COMPLETION, cq.cookie);
    });
}

// abi
#[test]
fn an_event_driven_consumer_sees_every_completion() {
    in_all_setups(|setup| {
        const MESSAGES: u64 = 500;
        let world = World::new(2, setup);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let (cq_a, cq_b) = (Cq::new(a, 64), Cq::new(b, 64));
        let qa = Qp::new(a, &cq_a, &cq_a, Options::default());
        let qb = Qp::new(b, &cq_b, &cq_b, Options::default());
        connect(&qa, &qb);
        for id in 0..32 {
            qb.post_recv(id, &[]);
        }
        let mut received = 0;
        let mut sent = 0;
        while received < MESSAGES {
            cq_b.arm(ArmKind::Next);
            let mut progress = false;
            while let Some(cqe) = cq_b.poll() {
                assert_eq!(cqe.status, WcStatus::Success.value());
                received += 1;
                progress = true;
                qb.post_recv(cqe.wr_id, &[]);
            }
            if sent < MESSAGES {
                qa.post(&Wr::new(sent, WrOpcode::Send));
                cq_a.expect(sent, WcStatus::Success);
                sent += 1;
            }
            if !progress && received < sent {
                // Only the event tells the consumer of more completions.
                b.sink.expect(COMPLETION, cq_b.cookie);
                cq_b.event_received();
            } else if b.sink.events.lock().unwrap().pop().is_some() {
                cq_b.event_received();
            }
        }
    });
}
