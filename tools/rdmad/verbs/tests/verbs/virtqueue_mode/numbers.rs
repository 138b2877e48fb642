// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Numbers of objects in virtqueue mode, and their reuse.

use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::ib::{QpType, SigType, WcStatus, WrOpcode};
use virtio_rdma_abi::number::{Cqn, Qpn, Srqn};
use virtio_rdma_abi::queues::Role;
use virtio_rdma_abi::ring::RingKind;

use super::{on, on_both_paths};

const ENOMEM: u8 = 12;
const EINVAL: u8 = 22;

fn cmd_qp(vm: &Vm, cqn: Cqn) -> CmdCreateQp {
    CmdCreateQp {
        pdn: vm.pdn,
        qp_type: QpType::Rc.value(),
        sq_sig_type: SigType::Requested.value(),
        max_send_wr: 8,
        max_send_sge: 1,
        send_cqn: cqn,
        max_recv_wr: 8,
        max_recv_sge: 1,
        recv_cqn: cqn,
        max_inline_data: 256,
        flags: CreateFlags::NONE,
        srqn: Srqn::NONE,
        reserved: [0; 24],
    }
}

/// Enables all virtqueues except for the control queue, with the smallest size.
fn enable_all(vm: &Vm) -> u16 {
    let config = mode::config(vm);
    let count = mode::numbers(vm).count(config.max_qp) as u16;
    for queue in 1..count {
        vm.sink
            .enable(Some(queue), Ring::new(vm, RingKind::Work, 2, 6).split());
    }
    count
}

// abi
#[test]
fn the_device_has_the_virtqueues_that_its_configuration_promises() {
    let world = World::new(1, on(PathPolicy::Direct));
    let vm = &world.vms[0];
    let config = mode::config(vm);
    let sizes = verbs::Limits::default().virtqueue_sizes();
    let numbers = mode::numbers(vm);
    assert_eq!(sizes.len() as u32, numbers.count(config.max_qp));
    for (queue, &size) in (0..).zip(&sizes) {
        assert!(size.is_power_of_two());
        let needed = match numbers.role(queue) {
            Role::Control => 64,
            Role::Cq(_) => config.max_cqe,
            Role::Sq(_) | Role::Rq(_) => config.max_qp_wr,
        };
        assert!(u32::from(size) >= needed, "virtqueue {queue}: {size}");
    }
    // The kernel's MAD layer needs queues of these sizes.
    assert!(config.max_qp_wr >= 512 && config.max_cqe >= 640);
}

#[test]
fn as_many_objects_as_the_limits_say() {
    let world = World::new(1, on(PathPolicy::Direct));
    let vm = &world.vms[0];
    let config = mode::config(vm);
    // abi
    assert_eq!(
        vm.call(CmdCreateCq { cqe: 2 }),
        Err(ENOMEM),
        "no virtqueue is enabled"
    );
    enable_all(vm);
    // abi: R-165
    let mut cqns: Vec<_> = (0..config.max_cq)
        .map(|_| vm.call(CmdCreateCq { cqe: 2 }).unwrap().cqn)
        .collect();
    cqns.sort();
    // abi
    assert!(cqns.into_iter().map(Cqn::get).eq(0..config.max_cq));
    // abi: R-84
    assert_eq!(vm.call(CmdCreateCq { cqe: 2 }), Err(ENOMEM));
    // QPN 1 is that of the GSI QP.
    let mut qpns: Vec<_> = (2..=config.max_qp)
        .map(|_| vm.call(cmd_qp(vm, Cqn::new(0))).unwrap().qpn)
        .collect();
    qpns.sort();
    // abi
    assert!(qpns.into_iter().map(Qpn::get).eq(2..=config.max_qp));
    // abi: R-84
    assert_eq!(vm.call(cmd_qp(vm, Cqn::new(0))), Err(ENOMEM));
    for cqe in [0, config.max_cqe + 1, u32::MAX] {
        // abi
        assert_eq!(vm.call(CmdCreateCq { cqe }), Err(EINVAL));
    }
    let long = config.max_qp_wr + 1;
    for (max_send_wr, max_recv_wr) in [(long, 1), (1, long)] {
        let request = CmdCreateQp {
            max_send_wr,
            max_recv_wr,
            ..cmd_qp(vm, Cqn::new(0))
        };
        // abi
        assert_eq!(vm.call(request), Err(EINVAL));
    }
    // After a device reset, all numbers are free.
    vm.hca.reset();
    vm.call(CmdCreateCq { cqe: 2 }).unwrap();
}

// abi
#[test]
fn a_number_comes_back_when_its_virtqueues_were_reset() {
    let world = World::new(1, on(PathPolicy::Direct));
    let vm = &world.vms[0];
    let numbers = mode::numbers(vm);
    let (seven, nine) = (Qpn::new(7), Qpn::new(9));
    let enable = |queue: Option<u16>| {
        vm.sink
            .enable(queue, Ring::new(vm, RingKind::Work, 2, 6).split());
    };
    enable(numbers.cq(Cqn::new(3)));
    let cqn = vm.call(CmdCreateCq { cqe: 2 }).unwrap().cqn;
    assert_eq!(cqn, Cqn::new(3), "the only one that is enabled");
    for queue in [numbers.sq(seven), numbers.sq(nine), numbers.rq(nine)] {
        enable(queue);
    }
    let qpn = vm.call(cmd_qp(vm, cqn)).unwrap().qpn;
    assert_eq!(qpn, nine, "the only one with both queues");
    let again = || vm.call(cmd_qp(vm, cqn)).map(|response| response.qpn);

    // The QPN is free when the QP is destroyed and both of its virtqueues were reset, in any order.
    vm.call(CmdDestroyQp { qpn }).unwrap();
    assert_eq!(again(), Err(ENOMEM));
    vm.hca.virtqueue_reset(numbers.rq(nine).unwrap());
    assert_eq!(again(), Err(ENOMEM));
    vm.hca.virtqueue_reset(numbers.sq(nine).unwrap());
    assert_eq!(again(), Ok(nine));
    vm.hca.virtqueue_reset(numbers.sq(nine).unwrap());
    vm.hca.virtqueue_reset(numbers.rq(nine).unwrap());
    assert_eq!(again(), Err(ENOMEM), "it still exists");
    vm.call(CmdDestroyQp { qpn }).unwrap();
    assert_eq!(again(), Ok(nine), "reset while it existed");
    vm.call(CmdDestroyQp { qpn }).unwrap();

    vm.call(CmdDestroyCq { cqn }).unwrap();
    assert_eq!(vm.call(CmdCreateCq { cqe: 2 }), Err(ENOMEM));
    vm.hca.virtqueue_reset(numbers.cq(Cqn::new(3)).unwrap());
    assert_eq!(vm.call(CmdCreateCq { cqe: 2 }).unwrap().cqn, Cqn::new(3));
    // Resets and notifications of virtqueues that do not exist have no effect.
    for queue in [0, 193, u16::MAX] {
        vm.hca.virtqueue_reset(queue);
        vm.hca.notified(queue);
    }
}

// abi
#[test]
fn virtqueues_serve_one_object_after_the_other() {
    on_both_paths(|setup| {
        let world = World::new(2, setup);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let (from, to) = (a.mr(4096), b.mr(4096));
        for round in 0..50u64 {
            let (cq_a, cq_b) = (Cq::new(a, 16), Cq::new(b, 16));
            let options = Options {
                slots: 8,
                ..Options::default()
            };
            let (qa, qb) = (
                Qp::new(a, &cq_a, &cq_a, options),
                Qp::new(b, &cq_b, &cq_b, options),
            );
            assert_eq!(qa.qpn, Qpn::new(2), "the same virtqueues each time");
            connect(&qa, &qb);
            let data = pattern(100, round);
            a.write(from.iova, &data);
            qb.post_recv(round, &[sge(&to, 0, 100)]);
            qb.post_recv(round, &[]);
            qa.post(&Wr::new(round, WrOpcode::Send).local(&from, 0, 100));
            cq_b.expect(round, WcStatus::Success);
            cq_a.expect(round, WcStatus::Success);
            assert_eq!(b.read(to.iova, 100), data);
            // The QPs are destroyed with work outstanding.
            qa.post(&Wr::new(round, WrOpcode::Send).local(&from, 0, 100));
            qa.post(&Wr::new(round, WrOpcode::Send).local(&from, 0, 100));
            qa.destroy().unwrap();
            qb.destroy().unwrap();
            cq_a.destroy().unwrap();
            cq_b.destroy().unwrap();
        }
    });
}
