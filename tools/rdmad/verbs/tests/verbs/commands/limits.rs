// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The limits in the configuration space are exact: a driver can create that many objects, and no
//! more.

use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::config::{
    Config, OwnRingsConfig, SrqConfig, OWN_RINGS_CONFIG_OFFSET, SRQ_CONFIG_OFFSET,
};
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::ib::{AccessFlags, GSI_QPN};
use virtio_rdma_abi::number::Number;
use virtio_rdma_abi::ring::{slot_shift_for, RingAddr, RingKind, RingLayout, CQ_SLOTS};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{rq_wqe_size, sq_wqe_size, INLINE_OFFSET};

use super::{create_cq, create_qp, EINVAL, ENOMEM};

fn limits(vm: &Vm) -> (Config, OwnRingsConfig) {
    let space = vm.hca.config_space();
    let own = &space[OWN_RINGS_CONFIG_OFFSET..];
    (
        Config::decode(&space).unwrap(),
        OwnRingsConfig::decode(own).unwrap(),
    )
}

/// Creates `count` objects. Checks that another one is refused until an object is destroyed.
fn fill<N: Number>(count: u32, mut make: impl FnMut() -> Result<N, u8>, destroy: impl Fn(N)) {
    let mut last = N::new(0);
    for n in 0..count {
        last = make().unwrap_or_else(|errno| panic!("number {n}: errno {errno}"));
    }
    assert_eq!(make(), Err(ENOMEM));
    destroy(last);
    assert_eq!(make(), Ok(last));
    assert_eq!(make(), Err(ENOMEM));
}

// abi
#[test]
fn pds_and_mrs() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let (config, _) = limits(vm);
    // The driver uses one PD.
    fill(
        config.max_pd - 1,
        || vm.call(CmdCreatePd::ZERO).map(|rsp| rsp.pdn),
        |pdn| {
            vm.call(CmdDestroyPd { pdn }).unwrap();
        },
    );
    fill(
        config.max_mr,
        || {
            vm.call(CmdGetDmaMr {
                pdn: vm.pdn,
                access_flags: AccessFlags::LOCAL_WRITE,
            })
            .map(|rsp| rsp.mrn)
        },
        |mrn| {
            vm.call(CmdDeregMr { mrn }).unwrap();
        },
    );
}

#[test]
fn cqs_and_qps() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let (_, own) = limits(vm);
    let cq = Cq::new(vm, 2);
    // The device never writes to these rings, so all CQs can share one.
    let request = CmdCreateCqRing {
        base: CmdCreateCq { cqe: 2 },
        ring: Ring::new(vm, RingKind::Completion, 2, 6).addr,
        ..create_cq(vm)
    };
    // abi
    fill(
        own.max_cq - 1,
        || vm.call(request).map(|rsp| rsp.cqn),
        |cqn| {
            // abi: R-514
            vm.call(CmdDestroyCq { cqn }).unwrap();
        },
    );
    let mut request = create_qp(vm, &cq);
    (request.base.max_send_wr, request.base.max_recv_wr) = (2, 2);
    request.sq = Ring::new(vm, RingKind::Work, 2, 7).addr;
    request.rq = Ring::new(vm, RingKind::Work, 2, 6).addr;
    // One QPN is reserved for the GSI QP.
    // abi
    fill(
        own.max_qp - GSI_QPN.get(),
        || vm.call(request).map(|rsp| rsp.qpn),
        |qpn| {
            vm.call(CmdDestroyQp { qpn }).unwrap();
        },
    );
}

// abi
#[test]
fn srqs() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let space = vm.hca.config_space();
    let limits = SrqConfig::decode(&space[SRQ_CONFIG_OFFSET..]).unwrap();
    let request = srq::request(vm, vm.pdn, &srq::ring(vm, 2));
    fill(
        limits.max_srq,
        || vm.call(request).map(|rsp| rsp.srqn),
        |srqn| {
            vm.call(CmdDestroySrq { srqn }).unwrap();
        },
    );
}

/// A ring with a two-level page list that repeats one page.
fn long_ring(vm: &Vm, layout: RingLayout) -> RingAddr {
    let npages = layout.size().div_ceil(4096);
    let page = vm.alloc(4096);
    let block = vm.page_list(&[page; 512]);
    let blocks = vec![block; npages.div_ceil(512) as usize];
    RingAddr {
        pages: vm.page_list(&blocks),
        npages,
        slots: layout.slots(),
        page_shift: 12,
        slot_shift: layout.slot_shift(),
        depth: PageListDepth::TwoLevels.value(),
        ..RingAddr::ZERO
    }
}

#[test]
fn sizes_of_queues() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let (config, own) = limits(vm);
    assert!(own.max_cqe == *CQ_SLOTS.end() && own.max_qp_wr >= 4_619);

    let mut cq = create_cq(vm);
    cq.ring = long_ring(vm, RingLayout::completions(own.max_cqe).unwrap());
    cq.base.cqe = own.max_cqe;
    // abi
    vm.call(cq).unwrap();
    cq.base.cqe += 1;
    // abi: R-84
    assert_eq!(vm.call(cq).err(), Some(EINVAL));

    let of_qp = Cq::new(vm, 2);
    let mut qp = create_qp(vm, &of_qp);
    qp.sq = Ring::new(vm, RingKind::Work, own.max_qp_wr, 7).addr;
    qp.rq = Ring::new(vm, RingKind::Work, own.max_qp_wr, 6).addr;
    (qp.base.max_send_wr, qp.base.max_recv_wr) = (own.max_qp_wr, own.max_qp_wr);
    // abi
    vm.call(qp).unwrap();
    for change in [
        (|base| base.max_send_wr += 1) as fn(&mut CmdCreateQp),
        |base| base.max_recv_wr += 1,
    ] {
        let mut more = qp;
        change(&mut more.base);
        // abi
        assert_eq!(vm.call(more).err(), Some(EINVAL));
    }

    let mut qp = create_qp(vm, &of_qp);
    let (send, recv) = (config.max_send_sge, config.max_recv_sge);
    let inline = own.max_inline_data;
    let sq = sq_wqe_size(send as usize).max(INLINE_OFFSET + inline as usize);
    let shift = |bytes| slot_shift_for(bytes).unwrap();
    qp.sq = Ring::new(vm, RingKind::Work, 64, shift(sq) + 1).addr;
    qp.rq = Ring::new(
        vm,
        RingKind::Work,
        64,
        shift(rq_wqe_size(recv as usize)) + 1,
    )
    .addr;
    // abi
    (qp.base.max_send_sge, qp.base.max_recv_sge) = (send, recv);
    // abi: R-68
    qp.base.max_inline_data = inline;
    // abi: R-511
    vm.call(qp).unwrap();
    for change in [
        (|base| base.max_send_sge += 1) as fn(&mut CmdCreateQp),
        |base| base.max_recv_sge += 1,
        |base| base.max_inline_data += 1,
    ] {
        let mut more = qp;
        change(&mut more.base);
        // abi
        assert_eq!(vm.call(more).err(), Some(EINVAL));
    }
}
