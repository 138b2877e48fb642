// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Single steps of a worker, and acts of a driver between two steps.

use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::ctrl::CmdCreateMr;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AccessFlags, QpAttrMask, QpState, QpType, WcStatus, WrOpcode};
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_abi::ring::Doorbell;
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{Reg, RegPages};
use virtio_rdma_ring::RingMemory;

use crate::turns::{connect_outside, is_bounded, unsignaled};

/// Work requests do not wait for acknowledgements of earlier ones, within the window of a new
/// connection.
#[test]
fn many_work_requests_are_on_their_way_at_a_time() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let world = World::stepped(1, PathPolicy::Direct);
        world.negotiate(&[Feature::Counters]);
        let vm = &world.vms[0];
        let cq = Cq::new(vm, 64);
        let qp = Qp::new(vm, &cq, &cq, Options::of(qp_type));
        connect_outside(&qp);
        let before = vm.counters().tx_packets;
        let wqe = |id| Wr::new(id, WrOpcode::RdmaWrite).bytes();
        qp.post_all(&Vec::from_iter((0..30).map(wqe)));
        qp.ring_doorbell(Doorbell::Sq);
        world.rest(&[0]);
        assert_eq!(vm.counters().tx_packets - before, 30, "{qp_type:?}");
    }
}

/// A program may end its QP as soon as it has the completion of the last message. The sender of
/// this message must not wait in vain for an acknowledgement.
#[test]
fn a_qp_acknowledges_what_it_received_before_it_ends() {
    type End = fn(&Qp<'_>);
    let ends: [(&str, End); 3] = [
        ("destroyed", |qp| {
            qp.destroy().unwrap();
        }),
        ("reset", |qp| qp.to(QpState::Reset)),
        ("destroyed in ERR", |qp| {
            qp.to(QpState::Err);
            qp.destroy().unwrap();
        }),
    ];
    for (how, end) in ends {
        let world = World::stepped(1, PathPolicy::Wire);
        let pair = Pair::new(&world);
        pair.qb.post_recv(7, &[]);
        pair.qa.post(&Wr::new(8, WrOpcode::Send));
        let received = (0..1000).find_map(|_| {
            world.runtime.step(0);
            pair.cq_b.poll()
        });
        assert_eq!(received.map(|cqe| cqe.wr_id), Some(7), "{how}");
        end(&pair.qb);
        world.rest(&[0]);
        let sent = pair.cq_a.poll().map(|cqe| (cqe.wr_id, cqe.status));
        assert_eq!(sent, Some((8, WcStatus::Success.value())), "{how}");
    }
}

/// A driver may move a QP from SQE to RTS before a worker has flushed the SQ. All work requests
/// that were posted before are flushed, and later ones are executed.
#[test]
fn all_work_posted_in_sqe_is_flushed_on_the_way_to_rts() {
    const POSTED: u64 = 600;
    for qp_type in [QpType::Uc, QpType::Ud] {
        let world = World::stepped(1, PathPolicy::Direct);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let (cq_a, cq_b) = (Cq::new(a, 1024), Cq::new(b, 64));
        let options = Options {
            slots: 1024,
            ..Options::of(qp_type)
        };
        let (qa, qb) = (
            Qp::new(a, &cq_a, &cq_a, options),
            Qp::new(b, &cq_b, &cq_b, options),
        );
        connect(&qa, &qb);
        let (ma, mb) = (a.mr(4096), b.mr(4096));
        let send = |id| {
            let wr = Wr::new(id, WrOpcode::Send).local(&ma, 0, 10);
            match qp_type {
                QpType::Ud => wr.to(&qb),
                _ => wr,
            }
        };
        let mut bad = send(0);
        bad.sges[0].lkey ^= 1;
        qa.post(&bad);
        world.rest(&[0]);
        cq_a.expect(0, WcStatus::LocProtErr);
        assert_eq!(qa.state(), QpState::Sqe);
        qa.post_all(&Vec::from_iter((1..=POSTED).map(|id| send(id).bytes())));
        qa.modify(QpState::Rts, QpAttrMask::NONE, QpAttr::ZERO)
            .unwrap();
        qb.post_recv(7, &[sge(&mb, 0, 64)]);
        qa.post(&send(POSTED + 1));
        world.rest(&[0]);
        for id in 1..=POSTED {
            cq_a.expect(id, WcStatus::WrFlushErr);
        }
        cq_a.expect(POSTED + 1, WcStatus::Success);
        cq_b.expect(7, WcStatus::Success);
    }
}

/// Reading the page list of a REG_MR is charged to the turn.
#[test]
fn registrations_of_many_pages_fill_a_turn() {
    const PAGES: u32 = 512;
    const SLOTS: u32 = 1024;
    // Cost of one page list: for each page, 8 bytes of address and 16 bytes of extent.
    const COST: usize = 24 * PAGES as usize;
    let world = World::stepped(1, PathPolicy::Direct);
    world.negotiate(&[Feature::RegPages]);
    let vm = &world.vms[0];
    let cq = Cq::new(vm, SLOTS / 2);
    let options = Options {
        slots: SLOTS,
        user: false,
        ..Options::default()
    };
    let qp = Qp::new(vm, &cq, &cq, options);
    connect_outside(&qp);
    let mr = CmdCreateMr {
        pdn: vm.pdn,
        access_flags: AccessFlags::NONE,
        max_num_sg: PAGES,
    };
    let mr = vm.call(mr).unwrap();
    let page = vm.alloc(4096);
    let registration = RegPages {
        base: Reg {
            mrn: mr.mrn,
            key: mr.rkey,
            access: AccessFlags::NONE,
        },
        pages: vm.page_list(&vec![page; PAGES as usize]),
        npages: PAGES,
        iova: 0,
        length: u64::from(PAGES) * 4096,
        page_shift: 12,
        reserved: [0; 4],
    };
    let register = unsignaled(wqe(0, WrOpcode::RegMr, 0, &registration));
    let invalidate = local_inv(1, mr.rkey);
    for slot in 0..SLOTS {
        let wqe = if slot % 2 == 0 {
            &register
        } else {
            &invalidate
        };
        qp.sq.write(qp.sq.layout.slot(slot), wqe);
    }
    qp.sq.set_owner(SLOTS);
    qp.ring_doorbell(Doorbell::Sq);
    // Each pair of REG_MR and LOCAL_INV has one completion.
    let done = || cq.ring.device();
    let mut most = 0;
    while done() < SLOTS / 2 {
        let before = done();
        assert!(world.runtime.step(0), "asleep before the end");
        most = most.max(done() - before);
    }
    let status = world.runtime.status();
    let limit = (status.turn_budget as usize).div_ceil(COST);
    assert!(most > 0 && most as usize <= limit, "{most} at once");
    is_bounded(&status);
}

/// A message that is complete leaves no deadline, for which a worker that sleeps would wake up.
#[test]
fn a_complete_message_leaves_no_deadline() {
    let world = World::stepped(1, PathPolicy::Wire);
    let pair = Pair::new(&world);
    for id in 0..3 {
        pair.write(id);
        world.rest(&[0]);
        pair.cq_a.expect(id, WcStatus::Success);
        assert_eq!(world.runtime.next_deadline(), None, "after message {id}");
    }
}
