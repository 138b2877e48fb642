// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Virtqueues with invalid content: only their own QP or CQ fails.

use proptest::prelude::*;
use testkit::engine::ring::{F_INDIRECT, F_NEXT, F_WRITE};
use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::cqe::WcReason;
use virtio_rdma_abi::ib::{QpState, WcStatus, WrOpcode};
use virtio_rdma_abi::number::Cqn;
use virtio_rdma_abi::ring::Doorbell;
use virtio_rdma_abi::wqe::RqHeader;

use super::{on, on_both_paths};

/// A DMA address outside all memory.
const NOWHERE: u64 = 1 << 40;

/// A QP whose virtqueues a test corrupts, and another QP, which must continue to work. Both are
/// connected to themselves.
struct Bench<'vm> {
    vm: &'vm Vm,
    cq: Cq<'vm>,
    qp: Qp<'vm>,
    other_cq: Cq<'vm>,
    other: Qp<'vm>,
}

impl<'vm> Bench<'vm> {
    fn new(vm: &'vm Vm) -> Self {
        let (cq, other_cq) = (Cq::new(vm, 64), Cq::new(vm, 64));
        let qp = Qp::new(vm, &cq, &cq, Options::default());
        connect(&qp, &qp);
        let other = Qp::new(vm, &other_cq, &other_cq, Options::default());
        connect(&other, &other);
        Self {
            vm,
            cq,
            qp,
            other_cq,
            other,
        }
    }

    fn only_one_failed(&self) {
        self.qp.wait_for(QpState::Err);
        self.other.post(&Wr::new(9, WrOpcode::RdmaWrite));
        self.other_cq.expect(9, WcStatus::Success);
        assert_eq!(self.other.state(), QpState::Rts);
        self.qp.destroy().unwrap();
    }
}

/// Corrupts the SQ of a QP by `spoil`, on both data paths, and checks that only this QP fails.
fn sq_that_is(spoil: impl Fn(&Ring)) {
    on_both_paths(|setup| {
        let world = World::new(1, setup);
        let bench = Bench::new(&world.vms[0]);
        spoil(&bench.qp.sq);
        bench.qp.post(&Wr::new(1, WrOpcode::RdmaWrite));
        bench.only_one_failed();
        while let Some(cqe) = bench.cq.poll() {
            assert_eq!(cqe.status, WcStatus::WrFlushErr.value());
        }
    });
}

// abi
#[test]
fn send_queues_with_bad_chains() {
    let wqe = 0x2000;
    sq_that_is(|sq| sq.descriptor(0, (NOWHERE, 75), 0, 0));
    sq_that_is(|sq| sq.descriptor(0, (u64::MAX, 75), 0, 0));
    sq_that_is(|sq| sq.descriptor(0, (wqe, 75), F_WRITE, 0));
    sq_that_is(|sq| sq.descriptor(0, (wqe, 1), F_NEXT, 0));
    sq_that_is(|sq| sq.descriptor(0, (wqe, 1), F_NEXT, u16::MAX));
    sq_that_is(|sq| sq.descriptor(0, (NOWHERE, 32), F_INDIRECT, 0));
    sq_that_is(|sq| sq.descriptor(0, (wqe, 7), F_INDIRECT, 0));
    sq_that_is(|sq| sq.descriptor(0, (wqe, 16), F_INDIRECT | F_NEXT, 1));
}

// abi: R-897
#[test]
fn indices_and_heads_that_jump() {
    on_both_paths(|setup| {
        let world = World::new(1, setup);
        let bench = Bench::new(&world.vms[0]);
        let ring = &bench.qp.sq;
        ring.set_available_index(65);
        bench.qp.ring_doorbell(Doorbell::Sq);
        bench.only_one_failed();
    });
    on_both_paths(|setup| {
        let world = World::new(1, setup);
        let bench = Bench::new(&world.vms[0]);
        let ring = &bench.qp.sq;
        ring.set_available_entry(0, 64);
        ring.set_available_index(1);
        bench.qp.ring_doorbell(Doorbell::Sq);
        bench.only_one_failed();
    });
}

// abi: R-896
#[test]
fn a_wqe_that_its_descriptors_cut_short() {
    on_both_paths(|setup| {
        let world = World::new(1, setup);
        let vm = &world.vms[0];
        let mr = vm.mr(4096);
        let wr = Wr::new(5, WrOpcode::Send).local(&mr, 0, 8).local(&mr, 8, 8);
        for len in [0, 74, 75, 76, 75 + 31] {
            let bench = Bench::new(vm);
            let sq = &bench.qp.sq;
            let at = vm.alloc(4096);
            vm.write(at, &wr.bytes());
            sq.descriptor(0, (at, len), 0, 0);
            bench.qp.post(&wr);
            let cqe = bench.cq.next();
            assert_eq!(cqe.status, WcStatus::LocQpOpErr.value(), "{len} bytes");
            // abi: R-1265
            assert_eq!(cqe.vendor_err, u32::from(WcReason::ShortWqe.value()));
            bench.only_one_failed();
        }
        // The descriptor ends one byte before the inline data ends.
        let bench = Bench::new(vm);
        let wr = Wr::new(6, WrOpcode::Send).inline(&[1; 100]);
        let at = vm.alloc(4096);
        vm.write(at, &wr.bytes());
        bench.qp.sq.descriptor(0, (at, 91 + 99), 0, 0);
        bench.qp.post(&wr);
        bench.cq.expect(6, WcStatus::LocQpOpErr);
        bench.only_one_failed();
        // The descriptor of a receive ends within the WQE.
        let bench = Bench::new(vm);
        let header = RqHeader {
            num_sge: 1,
            wr_id: 7,
        };
        let at = vm.alloc(64);
        let wqe = [&header.to_bytes()[..], &sge(&mr, 0, 8).to_bytes()].concat();
        vm.write(at, &wqe);
        bench.qp.rq.descriptor(0, (at, 12 + 15), 0, 0);
        bench.qp.post_recv(7, &[sge(&mr, 0, 8)]);
        bench.qp.post(&Wr::new(8, WrOpcode::Send).local(&mr, 0, 8));
        bench.cq.expect(7, WcStatus::LocQpOpErr);
        bench.only_one_failed();
    });
}

// abi
#[test]
fn receive_queues_with_bad_chains() {
    for spoil in [
        |rq: &Ring| rq.descriptor(0, (NOWHERE, 64), 0, 0),
        |rq: &Ring| rq.descriptor(0, (0x2000, 64), F_WRITE, 0),
        |rq: &Ring| rq.set_available_index(0x8000),
    ] {
        on_both_paths(|setup| {
            let world = World::new(1, setup);
            let bench = Bench::new(&world.vms[0]);
            bench.qp.post_recv(1, &[]);
            spoil(&bench.qp.rq);
            bench.qp.post(&Wr::new(2, WrOpcode::Send));
            bench.only_one_failed();
        });
    }
}

// abi
#[test]
fn cqe_buffers_that_can_not_hold_one() {
    for spoil in [
        |cq: &Ring| cq.descriptor(0, (0x2000, 37), F_WRITE, 0),
        |cq: &Ring| cq.descriptor(0, (0x2000, 38), 0, 0),
        |cq: &Ring| cq.descriptor(0, (NOWHERE, 38), F_WRITE, 0),
        |cq: &Ring| cq.descriptor(0, (0x2000, 0), F_WRITE | F_NEXT, 0),
        |cq: &Ring| cq.set_available_entry(0, 64),
        |cq: &Ring| cq.set_available_index(0),
    ] {
        on_both_paths(|setup| {
            let world = World::new(1, setup);
            let bench = Bench::new(&world.vms[0]);
            spoil(&bench.cq.ring);
            bench.qp.post(&Wr::new(1, WrOpcode::RdmaWrite));
            bench.only_one_failed();
            let ring = &bench.cq.ring;
            let used = ring.used_index();
            assert_eq!(used, 0, "nothing that is not there is shown");
            // Arming a failed CQ has no effect.
            bench.cq.arm(virtio_rdma_abi::ring::ArmKind::Next);
            assert!(bench.vm.sink.is_empty());
            bench.cq.destroy().unwrap();
        });
    }
}

// abi: R-116
#[test]
fn queues_outside_of_memory() {
    let world = World::new(1, on(PathPolicy::Direct));
    let vm = &world.vms[0];
    let numbers = mode::numbers(vm);
    let nowhere = virtqueue::Split {
        size: 4,
        descriptors: NOWHERE,
        available: NOWHERE,
        used: NOWHERE,
        indirect: false,
    };
    vm.sink.enable(numbers.cq(Cqn::new(0)), nowhere);
    let refused = vm.call(virtio_rdma_abi::ctrl::CmdCreateCq { cqe: 4 });
    assert_eq!(refused, Err(14), "EFAULT");
    mode::disable_cq(vm, Cqn::new(0));
    let bench = Bench::new(vm);
    bench.other.post(&Wr::new(9, WrOpcode::RdmaWrite));
    bench.other_cq.expect(9, WcStatus::Success);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A descriptor table or available ring with random content harms no other QP, and the QP can
    /// be destroyed.
    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 1024), which in 0..3usize) {
        let world = World::new(1, on(PathPolicy::Direct));
        let bench = Bench::new(&world.vms[0]);
        let ring = [&bench.qp.sq, &bench.qp.rq, &bench.cq.ring][which];
        let split = ring.split();
        let part = [split.descriptors, split.available][bytes[0] as usize % 2];
        // A descriptor table has 64 entries of 16 bytes, an available ring has 132 bytes.
        let len = if part == split.descriptors { 1024 } else { 132 };
        bench.vm.write(part, &bytes[..len]);
        bench.qp.ring_doorbell(Doorbell::Sq);
        bench.qp.ring_doorbell(Doorbell::Rq);
        bench.other.post(&Wr::new(9, WrOpcode::RdmaWrite));
        bench.other_cq.expect(9, WcStatus::Success);
        bench.qp.to(QpState::Err);
        bench.qp.destroy().unwrap();
        bench.cq.destroy().unwrap();
    }
}
