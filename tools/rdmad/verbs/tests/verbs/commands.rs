// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Control commands: what they answer, in order and out of order.

use rustix::io::Errno;
use verbs::{Limits, PathPolicy};
use virtio_rdma_abi::config::{mac_from_eui64, Config, OwnRingsConfig, OWN_RINGS_CONFIG_OFFSET};
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{
    AccessFlags, AhFlags, AsyncEvent, Mtu, PortPhysState, PortState, QpAttrMask, QpState, QpType,
    DEFAULT_PKEY,
};
use virtio_rdma_abi::qp::{AhAttr, QpAttr};
use virtio_rdma_abi::ring::{DoorbellKind, RingAddr};
use virtio_rdma_abi::wire::Wire;

use crate::harness::*;

const EINVAL: u8 = Errno::INVAL.raw_os_error() as u8;
const EBUSY: u8 = Errno::BUSY.raw_os_error() as u8;
const ENOMEM: u8 = Errno::NOMEM.raw_os_error() as u8;
const EFAULT: u8 = Errno::FAULT.raw_os_error() as u8;
const EEXIST: u8 = Errno::EXIST.raw_os_error() as u8;
const EOPNOTSUPP: u8 = Errno::OPNOTSUPP.raw_os_error() as u8;

fn small() -> Limits {
    Limits {
        max_qp: 5,
        max_cq: 2,
        max_mr: 2,
        max_mr_pages: 16,
        max_pd: 3,
        max_cqe: 256,
        max_qp_wr: 128,
        max_sge: 4,
        max_inline_data: 200,
        ..Limits::default()
    }
}

fn raw(vm: &Vm, request: &[u8], room: usize) -> Vec<u8> {
    let mut response = Vec::new();
    vm.device.command(request, room, &mut response);
    response
}

#[test]
fn the_configuration_tells_the_limits() {
    let world = World::with_limits(1, PathPolicy::Direct, small());
    let vm = &world.vms[0];
    let space = vm.device.config_space();
    let config = Config::decode(&space).unwrap();
    assert_eq!(config.phys_port_cnt, 1);
    assert_eq!(mac_from_eui64(config.sys_image_guid), Some(vm.mac));
    assert_eq!(
        (config.max_mr, config.max_mr_size, config.max_pd),
        (2, 16 << 12, 3)
    );
    assert_eq!(
        (config.max_send_sge, config.max_recv_sge, config.max_sge_rd),
        (4, 4, 4)
    );
    let own = OwnRingsConfig::decode(&space[OWN_RINGS_CONFIG_OFFSET..]).unwrap();
    assert_eq!(
        (own.max_qp, own.max_cq, own.max_cqe, own.max_qp_wr),
        (5, 2, 256, 128)
    );
    assert_eq!((own.max_inline_data, own.doorbell_pages), (200, 4096));
    assert!(space[OWN_RINGS_CONFIG_OFFSET + OwnRingsConfig::SIZE..]
        .iter()
        .all(|byte| *byte == 0));
    // As many as it says, and no more. One PD and one QP are in use or not to be had: the harness's and GSI.
    for _ in 0..2 {
        vm.call(CmdCreatePd::ZERO).unwrap();
    }
    assert_eq!(vm.call(CmdCreatePd::ZERO).err(), Some(ENOMEM));
    let (cq, _other) = (Cq::new(vm, 64), Cq::new(vm, 256));
    assert_eq!(vm.call(create_cq(vm)).err(), Some(ENOMEM));
    let options = Options {
        slots: 128,
        ..Options::default()
    };
    let qps: Vec<_> = (0..4).map(|_| Qp::new(vm, &cq, &cq, options)).collect();
    assert_eq!(
        qps.iter().map(|qp| qp.qpn).collect::<Vec<_>>(),
        [2, 3, 4, 5]
    );
    assert_eq!(vm.call(create_qp(vm, &cq)).err(), Some(ENOMEM));
    vm.mr(4096 * 10);
    assert_eq!(register(vm, |cmd| cmd.npages = 7), Err(ENOMEM), "pages");
    vm.mr(1);
    assert_eq!(register(vm, |_| ()), Err(ENOMEM), "MRs");
}

#[test]
fn garbage_is_answered() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    assert_eq!(raw(vm, &[], 100), [EINVAL]);
    for unknown in [0, 19, 0xff] {
        assert_eq!(raw(vm, &[unknown, 0, 0, 0], 100), [EOPNOTSUPP]);
    }
    for command in [Command::CreateMr, Command::MapMrSg, Command::ReqNotifyCq] {
        assert_eq!(raw(vm, &[command.value(); 100], 100), [EOPNOTSUPP]);
    }
    for &command in Command::ALL {
        if command != Command::CreatePd {
            assert!(
                matches!(raw(vm, &[command.value()], 1000)[..], [EINVAL | EOPNOTSUPP]),
                "{command:?}"
            );
        }
    }
    // No room for the response: nothing is done.
    let create_pd = [Command::CreatePd.value()];
    assert_eq!(raw(vm, &create_pd, 4), [EINVAL]);
    let pdn = vm.call(CmdCreatePd::ZERO).unwrap().pdn;
    assert_eq!(pdn, vm.pdn + 1);
    // Bytes behind the request are ignored.
    assert_eq!(raw(vm, &[&create_pd[..], &[7; 50]].concat(), 5).len(), 5);
}

#[test]
fn without_own_rings_there_are_no_queues() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    vm.device.set_features(0);
    assert_eq!(vm.call(create_cq(vm)).err(), Some(EOPNOTSUPP));
}

#[test]
fn port() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let rsp = vm.call(CmdQueryPort { port: 1 }).unwrap();
    assert_eq!(
        (rsp.state, rsp.phys_state),
        (PortState::Active.value(), PortPhysState::LinkUp.value())
    );
    assert_eq!(
        (rsp.active_mtu, rsp.gid_tbl_len, rsp.pkey_tbl_len),
        (Mtu::Mtu4096.value(), 256, 1)
    );
    vm.device.set_link(false);
    vm.device.set_link(false);
    vm.sink.expect(EventKind::Async(AsyncEvent::PortErr), 1);
    let rsp = vm.call(CmdQueryPort { port: 1 }).unwrap();
    assert_eq!(
        (rsp.state, rsp.phys_state),
        (PortState::Down.value(), PortPhysState::Disabled.value())
    );
    vm.device.set_link(true);
    vm.sink.expect(EventKind::Async(AsyncEvent::PortActive), 1);
    assert!(vm.sink.is_empty(), "one event a change");
    for port in [0, 2] {
        assert_eq!(vm.call(CmdQueryPort { port }).err(), Some(EINVAL));
        let port = port.into();
        assert_eq!(vm.call(CmdQueryPkey { port, index: 0 }).err(), Some(EINVAL));
    }
    assert_eq!(
        vm.call(CmdQueryPkey { port: 1, index: 0 }).unwrap().pkey,
        DEFAULT_PKEY
    );
    assert_eq!(
        vm.call(CmdQueryPkey { port: 1, index: 1 }).err(),
        Some(EINVAL)
    );
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
    assert_eq!(add(0, 2, 1, vm.gid), None);
    assert_eq!(add(0, 2, 1, vm.gid), Some(EEXIST));
    assert_eq!(add(255, 2, 1, [1; 16]), None);
    assert_eq!(add(256, 2, 1, vm.gid), Some(EINVAL));
    assert_eq!(add(2, 1, 1, vm.gid), Some(EOPNOTSUPP), "RoCE v1");
    assert_eq!(add(2, 3, 1, vm.gid), Some(EINVAL));
    assert_eq!(add(2, 2, 2, vm.gid), Some(EINVAL), "port");
    assert_eq!(add(2, 2, 1, [0; 16]), Some(EINVAL), "no GID");
    assert_eq!(del(0, 1), None);
    assert_eq!(del(0, 1), None, "clear already");
    assert_eq!(del(256, 1), Some(EINVAL));
    assert_eq!(del(0, 0), Some(EINVAL));
    assert_eq!(add(0, 2, 1, vm.gid), None);
}

fn register(vm: &Vm, change: impl FnOnce(&mut CmdRegUserMr)) -> Result<RspMr, u8> {
    let at = vm.alloc(4096);
    let mut cmd = CmdRegUserMr {
        pdn: vm.pdn,
        access_flags: FULL,
        start: 0x1000_0010,
        length: 100,
        virt_addr: 0x1000_0010,
        pages: vm.page_list(&[at]),
        npages: 1,
    };
    change(&mut cmd);
    vm.call(cmd)
}

#[test]
fn memory_regions() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let err = |change: fn(&mut CmdRegUserMr)| register(vm, change).err();
    assert_eq!(err(|_| ()), None);
    assert_eq!(err(|cmd| cmd.pdn = 99), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.length = 0), Some(EINVAL));
    assert_eq!(
        err(|cmd| cmd.length = 4096),
        Some(EINVAL),
        "longer than its pages"
    );
    assert_eq!(err(|cmd| cmd.length = u64::MAX), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.npages = 0), Some(EINVAL));
    assert_eq!(
        err(|cmd| cmd.virt_addr = u64::MAX - 98),
        Some(EINVAL),
        "ends beyond the address space"
    );
    assert_eq!(err(|cmd| cmd.virt_addr = u64::MAX - 99), None);
    assert_eq!(err(|cmd| cmd.pages = 1 << 40), Some(EFAULT));
    assert_eq!(err(|cmd| cmd.npages = u32::MAX), Some(ENOMEM));
    assert_eq!(
        err(|cmd| cmd.access_flags = AccessFlags::REMOTE_WRITE),
        Some(EINVAL)
    );
    assert_eq!(
        err(|cmd| cmd.access_flags = AccessFlags(1 << 30)),
        Some(EINVAL)
    );
    assert_eq!(
        err(|cmd| cmd.access_flags = AccessFlags::MW_BIND),
        Some(EOPNOTSUPP)
    );
    assert_eq!(
        err(|cmd| cmd.access_flags = AccessFlags::ON_DEMAND),
        Some(EOPNOTSUPP)
    );
    let mr = register(vm, |_| ()).unwrap();
    assert_eq!(vm.call(CmdDeregMr { mrn: mr.mrn }).err(), None);
    assert_eq!(vm.call(CmdDeregMr { mrn: mr.mrn }).err(), Some(EINVAL));
    let dma = |pdn, access_flags| vm.call(CmdGetDmaMr { pdn, access_flags }).err();
    assert_eq!(dma(vm.pdn, AccessFlags::LOCAL_WRITE), None);
    assert_eq!(dma(0, AccessFlags::LOCAL_WRITE), Some(EINVAL));
}

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
    assert_eq!(destroy(0), Some(EINVAL));
}

fn create_cq(vm: &Vm) -> CmdCreateCqRing {
    CmdCreateCqRing {
        base: CmdCreateCq { cqe: 100 },
        flags: CreateFlags::NONE,
        ring: Ring::new(vm, 128, 6).addr,
        doorbell_page: 0,
        event_queue: 1,
        cookie: 1,
        reserved: [0; 8],
    }
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
    assert_eq!(err(|_| ()), None);
    assert_eq!(err(|cmd| cmd.base.cqe = 0), Some(EINVAL));
    assert_eq!(
        err(|cmd| cmd.base.cqe = 129),
        Some(EINVAL),
        "more than slots"
    );
    assert_eq!(err(|cmd| cmd.ring.slots = 100), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.ring.slots = 0), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.ring.slots = 512), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.ring.slot_shift = 7), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.ring.page_shift = 11), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.ring.page_shift = 64), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.ring.npages -= 1), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.ring.reserved[5] = 1), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.ring.pages = 1 << 40), Some(EFAULT));
    assert_eq!(err(|cmd| cmd.flags = CreateFlags(2)), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.reserved[0] = 1), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.doorbell_page = 4096), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.event_queue = 0), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.event_queue = 5), Some(EINVAL));
    let mut unmapped = create_cq(vm);
    unmapped.ring.pages = vm.page_list(&[1 << 40; 4]);
    assert_eq!(vm.call(unmapped).err(), Some(EFAULT));
    let cq = Cq::new(vm, 64);
    let qp = Qp::new(vm, &cq, &cq, Options::default());
    assert_eq!(cq.destroy().err(), Some(EBUSY));
    qp.destroy().unwrap();
    cq.destroy().unwrap();
    assert_eq!(cq.destroy().err(), Some(EINVAL));
}

fn create_qp(vm: &Vm, cq: &Cq<'_>) -> CmdCreateQpRings {
    CmdCreateQpRings {
        base: CmdCreateQp {
            pdn: vm.pdn,
            qp_type: QpType::Rc.value(),
            sq_sig_type: 0,
            max_send_wr: 60,
            max_send_sge: 3,
            send_cqn: cq.cqn,
            max_recv_wr: 60,
            max_recv_sge: 3,
            recv_cqn: cq.cqn,
            max_inline_data: 37,
            flags: CreateFlags::USER,
            reserved: [0; 28],
        },
        sq: Ring::new(vm, 64, 7).addr,
        rq: Ring::new(vm, 64, 6).addr,
        doorbell_page: 1,
        cookie: 1,
    }
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
    assert_eq!(err(|_| ()), None);
    for qp_type in [QpType::Smi, QpType::Gsi, QpType::Uc, QpType::Ud] {
        let mut cmd = create_qp(vm, &cq);
        cmd.base.qp_type = qp_type.value();
        assert_eq!(vm.call(cmd).err(), Some(EOPNOTSUPP));
    }
    assert_eq!(err(|cmd| cmd.base.qp_type = 77), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.base.sq_sig_type = 2), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.base.pdn = 99), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.base.send_cqn = 99), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.base.recv_cqn = 99), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.base.max_send_wr = 65), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.base.max_recv_wr = 65), Some(EINVAL));
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
    assert_eq!(err(|cmd| cmd.base.max_send_sge = u32::MAX), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.base.max_inline_data = u32::MAX), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.base.flags = CreateFlags(6)), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.base.reserved[27] = 1), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.doorbell_page = 4096), Some(EINVAL));
    assert_eq!(err(|cmd| cmd.sq = RingAddr::ZERO), Some(EINVAL));
    assert_eq!(
        err(|cmd| cmd.rq = RingAddr::ZERO),
        Some(EINVAL),
        "receives without an RQ"
    );
    let without_rq = |cmd: &mut CmdCreateQpRings| {
        cmd.rq = RingAddr::ZERO;
        cmd.base.max_recv_wr = 0;
    };
    assert_eq!(err(without_rq), None);
    let qp = Qp::new(vm, &cq, &cq, Options::default());
    qp.destroy().unwrap();
    assert_eq!(qp.destroy().err(), Some(EINVAL));
    let gone = CmdQueryQp {
        qpn: qp.qpn,
        attr_mask: QpAttrMask::STATE,
    };
    assert_eq!(vm.call(gone).err(), Some(EINVAL));
    assert_eq!(qp.to_init(), Err(EINVAL));
}

#[test]
fn query_returns_what_was_set() {
    let world = World::new(2, PathPolicy::Direct);
    let [a, b] = [&world.vms[0], &world.vms[1]];
    let cq = Cq::new(a, 64);
    let qp = Qp::new(a, &cq, &cq, Options::default());
    assert_eq!(qp.state(), QpState::Reset);
    qp.to_init().unwrap();
    qp.to_rtr(b, 1234).unwrap();
    assert_eq!(qp.state(), QpState::Rtr);
    qp.to_rts().unwrap();
    let attr = qp.query();
    assert_eq!(
        (attr.qp_state, attr.cur_qp_state),
        (QpState::Rts.value(), QpState::Rts.value())
    );
    assert_eq!(
        (attr.path_mtu, attr.dest_qp_num),
        (Mtu::Mtu1024.value(), 1234)
    );
    assert_eq!((attr.rq_psn, attr.sq_psn), (0xff_fff0, 0xff_fff0));
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (12, 7, 7));
    assert_eq!(
        (
            attr.max_rd_atomic,
            attr.max_dest_rd_atomic,
            attr.min_rnr_timer
        ),
        (4, 4, 1)
    );
    assert_eq!((attr.qp_access_flags, attr.port_num), (FULL, 1));
    assert_eq!((attr.ah_attr.dmac, attr.ah_attr.grh.dgid), (b.mac, b.gid));
    assert_eq!(
        (
            attr.cap.max_send_wr,
            attr.cap.max_recv_sge,
            attr.cap.max_inline_data
        ),
        (64, 4, 200)
    );
    qp.to(QpState::Reset);
    assert_eq!(qp.query().dest_qp_num, 0);
}

#[test]
fn steps_and_values_of_modify() {
    let world = World::new(2, PathPolicy::Direct);
    let [a, b] = [&world.vms[0], &world.vms[1]];
    let cq = Cq::new(a, 64);
    let qp = Qp::new(a, &cq, &cq, Options::default());
    assert_eq!(qp.to_rtr(b, 5), Err(EINVAL), "RESET to RTR");
    assert_eq!(
        qp.modify(QpState::Init, QpAttrMask::NONE, QpAttr::ZERO),
        Err(EINVAL),
        "attributes are missing"
    );
    let mask = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    let good = QpAttr {
        port_num: 1,
        ..QpAttr::ZERO
    };
    for bad in [
        QpAttr {
            port_num: 2,
            ..good
        },
        QpAttr {
            pkey_index: 1,
            ..good
        },
        QpAttr {
            qp_access_flags: AccessFlags(1 << 31),
            ..good
        },
    ] {
        assert_eq!(qp.modify(QpState::Init, mask, bad), Err(EINVAL));
    }
    let wrong_current = QpAttr {
        cur_qp_state: QpState::Rts.value(),
        ..good
    };
    assert_eq!(
        qp.modify(QpState::Init, mask | QpAttrMask::CUR_STATE, wrong_current),
        Err(EINVAL)
    );
    assert_eq!(qp.state(), QpState::Reset, "a refused step changes nothing");
    qp.to_init().unwrap();
    qp.to_init().unwrap();
    assert_eq!(qp.to_rts(), Err(EINVAL), "INIT to RTS");
    assert_eq!(qp.to_rtr(b, 0), Err(EINVAL), "QPN 0");
    assert_eq!(qp.to_rtr(b, 1 << 24), Err(EINVAL), "QPN of 25 bits");
    qp.to_rtr(b, 5).unwrap();
    qp.to_rts().unwrap();
    let alternate = qp.modify(QpState::Rts, QpAttrMask::ALT_PATH, QpAttr::ZERO);
    assert_eq!(alternate, Err(EOPNOTSUPP));
    qp.to(QpState::Err);
    assert_eq!(qp.to_init(), Err(EINVAL), "ERR to INIT");
    qp.to(QpState::Reset);
    qp.to_init().unwrap();
}

#[test]
fn address_vectors() {
    let world = World::new(2, PathPolicy::Direct);
    let [a, b] = [&world.vms[0], &world.vms[1]];
    let cq = Cq::new(a, 64);
    let qp = Qp::new(a, &cq, &cq, Options::default());
    qp.to_init().unwrap();
    qp.to_rtr(b, 5).unwrap();
    let good = qp.query();
    let mask = QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN
        | QpAttrMask::MAX_DEST_RD_ATOMIC
        | QpAttrMask::MIN_RNR_TIMER;
    let with = |change: fn(&mut AhAttr)| {
        qp.to(QpState::Reset);
        qp.to_init().unwrap();
        let mut attr = good;
        change(&mut attr.ah_attr);
        qp.modify(QpState::Rtr, mask, attr)
    };
    assert_eq!(with(|_| ()), Ok(()));
    assert_eq!(
        with(|ah| ah.ah_flags = AhFlags::NONE),
        Err(EINVAL),
        "no GRH"
    );
    assert_eq!(with(|ah| ah.port_num = 2), Err(EINVAL));
    assert_eq!(with(|ah| ah.sl = 16), Err(EINVAL));
    assert_eq!(with(|ah| ah.grh.flow_label = 1 << 20), Err(EINVAL));
    assert_eq!(with(|ah| ah.grh.sgid_index = 7), Err(EINVAL), "no such GID");
    assert_eq!(
        with(|ah| ah.grh.dgid = [0x20; 16]),
        Err(EINVAL),
        "IPv6 from IPv4"
    );
    assert_eq!(with(|ah| ah.dmac = [0; 6]), Err(EINVAL));
    assert_eq!(with(|ah| ah.dmac[0] |= 1), Err(EINVAL), "multicast");
    for (change, name) in [
        ((|attr| attr.path_mtu = 6) as fn(&mut QpAttr), "MTU"),
        (|attr| attr.path_mtu = 0, "MTU"),
        (|attr| attr.min_rnr_timer = 32, "RNR timer"),
        (|attr| attr.max_dest_rd_atomic = 17, "READs"),
    ] {
        let mut attr = good;
        change(&mut attr);
        qp.to(QpState::Reset);
        qp.to_init().unwrap();
        assert_eq!(qp.modify(QpState::Rtr, mask, attr), Err(EINVAL), "{name}");
    }
}

#[test]
fn a_connection_outlives_its_gid() {
    let world = World::new(2, PathPolicy::Direct);
    let [a, b] = [&world.vms[0], &world.vms[1]];
    let cq = Cq::new(a, 64);
    let qp = Qp::new(a, &cq, &cq, Options::default());
    qp.to_init().unwrap();
    qp.to_rtr(b, 5).unwrap();
    a.call(CmdDelGid { index: 1, port: 1 }).unwrap();
    qp.to_rts().unwrap();
    qp.to(QpState::Sqd);
    let av = qp.query();
    assert_eq!(
        qp.modify(QpState::Sqd, QpAttrMask::AV, av),
        Err(EINVAL),
        "a new path needs it"
    );
}

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
        qp.ring_doorbell(DoorbellKind::Sq);
        qp.destroy().unwrap();
        vm.call(CmdDestroyPd { pdn }).unwrap();
    }
}

#[test]
fn reset_forgets_everything() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 64);
    let qp = Qp::new(vm, &cq, &cq, Options::default());
    let mr = vm.mr(64);
    vm.device.reset();
    assert_eq!(qp.destroy().err(), Some(EINVAL));
    assert_eq!(cq.destroy().err(), Some(EINVAL));
    assert_eq!(vm.call(CmdDeregMr { mrn: mr.mrn }).err(), Some(EINVAL));
    assert_eq!(vm.call(CmdDestroyPd { pdn: vm.pdn }).err(), Some(EINVAL));
    assert_eq!(
        vm.call(create_cq(vm)).err(),
        Some(EOPNOTSUPP),
        "features are to be negotiated again"
    );
}
