// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Valid and invalid commands for each kind of object.

use roce::net::ip_to_gid;
use testkit::engine::*;
use verbs::{HcaConfig, Limits, LinkSpeed, PathPolicy};
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{
    AsyncEvent, Mtu, PortCaps, PortPhysState, PortSpeed, PortState, PortWidth, QpAttrMask, QpType,
    DEFAULT_PKEY, GSI_QPN,
};
use virtio_rdma_abi::number::{Cqn, Pdn, Qpn};
use virtio_rdma_abi::ring::{Doorbell, RingAddr, RingKind};
use virtio_rdma_abi::wire::Wire;

use super::{create_cq, create_qp, EBUSY, EEXIST, EFAULT, EINVAL, EOPNOTSUPP, EPERM};

#[test]
fn port() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    // abi: R-125
    let rsp = vm.call(CmdQueryPort { port: 1 }).unwrap();
    // abi
    assert_eq!(
        (rsp.state, rsp.phys_state),
        (PortState::Active.value(), PortPhysState::LinkUp.value())
    );
    // abi
    assert_eq!(
        (rsp.active_mtu, rsp.gid_tbl_len, rsp.pkey_tbl_len),
        (Mtu::Mtu4096.value(), 256, 1)
    );
    vm.hca.set_link(false);
    vm.hca.set_link(false);
    // abi: R-589
    vm.sink.expect(EventKind::Async(AsyncEvent::PortErr), 1);
    let rsp = vm.call(CmdQueryPort { port: 1 }).unwrap();
    assert_eq!(
        (rsp.state, rsp.phys_state),
        (PortState::Down.value(), PortPhysState::Disabled.value())
    );
    vm.hca.set_link(true);
    // abi: R-589
    vm.sink.expect(EventKind::Async(AsyncEvent::PortActive), 1);
    assert!(vm.sink.is_empty(), "one event a change");
    for port in [0, 2] {
        // abi: R-149
        assert_eq!(vm.call(CmdQueryPort { port }).err(), Some(EINVAL));
        let port = port.into();
        // abi: R-149
        assert_eq!(vm.call(CmdQueryPkey { port, index: 0 }).err(), Some(EINVAL));
    }
    // abi
    assert_eq!(
        vm.call(CmdQueryPkey { port: 1, index: 0 }).unwrap().pkey,
        DEFAULT_PKEY
    );
    // abi: R-149
    assert_eq!(
        vm.call(CmdQueryPkey { port: 1, index: 1 }).err(),
        Some(EINVAL)
    );
}

#[test]
fn all_fields_of_the_port() {
    let world = World::new(1, PathPolicy::Direct);
    let rsp = world.vms[0].call(CmdQueryPort { port: 1 }).unwrap();
    let expected = RspQueryPort {
        // abi: R-127
        state: PortState::Active.value(),
        // abi: R-128
        max_mtu: Mtu::Mtu4096.value(),
        // abi: R-129
        active_mtu: Mtu::Mtu4096.value(),
        // abi: R-130
        phys_mtu: 9000,
        // abi: R-131
        gid_tbl_len: 256,
        // abi
        port_cap_flags: PortCaps::CM_SUP,
        // abi: R-133
        max_msg_sz: 1 << 31,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        // abi: R-136
        pkey_tbl_len: 1,
        // abi: R-137
        active_width: PortWidth::X4.value(),
        // abi: R-138
        active_speed: PortSpeed::Edr.value(),
        // abi: R-139
        phys_state: PortPhysState::LinkUp.value(),
        // abi
        reserved: [0; 128],
    };
    assert_eq!(rsp, expected);
}

// abi
#[test]
fn the_port_tells_its_speed() {
    let world = World::new(0, PathPolicy::Direct);
    let speeds: Vec<_> = LinkSpeed::all().collect();
    assert_eq!(speeds, [10, 25, 40, 50, 100, 200, 400, 800]);
    assert_eq!(LinkSpeed::from_gbps(0), None);
    assert_eq!(LinkSpeed::from_gbps(101), None);
    assert_eq!(LinkSpeed::from_gbps(100), Some(LinkSpeed::default()));
    for (number, gbps) in (1..).zip(speeds) {
        let speed = LinkSpeed::from_gbps(gbps).unwrap();
        let port = world.net.port(mac(number));
        let config = HcaConfig {
            speed,
            ..HcaConfig::new(mac(number))
        };
        let vm = Vm::in_mode(Mode::OwnRings, number, &world.runtime, port, config);
        let rsp = vm.call(CmdQueryPort { port: 1 }).unwrap();
        let lanes = match PortWidth::try_from(rsp.active_width).unwrap() {
            PortWidth::X1 => 1,
            PortWidth::X4 => 4,
            PortWidth::X8 => 8,
            other => panic!("{other:?}"),
        };
        let lane = match PortSpeed::try_from(rsp.active_speed).unwrap() {
            PortSpeed::Qdr => 10,
            PortSpeed::Edr => 25,
            PortSpeed::Hdr => 50,
            PortSpeed::Ndr => 100,
            other => panic!("{other:?}"),
        };
        assert_eq!(lanes * lane, gbps);
        vm.hca.detach();
    }
}

#[test]
fn gids() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let add = |index, gid_type, port_num, gid| {
        vm.call(CmdAddGid {
            gid,
            gid_type,
            index,
            port_num,
        })
        .err()
    };
    let del = |index, port| vm.call(CmdDelGid { index, port }).err();
    // abi: R-153
    assert_eq!(add(0, 2, 1, vm.gid), None);
    // abi: R-158
    assert_eq!(add(0, 2, 1, vm.gid), Some(EEXIST));
    assert_eq!(add(255, 2, 1, [1; 16]), None);
    // abi: R-157
    assert_eq!(add(256, 2, 1, vm.gid), Some(EINVAL));
    // abi: R-156
    assert_eq!(add(2, 1, 1, vm.gid), Some(EOPNOTSUPP), "RoCE v1");
    // abi: R-157
    assert_eq!(add(2, 3, 1, vm.gid), Some(EINVAL));
    // abi: R-157
    assert_eq!(add(2, 2, 2, vm.gid), Some(EINVAL), "port");
    for ip in ["::", "0.0.0.0", "224.0.0.1", "ff02::1"] {
        let gid = ip_to_gid(ip.parse().unwrap());
        // abi: R-157
        assert_eq!(add(2, 2, 1, gid), Some(EINVAL), "{ip}");
    }
    // abi: R-155
    assert_eq!(del(0, 1), None);
    // abi: R-159
    assert_eq!(del(0, 1), None, "clear already");
    assert_eq!(del(256, 1), Some(EINVAL));
    assert_eq!(del(0, 0), Some(EINVAL));
    assert_eq!(add(0, 2, 1, vm.gid), None);
}

// abi
#[test]
fn protection_domains() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let destroy = |pdn| vm.call(CmdDestroyPd { pdn }).err();
    let pdn = vm.call(CmdCreatePd::ZERO).unwrap().pdn;
    let mr = vm.register(pdn, vm.alloc(1), 1, FULL);
    assert_eq!(destroy(pdn), Some(EBUSY));
    vm.call(CmdDeregMr { mrn: mr.mrn }).unwrap();
    let cq = Cq::new(vm, 64);
    let qp = Qp::in_pd(vm, pdn, &cq, &cq, Options::default());
    assert_eq!(destroy(pdn), Some(EBUSY));
    qp.destroy().unwrap();
    assert_eq!(destroy(pdn), None);
    assert_eq!(destroy(pdn), Some(EINVAL));
    assert_eq!(destroy(Pdn::new(0)), Some(EINVAL));
}

#[test]
fn completion_queues() {
    let world = World::with_limits(
        1,
        PathPolicy::Direct,
        Limits {
            max_cqe: 256,
            ..Limits::default()
        },
    );
    let vm = &world.vms[0];
    let err = |change: fn(&mut CmdCreateCqRing)| {
        let mut cmd = create_cq(vm);
        change(&mut cmd);
        vm.call(cmd).err()
    };
    // abi: R-507
    assert_eq!(err(|_| ()), None);
    // abi: R-168
    assert_eq!(err(|cmd| cmd.base.cqe = 0), Some(EINVAL));
    // abi: R-511
    assert_eq!(
        err(|cmd| cmd.base.cqe = 129),
        Some(EINVAL),
        "more than slots"
    );
    // abi: R-509
    assert_eq!(err(|cmd| cmd.ring.slots = 100), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.ring.slots = 0), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.ring.slots = 512), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.ring.slot_shift = 7), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.ring.page_shift = 11), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.ring.page_shift = 64), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.ring.depth = 2), Some(EINVAL));
    // abi: R-509
    assert_eq!(err(|cmd| cmd.ring.npages -= 1), Some(EINVAL));
    // abi: R-509
    assert_eq!(err(|cmd| cmd.ring.reserved[4] = 1), Some(EINVAL));
    // abi: R-512
    assert_eq!(err(|cmd| cmd.ring.pages = 1 << 40), Some(EFAULT));
    // abi: R-186
    assert_eq!(err(|cmd| cmd.flags = CreateFlags(2)), Some(EINVAL));
    // abi: R-5
    assert_eq!(err(|cmd| cmd.reserved[0] = 1), Some(EINVAL));
    // abi: R-510
    assert_eq!(err(|cmd| cmd.doorbell_page = 4096), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.event_queue = 0), Some(EINVAL));
    // abi: R-63
    assert_eq!(err(|cmd| cmd.event_queue = 4), None, "the last one");
    // abi: R-510
    assert_eq!(err(|cmd| cmd.event_queue = 5), Some(EINVAL));
    for (slots, slot_shift) in [(512, 6), (128, 7)] {
        let mut cmd = create_cq(vm);
        cmd.ring = Ring::new(vm, RingKind::Work, slots, slot_shift).addr;
        assert_eq!(
            vm.call(cmd).err(),
            Some(EINVAL),
            "a sound ring of another kind"
        );
    }
    let mut unmapped = create_cq(vm);
    unmapped.ring.pages = vm.page_list(&[1 << 40; 4]);
    // abi: R-512
    assert_eq!(vm.call(unmapped).err(), Some(EFAULT));
    let cq = Cq::new(vm, 64);
    let qp = Qp::new(vm, &cq, &cq, Options::default());
    // abi: R-121
    assert_eq!(cq.destroy().err(), Some(EBUSY));
    qp.destroy().unwrap();
    // abi
    cq.destroy().unwrap();
    // abi: R-117
    assert_eq!(cq.destroy().err(), Some(EINVAL));
}

#[test]
fn queue_pairs() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 64);
    let err = |change: fn(&mut CmdCreateQpRings)| {
        let mut cmd = create_qp(vm, &cq);
        change(&mut cmd);
        vm.call(cmd).err()
    };
    // abi: R-508
    assert_eq!(err(|_| ()), None);
    // abi: R-173
    for (qp_type, error) in [
        (QpType::Rc, None),
        (QpType::Uc, None),
        (QpType::Ud, None),
        // The command creates a QP of a process.
        // abi: R-191
        (QpType::Gsi, Some(EPERM)),
        // abi
        (QpType::Smi, Some(EOPNOTSUPP)),
    ] {
        let mut cmd = create_qp(vm, &cq);
        cmd.base.qp_type = qp_type.value();
        assert_eq!(vm.call(cmd).err(), error);
    }
    // abi: R-186
    assert_eq!(err(|cmd| cmd.base.qp_type = 77), Some(EINVAL));
    // abi: R-186
    assert_eq!(err(|cmd| cmd.base.sq_sig_type = 2), Some(EINVAL));
    // abi: R-186
    assert_eq!(err(|cmd| cmd.base.pdn = Pdn::new(99)), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.base.send_cqn = Cqn::new(99)), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.base.recv_cqn = Cqn::new(99)), Some(EINVAL));
    // abi: R-511
    assert_eq!(err(|cmd| cmd.base.max_send_wr = 65), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.base.max_recv_wr = 65), Some(EINVAL));
    // abi: R-511
    assert_eq!(
        err(|cmd| cmd.base.max_send_sge = 4),
        Some(EINVAL),
        "too long for the slot"
    );
    assert_eq!(
        err(|cmd| cmd.base.max_recv_sge = 4),
        Some(EINVAL),
        "too long for the slot"
    );
    assert_eq!(
        err(|cmd| cmd.base.max_inline_data = 38),
        Some(EINVAL),
        "too long for the slot"
    );
    // abi: R-187
    assert_eq!(err(|cmd| cmd.base.max_send_sge = u32::MAX), Some(EINVAL));
    // abi: R-187
    assert_eq!(err(|cmd| cmd.base.max_inline_data = u32::MAX), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.base.flags = CreateFlags(9)), Some(EINVAL));
    // abi: R-5
    assert_eq!(err(|cmd| cmd.base.reserved[23] = 1), Some(EINVAL));
    // abi: R-510
    assert_eq!(err(|cmd| cmd.doorbell_page = 4096), Some(EINVAL));
    assert_eq!(
        err(|cmd| cmd.sq = RingAddr::ZERO),
        Some(EINVAL),
        "sends without an SQ"
    );
    assert_eq!(
        err(|cmd| cmd.rq = RingAddr::ZERO),
        Some(EINVAL),
        "receives without an RQ"
    );
    let without_rq = |cmd: &mut CmdCreateQpRings| {
        cmd.rq = RingAddr::ZERO;
        cmd.base.max_recv_wr = 0;
    };
    // abi: R-515
    assert_eq!(err(without_rq), None);
    let without_sq = |cmd: &mut CmdCreateQpRings| {
        cmd.sq = RingAddr::ZERO;
        cmd.base.max_send_wr = 0;
    };
    // abi: R-515
    assert_eq!(err(without_sq), None);
    let without_both = |cmd: &mut CmdCreateQpRings| {
        (cmd.sq, cmd.rq) = (RingAddr::ZERO, RingAddr::ZERO);
        (cmd.base.max_send_wr, cmd.base.max_recv_wr) = (0, 0);
    };
    assert_eq!(err(without_both), None);
    let half_a_ring = |cmd: &mut CmdCreateQpRings| {
        (cmd.sq.slots, cmd.base.max_send_wr) = (0, 0);
    };
    // abi: R-509
    assert_eq!(err(half_a_ring), Some(EINVAL), "neither a ring nor none");
    let qp = Qp::new(vm, &cq, &cq, Options::default());
    // abi
    qp.destroy().unwrap();
    // abi: R-117
    assert_eq!(qp.destroy().err(), Some(EINVAL));
    let gone = CmdQueryQp {
        qpn: qp.qpn,
        attr_mask: QpAttrMask::STATE,
    };
    assert_eq!(vm.call(gone).err(), Some(EINVAL));
    assert_eq!(qp.to_init(), Err(EINVAL));
}

#[test]
fn only_datagrams_have_a_loopback_to_block() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 64);
    let create = |qp_type: QpType| {
        let mut cmd = create_qp(vm, &cq);
        cmd.base.qp_type = qp_type.value();
        cmd.base.flags = CreateFlags::USER | CreateFlags::BLOCK_MULTICAST_LOOPBACK;
        vm.call(cmd).err()
    };
    assert_eq!(create(QpType::Ud), Some(EINVAL), "without multicast");
    vm.negotiate(&[Feature::Multicast]);
    assert_eq!(create(QpType::Ud), None);
    for connected in [QpType::Rc, QpType::Uc] {
        // abi: R-814
        assert_eq!(create(connected), Some(EINVAL), "{connected:?}");
    }
}

#[test]
fn the_gsi_qp_is_one_and_belongs_to_the_kernel() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 64);
    let create = |qp_type: QpType, flags| {
        let mut cmd = create_qp(vm, &cq);
        cmd.base.qp_type = qp_type.value();
        cmd.base.flags = flags;
        vm.call(cmd).map(|response| response.qpn)
    };
    // abi: R-191
    assert_eq!(create(QpType::Gsi, CreateFlags::USER), Err(EPERM));
    for _ in 0..3 {
        // abi: R-175
        let qp = Qp::new(vm, &cq, &cq, Options::of(QpType::Gsi));
        // abi: R-189
        assert_eq!(qp.qpn, GSI_QPN);
        // abi: R-190
        assert_eq!(create(QpType::Gsi, CreateFlags::NONE), Err(EEXIST));
        assert_eq!(
            create(QpType::Ud, CreateFlags::NONE).map(|qpn| qpn > Qpn::new(1)),
            Ok(true)
        );
        qp.destroy().unwrap();
    }
    // abi: R-192
    assert_eq!(create(QpType::Smi, CreateFlags::NONE), Err(EOPNOTSUPP));
}

// abi: R-121
#[test]
fn a_pd_is_free_once_its_qp_is_destroyed() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 64);
    for _ in 0..200 {
        let pdn = vm.call(CmdCreatePd::ZERO).unwrap().pdn;
        let qp = Qp::in_pd(
            vm,
            pdn,
            &cq,
            &cq,
            Options {
                slots: 2,
                ..Options::default()
            },
        );
        qp.to_init().unwrap();
        qp.ring_doorbell(Doorbell::Sq);
        qp.destroy().unwrap();
        vm.call(CmdDestroyPd { pdn }).unwrap();
    }
}
