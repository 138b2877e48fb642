// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Each refusal of a command names the value that was wrong, and what would have been right.

use std::cell::RefCell;
use std::fmt::Debug;
use std::fs::File;
use std::net::IpAddr;

use recorder::{Reason, Refusal, What};
use roce::net::ip_to_gid;
use testkit::engine::*;
use verbs::{Clock, Limits, PathPolicy, RuntimeConfig};
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::feature::{Feature, Features};
use virtio_rdma_abi::ib::{AccessFlags, AhFlags, QpAttrMask, QpState, QpType};
use virtio_rdma_abi::number::{CounterSetNumber, Cqn, MrNumber, MwNumber, Pdn, Qpn, Srqn};
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_abi::ring::{RingAddr, RingKind};
use virtio_rdma_abi::wire::Wire;
use virtqueue::Split;

use crate::commands::{create_cq, create_qp};

/// A number that no object has.
const NONE: u32 = 0xff_fff0;

/// The refusals that the test has seen.
#[derive(Default)]
struct Seen(RefCell<Vec<Refusal>>);

impl Seen {
    /// Fails unless the device refused the last command of `vm` for the reason in `text`.
    #[track_caller]
    fn told<T: Debug>(&self, vm: &Vm, result: Result<T, u8>, text: &str) {
        let errno = result.expect_err(text);
        let last = vm.hca.recorder().last_refusal().expect(text);
        let refusal = last.event.refusal().expect(text);
        assert_eq!(refusal.to_string(), text);
        assert_eq!(refusal.errno().value(), errno, "{text}");
        self.0.borrow_mut().push(refusal);
    }

    /// Checks a command after each of some changes.
    #[track_caller]
    fn told_each<R: ControlCommand + Copy>(&self, vm: &Vm, good: R, cases: &[Case<R>])
    where
        R::Response: Debug,
    {
        for (change, text) in cases {
            let mut request = good;
            change(&mut request);
            self.told(vm, vm.call(request), text);
        }
    }
}

/// A change of a request, and the reason for which the changed request is refused.
type Case<'a, R> = (&'a dyn Fn(&mut R), &'a str);

fn world(limits: Limits) -> World {
    let config = RuntimeConfig {
        path: PathPolicy::Direct,
        clock: Clock::manual(),
        ..RuntimeConfig::default()
    };
    World::with_config(2, config, limits)
}

fn raw(vm: &Vm, request: &[u8], room: usize) -> Result<(), u8> {
    let mut response = Vec::new();
    vm.hca.command(request, room, &mut response);
    match response[0] {
        RESPONSE_OK => Ok(()),
        errno => Err(errno),
    }
}

fn requests(seen: &Seen) {
    let world = world(Limits::default());
    let vm = &world.vms[0];
    let query = Command::QueryPort.value();
    let short = "length of the request is 1, at least 2 is needed";
    seen.told(vm, raw(vm, &[query], 1000), short);
    let empty = "length of the request is 0, at least 1 is needed";
    seen.told(vm, raw(vm, &[], 1000), empty);
    let narrow = "room for the response is 100, at least 162 is needed";
    seen.told(vm, raw(vm, &[query, 1], 100), narrow);
    seen.told(vm, raw(vm, &[99], 1000), "command 99 is not supported");
    let window = CmdAllocMw {
        pdn: vm.pdn,
        mw_type: 1,
        reserved: [0; 3],
    };
    let feature = "command ALLOC_MW needs the feature mem-windows";
    seen.told(vm, vm.call(window), feature);
    vm.negotiate(&[Feature::RegPages]);
    let map = vm.call(CmdMapMrSg::ZERO);
    let replaced = "command MAP_MR_SG is not possible with the feature reg-pages";
    seen.told(vm, map, replaced);
    vm.hca.fail("planted");
    let failed = "the device has failed";
    seen.told(vm, vm.call(CmdQueryPort { port: 1 }), failed);
}

fn port_and_gids(seen: &Seen) {
    let world = world(Limits::default());
    let [vm, other] = [&world.vms[0], &world.vms[1]];
    vm.negotiate(&[Feature::GidVlan, Feature::PortState]);
    let query = vm.call(CmdQueryPort { port: 2 });
    seen.told(vm, query, "port is 2, but must be 1");
    let pkey = vm.call(CmdQueryPkey { port: 1, index: 3 });
    seen.told(vm, pkey, "index is 3, at most 0 is possible");
    let up = CmdSetPort {
        port: 1,
        state: 4,
        mtu: 1500,
    };
    let states: [Case<'_, CmdSetPort>; 2] = [
        (&|cmd| cmd.state = 9, "state is 9, which is not defined"),
        (&|cmd| cmd.state = 2, "state 2 does not take this command"),
    ];
    seen.told_each(vm, up, &states);
    let gid = |ip: &str| ip_to_gid(ip.parse::<IpAddr>().unwrap());
    let good = CmdAddGidVlan {
        base: CmdAddGid {
            gid: vm.gid,
            gid_type: 2,
            index: 2,
            port_num: 1,
        },
        vlan: 5,
    };
    let (group, theirs) = (gid("ff02::1"), other.gid);
    let cases: [Case<'_, CmdAddGidVlan>; 7] = [
        (
            &|cmd| cmd.base.index = 256,
            "index is 256, at most 255 is possible",
        ),
        (&|cmd| cmd.base.index = 1, "index 1 is there already"),
        (&|cmd| cmd.base.gid_type = 1, "gid_type 1 is not supported"),
        (
            &|cmd| cmd.base.gid_type = 3,
            "gid_type is 3, which is not defined",
        ),
        (
            &|cmd| cmd.vlan = 4095,
            "vlan is 4095, at most 4094 is possible",
        ),
        (
            &|cmd| cmd.base.gid = group,
            "gid is ff02::1, which is not the address of one host",
        ),
        (
            &|cmd| (cmd.base.gid, cmd.vlan) = (theirs, 0xffff),
            "gid 10.0.0.2 belongs to another port",
        ),
    ];
    seen.told_each(vm, good, &cases);
    let restricted = Vm::with_addresses(
        3,
        &world.runtime,
        world.net.port(mac(3)),
        &Limits::default(),
        &["10.0.0.3".parse().unwrap()],
    );
    let foreign = restricted.call(CmdAddGid {
        gid: gid("10.9.0.9"),
        ..good.base
    });
    seen.told(&restricted, foreign, "gid 10.9.0.9 is not permitted");
    restricted.hca.detach();
}

fn completion_queues(seen: &Seen) {
    let world = world(Limits {
        max_cqe: 256,
        ..Limits::default()
    });
    let vm = &world.vms[0];
    vm.negotiate(&[Feature::CqModeration]);
    let good = create_cq(vm);
    let slots = good.ring;
    let large = Ring::new(vm, RingKind::Completion, 512, 6).addr;
    let unmapped = vm.page_list(&[1 << 40; 8]);
    let pages = format!("DMA address {:#x} is not mapped", 1u64 << 40);
    let misaligned = vm.page_list(&[0x1008; 8]);
    let last = vm.page_list(&[!0xfff; 8]);
    let cases: [Case<'_, CmdCreateCqRing>; 22] = [
        (
            &|cmd| cmd.flags = CreateFlags(3),
            "flags is 0x3, whose bits 0x2 are not defined here",
        ),
        (
            &|cmd| cmd.reserved[7] = 0x55,
            "reserved is 0x55, but must be 0x0",
        ),
        (
            &|cmd| cmd.doorbell_page = 4096,
            "doorbell_page is 4096, at most 4095 is possible",
        ),
        (
            &|cmd| cmd.event_queue = 0,
            "event_queue is 0, at least 1 is needed",
        ),
        (
            &|cmd| cmd.event_queue = 5,
            "event_queue is 5, at most 4 is possible",
        ),
        (&|cmd| cmd.base.cqe = 0, "cqe is 0, at least 1 is needed"),
        (
            &|cmd| cmd.base.cqe = 300,
            "cqe is 300, at most 256 is possible",
        ),
        (
            &|cmd| cmd.base.cqe = 129,
            "cqe is 129, at most 128 is possible",
        ),
        (
            &|cmd| cmd.ring = large,
            "slots is 512, at most 256 is possible",
        ),
        (
            &|cmd| (cmd.ring.slots, cmd.base.cqe) = (1, 1),
            "slots is 1, at least 2 is needed",
        ),
        (
            &|cmd| cmd.ring.slots = 100,
            "slots is 100, which is no power of two",
        ),
        (
            &|cmd| cmd.ring.slot_shift = 7,
            "slot_shift is 7, at most 6 is possible",
        ),
        (
            &|cmd| cmd.ring.slot_shift = 5,
            "slot_shift is 5, at least 6 is needed",
        ),
        (
            &|cmd| cmd.ring.page_shift = 11,
            "page_shift is 11, at least 12 is needed",
        ),
        (
            &|cmd| cmd.ring.page_shift = 31,
            "page_shift is 31, at most 30 is possible",
        ),
        (
            &|cmd| cmd.ring.depth = 2,
            "depth is 2, which is not defined",
        ),
        (
            &|cmd| cmd.ring.reserved[4] = 1,
            "reserved is 0x1, but must be 0x0",
        ),
        (
            &|cmd| cmd.ring.npages = slots.npages - 1,
            "npages is 2, at least 3 is needed",
        ),
        (
            &|cmd| cmd.ring.pages = 1 << 40,
            "pages 0x10000000000 is not mapped",
        ),
        (&|cmd| cmd.ring.pages = unmapped, &pages),
        (
            &|cmd| cmd.ring.pages = misaligned,
            "page is 0x1008, which is no multiple of 0x1000",
        ),
        (
            &|cmd| cmd.ring.pages = last,
            "page is 0xfffffffffffff000, from which 0x1000 bytes exceed the address space",
        ),
    ];
    assert_eq!(slots.npages, 3);
    seen.told_each(vm, good, &cases);

    let cq = Cq::new(vm, 64);
    let moderation = CmdModifyCq {
        cqn: cq.cqn,
        count: 1,
        period: 1,
    };
    let cases: [Case<'_, CmdModifyCq>; 3] = [
        (
            &|cmd| cmd.count = 1 << 16,
            "count is 65536, at most 65535 is possible",
        ),
        (
            &|cmd| cmd.period = 1 << 16,
            "period is 65536, at most 65535 is possible",
        ),
        (&|cmd| cmd.cqn = Cqn::new(NONE), "there is no cqn 16777200"),
    ];
    seen.told_each(vm, moderation, &cases);
    let qp = Qp::new(vm, &cq, &cq, Options::default());
    let in_use = format!("cqn {} is in use", cq.cqn);
    seen.told(vm, cq.destroy(), &in_use);
    qp.destroy().unwrap();
    cq.ring.set_owner(1 << 20);
    let failed = format!("cqn {} has failed or is revoked", cq.cqn);
    seen.told(vm, cq.begin_resize(64, 64).map(|_| ()), &failed);
}

/// Commands in virtqueue mode.
fn virtqueues(seen: &Seen) {
    let world = world(Limits::default());
    let vm = &world.vms[0];
    vm.hca.set_features(Features::NONE);
    let create = || vm.call(CmdCreateCq { cqe: 2 });
    let full = format!("cqn: all {} are in use", mode::config(vm).max_cq);
    seen.told(vm, create(), &full);
    let queue = mode::numbers(vm).cq(Cqn::new(0));
    let enable = |size| {
        let split = Split {
            size,
            descriptors: 1 << 40,
            available: 1 << 40,
            used: 1 << 40,
            indirect: true,
        };
        vm.sink.enable(queue, split);
    };
    enable(3);
    let text = "size of the virtqueue is 3, which is no power of two";
    seen.told(vm, create(), text);
    enable(1);
    let text = "size of the virtqueue is 1, at least 2 is needed";
    seen.told(vm, create(), text);
    enable(4);
    let text = format!("virtqueue {} is not mapped", queue.unwrap());
    seen.told(vm, create(), &text);
}

fn queue_pairs(seen: &Seen) {
    let world = world(Limits::default());
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 64);
    let srq = Srq::new(vm, 64);
    let srqn = srq.srqn;
    let good = create_qp(vm, &cq);
    let gsi = QpType::Gsi.value();
    let set = |flag: CreateFlags| CreateFlags::USER | flag;
    let cases: [Case<'_, CmdCreateQpRings>; 26] = [
        (
            &|cmd| cmd.base.max_send_wr = 40_000,
            "max_send_wr is 40000, at most 32768 is possible",
        ),
        (
            &|cmd| cmd.base.max_send_wr = 65,
            "max_send_wr is 65, at most 64 is possible",
        ),
        (
            &|cmd| cmd.base.max_recv_wr = 65,
            "max_recv_wr is 65, at most 64 is possible",
        ),
        (
            &|cmd| cmd.base.max_send_sge = 33,
            "max_send_sge is 33, at most 32 is possible",
        ),
        (
            &|cmd| cmd.base.max_recv_sge = 33,
            "max_recv_sge is 33, at most 32 is possible",
        ),
        (
            &|cmd| cmd.base.max_inline_data = 1025,
            "max_inline_data is 1025, at most 1024 is possible",
        ),
        (
            &|cmd| cmd.base.max_inline_data = 1024,
            "SQ: slot_shift is 7, at least 11 is needed",
        ),
        (
            &|cmd| cmd.base.qp_type = 77,
            "qp_type is 77, which is not defined",
        ),
        (&|cmd| cmd.base.qp_type = 0, "qp_type SMI is not supported"),
        (
            &|cmd| cmd.base.qp_type = gsi,
            "qp_type GSI is not permitted",
        ),
        (
            &|cmd| cmd.base.sq_sig_type = 2,
            "sq_sig_type is 2, which is not defined",
        ),
        (
            &|cmd| cmd.base.flags = CreateFlags(0x19),
            "flags is 0x19, whose bits 0x18 are not defined here",
        ),
        (
            &|cmd| cmd.base.flags = set(CreateFlags::BLOCK_MULTICAST_LOOPBACK),
            "qp_type is RC, but must be UD",
        ),
        (
            &|cmd| {
                cmd.base.qp_type = QpType::Ud.value();
                cmd.base.flags = set(CreateFlags::BLOCK_MULTICAST_LOOPBACK);
            },
            "flags is 0x3, whose bits 0x2 are not defined here",
        ),
        (
            &|cmd| cmd.base.reserved[23] = 2,
            "reserved is 0x2, but must be 0x0",
        ),
        (
            &|cmd| cmd.doorbell_page = 4096,
            "doorbell_page is 4096, at most 4095 is possible",
        ),
        (
            &|cmd| cmd.base.pdn = Pdn::new(NONE),
            "there is no pdn 16777200",
        ),
        (
            &|cmd| cmd.base.send_cqn = Cqn::new(NONE),
            "there is no send_cqn 16777200",
        ),
        (
            &|cmd| cmd.base.recv_cqn = Cqn::new(NONE),
            "there is no recv_cqn 16777200",
        ),
        (
            &|cmd| cmd.base.srqn = Srqn::new(5),
            "srqn is 5, but flags or mask lack the bit for it",
        ),
        (
            &|cmd| {
                cmd.base.flags = set(CreateFlags::SRQ);
                (cmd.base.max_recv_wr, cmd.base.max_recv_sge) = (0, 0);
                cmd.base.srqn = Srqn::new(NONE);
            },
            "there is no srqn 16777200",
        ),
        (
            &|cmd| (cmd.base.flags, cmd.base.srqn) = (set(CreateFlags::SRQ), srqn),
            "max_recv_wr is 60, but must be 0",
        ),
        (
            &|cmd| {
                cmd.base.flags = set(CreateFlags::SRQ);
                (cmd.base.max_recv_wr, cmd.base.srqn) = (0, srqn);
            },
            "max_recv_sge is 3, but must be 0",
        ),
        (
            &|cmd| {
                cmd.base.qp_type = gsi;
                (cmd.base.flags, cmd.base.srqn) = (CreateFlags::SRQ, srqn);
            },
            "qp_type GSI does not take this command",
        ),
        (
            &|cmd| cmd.sq.slots = 0,
            "max_send_wr is 60, at most 0 is possible",
        ),
        (
            &|cmd| (cmd.sq.slots, cmd.base.max_send_wr) = (0, 0),
            "SQ: slots is 0, at least 2 is needed",
        ),
    ];
    seen.told_each(vm, good, &cases);
    rings_of_queue_pairs(seen, vm, good);
    let gsi = Qp::new(vm, &cq, &cq, Options::of(QpType::Gsi));
    let mut second = good;
    (second.base.qp_type, second.base.flags) = (QpType::Gsi.value(), CreateFlags::NONE);
    seen.told(vm, vm.call(second), "qp_type GSI is there already");
    gsi.destroy().unwrap();
    seen.told(vm, gsi.destroy(), "there is no qpn 1");
}

/// A refusal because of a ring names the ring's queue.
fn rings_of_queue_pairs(seen: &Seen, vm: &Vm, good: CmdCreateQpRings) {
    type RingOf = fn(&mut CmdCreateQpRings) -> &mut RingAddr;
    type OfRing<'a> = (&'a dyn Fn(&mut RingAddr), &'a str);
    let unmapped = vm.page_list(&[1 << 40; 64]);
    let misaligned = vm.page_list(&[0x1008; 64]);
    let last = vm.page_list(&[!0xfff; 64]);
    let cases: [OfRing<'_>; 12] = [
        (
            &|ring| ring.slots = 1 << 16,
            "slots is 65536, at most 32768 is possible",
        ),
        (
            &|ring| ring.slots = 100,
            "slots is 100, which is no power of two",
        ),
        (
            &|ring| ring.slot_shift = 2,
            "slot_shift is 2, at least 6 is needed",
        ),
        (
            &|ring| ring.slot_shift = 31,
            "slot_shift is 31, at most 12 is possible",
        ),
        (
            &|ring| ring.page_shift = 11,
            "page_shift is 11, at least 12 is needed",
        ),
        (
            &|ring| ring.page_shift = 31,
            "page_shift is 31, at most 30 is possible",
        ),
        (&|ring| ring.depth = 2, "depth is 2, which is not defined"),
        (
            &|ring| ring.reserved[4] = 1,
            "reserved is 0x1, but must be 0x0",
        ),
        (
            &|ring| ring.pages = 1 << 40,
            "pages 0x10000000000 is not mapped",
        ),
        (
            &|ring| ring.pages = unmapped,
            "DMA address 0x10000000000 is not mapped",
        ),
        (
            &|ring| ring.pages = misaligned,
            "page is 0x1008, which is no multiple of 0x1000",
        ),
        (
            &|ring| ring.pages = last,
            "page is 0xfffffffffffff000, from which 0x1000 bytes exceed the address space",
        ),
    ];
    let rings: [(&str, RingOf); 2] = [("SQ", |cmd| &mut cmd.sq), ("RQ", |cmd| &mut cmd.rq)];
    for (queue, ring) in rings {
        for (change, text) in cases {
            let mut request = good;
            change(ring(&mut request));
            seen.told(vm, vm.call(request), &format!("{queue}: {text}"));
        }
        let mut request = good;
        let npages = ring(&mut request).npages;
        ring(&mut request).npages = npages - 1;
        let few = npages - 1;
        let text = format!("{queue}: npages is {few}, at least {npages} is needed");
        seen.told(vm, vm.call(request), &text);
    }
}

fn attributes(seen: &Seen) {
    let world = world(Limits::default());
    let [vm, peer] = [&world.vms[0], &world.vms[1]];
    let cq = Cq::new(vm, 64);
    let qp = Qp::new(vm, &cq, &cq, Options::default());
    let modify = |state, mask, attrs, text: &str| {
        seen.told(vm, qp.modify(state, mask, attrs), text);
    };
    let none = QpAttr::ZERO;

    // The states and the attributes of each step.
    let place = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    let step = "qp_state: there is no transition from RESET to RTS for this QP";
    modify(QpState::Rts, QpAttrMask::NONE, none, step);
    let states: [Case<'_, CmdModifyQp>; 4] = [
        (
            &|cmd| cmd.attrs.qp_state = 9,
            "qp_state is 9, which is not defined",
        ),
        (
            &|cmd| cmd.attr_mask = cmd.attr_mask | QpAttrMask::CUR_STATE,
            "cur_qp_state is RTS, but must be RESET",
        ),
        (
            &|cmd| {
                cmd.attrs.qp_state = QpState::Err.value();
                cmd.attr_mask = QpAttrMask::STATE | QpAttrMask::QKEY;
            },
            "qkey is in attr_mask, RESET to ERR does not permit it",
        ),
        (
            &|cmd| cmd.attr_mask = cmd.attr_mask | QpAttrMask(1 << 31),
            "attr_mask is 0x80000038, whose bits 0x80000000 are not defined here",
        ),
    ];
    let init = CmdModifyQp {
        qpn: qp.qpn,
        attr_mask: QpAttrMask::STATE | place,
        attrs: QpAttr {
            qp_state: QpState::Init.value(),
            cur_qp_state: QpState::Rts.value(),
            port_num: 1,
            ..none
        },
    };
    seen.told_each(vm, init, &states);
    let missing = |mask, what| {
        let text = format!("{what} is missing in attr_mask, RESET to INIT needs it");
        modify(QpState::Init, place.without(mask), none, &text);
    };
    missing(QpAttrMask::PKEY_INDEX, "pkey_index");
    missing(QpAttrMask::PORT, "port_num");
    missing(QpAttrMask::ACCESS_FLAGS, "qp_access_flags");
    let changed = |change: &dyn Fn(&mut QpAttr), text: &str| {
        let mut attrs = init.attrs;
        change(&mut attrs);
        modify(QpState::Init, place, attrs, text);
    };
    changed(&|attr| attr.port_num = 2, "port_num is 2, but must be 1");
    changed(
        &|attr| attr.pkey_index = 1,
        "pkey_index is 1, but must be 0",
    );
    let undefined = "qp_access_flags is 0x80000000, whose bits 0x80000000 are not defined here";
    changed(
        &|attr| attr.qp_access_flags = AccessFlags(1 << 31),
        undefined,
    );
    qp.to_init().unwrap();

    let connecting = [
        (QpAttrMask::AV, "ah_attr"),
        (QpAttrMask::PATH_MTU, "path_mtu"),
        (QpAttrMask::DEST_QPN, "dest_qp_num"),
        (QpAttrMask::RQ_PSN, "rq_psn"),
        (QpAttrMask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic"),
        (QpAttrMask::MIN_RNR_TIMER, "min_rnr_timer"),
    ];
    let all = |steps: &[(QpAttrMask, &str)]| {
        let union = |all, (mask, _): &(QpAttrMask, &str)| all | *mask;
        steps.iter().fold(QpAttrMask::NONE, union)
    };
    let to_rtr = all(&connecting);
    for (mask, what) in connecting {
        let text = format!("{what} is missing in attr_mask, INIT to RTR needs it");
        modify(QpState::Rtr, to_rtr.without(mask), none, &text);
    }
    qp.to_rtr(peer, Qpn::new(5)).unwrap();
    let good = qp.query();
    qp.to(QpState::Reset);
    qp.to_init().unwrap();
    let path = |change: &dyn Fn(&mut QpAttr), text: &str| {
        let mut attrs = good;
        change(&mut attrs);
        modify(QpState::Rtr, to_rtr, attrs, text);
    };
    path(
        &|attr| attr.path_mtu = 9,
        "path_mtu is 9, which is not defined",
    );
    path(
        &|attr| attr.dest_qp_num = Qpn::new(0),
        "dest_qp_num is 0, at least 1 is needed",
    );
    path(
        &|attr| attr.dest_qp_num = Qpn::new(1 << 24),
        "dest_qp_num is 16777216, at most 16777215 is possible",
    );
    path(
        &|attr| attr.min_rnr_timer = 32,
        "min_rnr_timer is 32, at most 31 is possible",
    );
    path(
        &|attr| attr.max_dest_rd_atomic = 129,
        "max_dest_rd_atomic is 129, at most 128 is possible",
    );
    path(
        &|attr| attr.ah_attr.ah_flags = AhFlags::NONE,
        "ah_flags is 0x0, but needs the bits 0x1",
    );
    path(
        &|attr| attr.ah_attr.port_num = 2,
        "port_num is 2, but must be 1",
    );
    path(
        &|attr| attr.ah_attr.sl = 16,
        "sl is 16, at most 15 is possible",
    );
    path(
        &|attr| attr.ah_attr.grh.flow_label = 1 << 20,
        "flow_label is 0x100000, at most 0xfffff is possible",
    );
    path(
        &|attr| attr.ah_attr.grh.sgid_index = 7,
        "there is no sgid_index 7",
    );
    path(
        &|attr| attr.ah_attr.grh.dgid = [0x20; 16],
        "dgid is 2020:2020:2020:2020:2020:2020:2020:2020, \
         but the source GID is of the other IP version",
    );
    path(
        &|attr| attr.ah_attr.grh.dgid = [0; 16],
        "dgid is ::, which is not the address of one host",
    );
    path(
        &|attr| attr.ah_attr.dmac = [1, 0, 0x5e, 0, 0, 1],
        "dmac is 01:00:5e:00:00:01, which is not the address of one host",
    );
    vm.negotiate(&[Feature::PortState]);
    let netdev = CmdSetPort {
        port: 1,
        state: 4,
        mtu: 1500,
    };
    vm.call(netdev).unwrap();
    path(
        &|attr| attr.path_mtu = 5,
        "path_mtu is MTU4096, at most MTU1024 is possible",
    );
    qp.to_rtr(peer, Qpn::new(5)).unwrap();

    let sending = [
        (QpAttrMask::TIMEOUT, "timeout"),
        (QpAttrMask::RETRY_CNT, "retry_cnt"),
        (QpAttrMask::RNR_RETRY, "rnr_retry"),
        (QpAttrMask::SQ_PSN, "sq_psn"),
        (QpAttrMask::MAX_QP_RD_ATOMIC, "max_rd_atomic"),
    ];
    let to_rts = all(&sending);
    for (mask, what) in sending {
        let text = format!("{what} is missing in attr_mask, RTR to RTS needs it");
        modify(QpState::Rts, to_rts.without(mask), none, &text);
    }
    for (mask, what) in [
        (QpAttrMask::ALT_PATH, "alt_ah_attr"),
        (QpAttrMask::PATH_MIG_STATE, "path_mig_state"),
        (QpAttrMask::CAP, "cap"),
        (QpAttrMask::RATE_LIMIT, "rate_limit"),
    ] {
        let text = format!("{what} in attr_mask is not supported or negotiated");
        modify(QpState::Rts, to_rts | mask, none, &text);
    }
    vm.negotiate(&[Feature::RateLimit]);
    let send = |change: &dyn Fn(&mut QpAttr), text: &str| {
        let mut attrs = none;
        change(&mut attrs);
        modify(QpState::Rts, to_rts | QpAttrMask::RATE_LIMIT, attrs, text);
    };
    send(
        &|attr| attr.timeout = 32,
        "timeout is 32, at most 31 is possible",
    );
    send(
        &|attr| attr.retry_cnt = 8,
        "retry_cnt is 8, at most 7 is possible",
    );
    send(
        &|attr| attr.rnr_retry = 8,
        "rnr_retry is 8, at most 7 is possible",
    );
    send(
        &|attr| attr.max_rd_atomic = 129,
        "max_rd_atomic is 129, at most 128 is possible",
    );
    send(
        &|attr| attr.rate_limit = 99,
        "rate_limit is 99, at least 100 is needed",
    );
    qp.to_rts().unwrap();
    let notify = QpAttr {
        en_sqd_async_notify: 2,
        ..none
    };
    let text = "en_sqd_async_notify is 2, at most 1 is possible";
    modify(QpState::Sqd, QpAttrMask::EN_SQD_ASYNC_NOTIFY, notify, text);
    rates(seen, &qp);
}

fn rates(seen: &Seen, qp: &Qp<'_>) {
    let vm = qp.vm;
    let good = CmdSetRateLimit {
        qpn: qp.qpn,
        rate_limit: 1000,
        max_burst_size: 0,
        typical_packet_size: 0,
        reserved: [0; 2],
    };
    let cases: [Case<'_, CmdSetRateLimit>; 6] = [
        (
            &|cmd| cmd.rate_limit = 100_000_001,
            "rate_limit is 100000001, at most 100000000 is possible",
        ),
        (
            &|cmd| cmd.max_burst_size = 1 << 21,
            "max_burst_size is 2097152, at most 1048576 is possible",
        ),
        (
            &|cmd| (cmd.rate_limit, cmd.max_burst_size) = (0, 1),
            "max_burst_size is 1, but must be 0",
        ),
        (
            &|cmd| (cmd.rate_limit, cmd.typical_packet_size) = (0, 64),
            "typical_packet_size is 64, but must be 0",
        ),
        (
            &|cmd| cmd.reserved[1] = 3,
            "reserved is 0x3, but must be 0x0",
        ),
        (&|cmd| cmd.qpn = Qpn::new(NONE), "there is no qpn 16777200"),
    ];
    seen.told_each(vm, good, &cases);
    qp.to(QpState::Err);
    seen.told(vm, vm.call(good), "qp_state ERR does not take this command");
}

/// A QP in SQD has work requests in progress.
fn draining(seen: &Seen) {
    let world = world(Limits::default());
    let p = Pair::new(&world);
    p.qa.post(&p.send(1, 64));
    world.runtime.advance(std::time::Duration::ZERO);
    p.qa.to(QpState::Sqd);
    let again = p.qa.modify(QpState::Sqd, QpAttrMask::NONE, QpAttr::ZERO);
    let text = format!("the SQ of qpn {} is not drained", p.qa.qpn);
    seen.told(p.a, again, &text);
}

fn shared_receive_queues(seen: &Seen) {
    let world = world(Limits::default());
    let vm = &world.vms[0];
    let good = srq::request(vm, vm.pdn, &srq::ring(vm, 64));
    let cases: [Case<'_, CmdCreateSrq>; 4] = [
        (
            &|cmd| cmd.flags = CreateFlags::SRQ,
            "flags is 0x4, whose bits 0x4 are not defined here",
        ),
        (
            &|cmd| cmd.max_sge = 33,
            "max_sge is 33, at most 32 is possible",
        ),
        (&|cmd| cmd.max_wr = 0, "max_wr is 0, at least 1 is needed"),
        (
            &|cmd| cmd.max_wr = 40_000,
            "max_wr is 40000, at most 32768 is possible",
        ),
    ];
    seen.told_each(vm, good, &cases);
    let srq = Srq::new(vm, 64);
    let small = srq::ring(vm, 32).addr;
    let change = CmdModifySrq {
        srqn: srq.srqn,
        attr_mask: SrqAttrMask::NONE,
        max_wr: 0,
        limit: 0,
        ring: RingAddr::ZERO,
    };
    let cases: [Case<'_, CmdModifySrq>; 6] = [
        (
            &|cmd| cmd.attr_mask = SrqAttrMask(0x14),
            "attr_mask is 0x14, whose bits 0x14 are not defined here",
        ),
        (
            &|cmd| cmd.max_wr = 5,
            "max_wr is 5, but flags or mask lack the bit for it",
        ),
        (
            &|cmd| cmd.ring.pages = 0x7000,
            "ring is 0x7000, but flags or mask lack the bit for it",
        ),
        (
            &|cmd| cmd.limit = 5,
            "limit is 5, but flags or mask lack the bit for it",
        ),
        (
            &|cmd| (cmd.attr_mask, cmd.limit) = (SrqAttrMask::LIMIT, 65),
            "limit is 65, at most 64 is possible",
        ),
        (
            &|cmd| {
                cmd.attr_mask = SrqAttrMask::MAX_WR;
                (cmd.max_wr, cmd.ring) = (32, small);
            },
            "slots is 32, at least 64 is needed",
        ),
    ];
    seen.told_each(vm, change, &cases);
    let cq = Cq::new(vm, 64);
    let qp = Qp::with_srq(vm, &cq, srq.srqn, Options::default()).unwrap();
    let in_use = format!("srqn {} is in use", srq.srqn);
    seen.told(vm, srq.destroy(), &in_use);
    qp.destroy().unwrap();
}

fn memory(seen: &Seen) {
    let world = world(Limits::default());
    let vm = &world.vms[0];
    vm.negotiate(&[Feature::MrPages, Feature::MemWindows, Feature::Peers]);
    let at = vm.alloc(4096);
    let list = vm.page_list(&[at]);
    let good = CmdRegUserMrPages {
        base: CmdRegUserMr {
            pdn: vm.pdn,
            access_flags: FULL,
            start: 0,
            length: 100,
            virt_addr: 0x1000_0010,
            pages: list,
            npages: 1,
        },
        page_shift: 12,
        depth: PageListDepth::Flat.value(),
        reserved: [0; 6],
    };
    const READ_ONLY: u64 = 1 << 41;
    let file = File::from(dma::testing::shrinkable_memory(0x1000).unwrap());
    let mapped = vm.space.map(READ_ONLY, file.into(), 0, 0x1000, false);
    mapped.unwrap();
    let read_only = vm.page_list(&[READ_ONLY]);
    let block = vm.page_list(&[list + 8]);
    let block_text = format!(
        "block of the page list is {:#x}, which is no multiple of 0x1000",
        list + 8
    );
    let (write, local) = (AccessFlags::REMOTE_WRITE, AccessFlags::LOCAL_WRITE);
    let write_text = format!(
        "access_flags is {:#x}, but needs the bits {:#x}",
        write.0, local.0
    );
    let demand_text = format!(
        "access_flags {:#x} is not supported",
        AccessFlags::ON_DEMAND.0
    );
    let cases: [Case<'_, CmdRegUserMrPages>; 14] = [
        (
            &|cmd| cmd.base.pdn = Pdn::new(NONE),
            "there is no pdn 16777200",
        ),
        (
            &|cmd| cmd.base.length = 0,
            "length is 0, at least 1 is needed",
        ),
        (
            &|cmd| cmd.base.length = 1 << 40,
            "length is 1099511627776, at most 68719476736 is possible",
        ),
        (
            &|cmd| cmd.base.virt_addr = u64::MAX - 98,
            "virt_addr is 0xffffffffffffff9d, from which 0x63 bytes exceed the address space",
        ),
        (&|cmd| cmd.base.npages = 2, "npages is 2, but must be 1"),
        (
            &|cmd| cmd.base.access_flags = AccessFlags(1 << 30),
            "access_flags is 0x40000000, whose bits 0x40000000 are not defined here",
        ),
        (&|cmd| cmd.base.access_flags = write, &write_text),
        (
            &|cmd| cmd.base.access_flags = AccessFlags::ON_DEMAND,
            &demand_text,
        ),
        (
            &|cmd| cmd.base.pages = !0xfff,
            "pages 0xfffffffffffff000 is not mapped",
        ),
        (
            &|cmd| cmd.base.pages = read_only,
            "DMA address 0x20000000010 is read-only",
        ),
        (&|cmd| (cmd.depth, cmd.base.pages) = (1, block), &block_text),
        (
            &|cmd| cmd.page_shift = 31,
            "page_shift is 31, at most 30 is possible",
        ),
        (&|cmd| cmd.depth = 2, "depth is 2, which is not defined"),
        (
            &|cmd| cmd.reserved[5] = 0x80,
            "reserved is 0x80, but must be 0x0",
        ),
    ];
    seen.told_each(vm, good, &cases);

    let mr = vm.call(good).unwrap().mrn;
    let again = CmdReregMr {
        mrn: mr,
        flags: ReregFlags::ACCESS,
        memory: good,
    };
    let zero_based = FULL | AccessFlags::ZERO_BASED;
    let moved = format!(
        "access_flags {:#x} does not take this command",
        zero_based.0
    );
    let cases: [Case<'_, CmdReregMr>; 4] = [
        (
            &|cmd| cmd.flags = ReregFlags(0x11),
            "flags is 0x11, whose bits 0x10 are not defined here",
        ),
        (
            &|cmd| cmd.flags = ReregFlags::NONE,
            "flags is 0x0, at least 0x1 is needed",
        ),
        (
            &|cmd| cmd.mrn = MrNumber::new(NONE),
            "there is no mrn 16777200",
        ),
        (&|cmd| cmd.memory.base.access_flags = zero_based, &moved),
    ];
    seen.told_each(vm, again, &cases);
    vm.call(CmdRevokeMr { mrn: mr }).unwrap();
    let revoked = format!("mrn {mr} has failed or is revoked");
    seen.told(vm, vm.call(again), &revoked);

    let fast = CmdCreateMr {
        pdn: vm.pdn,
        access_flags: AccessFlags::NONE,
        max_num_sg: 2,
    };
    let cases: [Case<'_, CmdCreateMr>; 2] = [
        (
            &|cmd| cmd.max_num_sg = 0,
            "max_num_sg is 0, at least 1 is needed",
        ),
        (
            &|cmd| cmd.max_num_sg = 513,
            "max_num_sg is 513, at most 512 is possible",
        ),
    ];
    seen.told_each(vm, fast, &cases);
    let fast = vm.call(fast).unwrap().mrn;
    let map = CmdMapMrSg {
        mrn: fast,
        npages: 1,
        start: 0x5000,
        length: 8,
        pages: list,
    };
    let other = format!("mrn {mr} does not take this command");
    let cases: [Case<'_, CmdMapMrSg>; 2] = [
        (&|cmd| cmd.npages = 3, "npages is 3, at most 2 is possible"),
        (&|cmd| cmd.mrn = mr, &other),
    ];
    seen.told_each(vm, map, &cases);
    let window = CmdAllocMw {
        pdn: vm.pdn,
        mw_type: 1,
        reserved: [0; 3],
    };
    let cases: [Case<'_, CmdAllocMw>; 2] = [
        (&|cmd| cmd.mw_type = 3, "mw_type is 3, which is not defined"),
        (
            &|cmd| cmd.reserved[0] = 1,
            "reserved is 0x1, but must be 0x0",
        ),
    ];
    seen.told_each(vm, window, &cases);
    let mwn = MwNumber::new(NONE);
    let gone = vm.call(CmdDeallocMw { mwn });
    seen.told(vm, gone, "there is no mwn 16777200");
    let in_use = format!("pdn {} is in use", vm.pdn);
    seen.told(vm, vm.call(CmdDestroyPd { pdn: vm.pdn }), &in_use);
}

fn groups_and_counter_sets(seen: &Seen) {
    let world = world(Limits {
        max_mcast_grp: 2,
        max_mcast_qp_attach: 2,
        max_total_mcast_qp_attach: 3,
        max_counter_sets: 1,
        ..Limits::default()
    });
    let vm = &world.vms[0];
    vm.negotiate(&[Feature::Multicast, Feature::CounterSets]);
    let cq = Cq::new(vm, 64);
    let [a, b, c] = [(); 3].map(|()| Qp::new(vm, &cq, &cq, Options::of(QpType::Ud)));
    let group = |last| ip_to_gid(IpAddr::from([224, 0, 1, last]));
    let attach = |qp: &Qp<'_>, mgid| vm.call(CmdAttachMcast { qpn: qp.qpn, mgid });
    attach(&a, group(1)).unwrap();
    seen.told(vm, attach(&a, group(1)), "mgid 224.0.1.1 is there already");
    let host = ip_to_gid(IpAddr::from([10, 0, 0, 9]));
    let text = "mgid is 10.0.0.9, which is not the address of a multicast group";
    seen.told(vm, attach(&a, host), text);
    attach(&b, group(1)).unwrap();
    let members = "members of the group: all 2 are in use";
    seen.told(vm, attach(&c, group(1)), members);
    attach(&a, group(2)).unwrap();
    let groups = "multicast groups: all 2 are in use";
    seen.told(vm, attach(&a, group(3)), groups);
    let all = "members of all groups: all 3 are in use";
    seen.told(vm, attach(&b, group(2)), all);
    let stranger = vm.call(CmdDetachMcast {
        qpn: c.qpn,
        mgid: group(1),
    });
    let text = "the QP is not attached to mgid 224.0.1.1";
    seen.told(vm, stranger, text);

    let create = || vm.call(CmdCreateCounterSet { port: 1 });
    let csn = create().unwrap().csn;
    seen.told(vm, create(), "csn: all 1 are in use");
    let bind = |csn| vm.call(CmdBindCounterSet { qpn: a.qpn, csn });
    let none = CounterSetNumber::new(NONE);
    seen.told(vm, bind(none), "there is no csn 16777200");
    bind(csn).unwrap();
    let in_use = format!("csn {csn} is in use");
    let destroyed = vm.call(CmdDestroyCounterSet { csn });
    seen.told(vm, destroyed, &in_use);
}

/// Numbers and memory are used up.
fn limits(seen: &Seen) {
    let world = world(Limits {
        max_pd: 2,
        max_mr_pages: 4,
        ..Limits::default()
    });
    let vm = &world.vms[0];
    let create = || vm.call(CmdCreatePd::ZERO);
    create().unwrap();
    seen.told(vm, create(), "pdn: all 2 are in use");
    let fast = vm.call(CmdCreateMr {
        pdn: vm.pdn,
        access_flags: AccessFlags::NONE,
        max_num_sg: 3,
    });
    seen.told(vm, fast, "npages: 6 are needed, 4 are left");

    let world = self::world(Limits {
        memory: 40 << 20,
        ..Limits::default()
    });
    let vm = &world.vms[0];
    let large = CmdCreateMr {
        pdn: vm.pdn,
        access_flags: AccessFlags::NONE,
        max_num_sg: 512,
    };
    let refused = (0..10_000).find_map(|_| vm.call(large).err()).unwrap();
    // Three page maps of 512 extents of 16 bytes each, and their ends.
    let needed = 3 * 513 * 16;
    let last = vm.hca.recorder().last_refusal();
    let left = last.unwrap().event.refusal().unwrap().limit;
    let text = format!("bytes of memory: {needed} are needed, {left} are left");
    seen.told(vm, Err::<(), _>(refused), &text);
    // The charge for the MR itself was given back since then.
    let memory = vm.hca.status().memory;
    assert!(left < needed && left < memory.limit - memory.used);
}

fn ordered(seen: &Seen) {
    let world = world(Limits::default());
    let vm = &world.vms[0];
    let rule = "command CREATE_PD then refuse EBUSY";
    vm.hca.rules().add(&rule.parse().unwrap()).unwrap();
    let text = "a rule of the scenario refuses command CREATE_PD";
    seen.told(vm, vm.call(CmdCreatePd {}), text);
}

#[test]
fn each_refusal_names_its_value() {
    let seen = Seen::default();
    requests(&seen);
    port_and_gids(&seen);
    completion_queues(&seen);
    virtqueues(&seen);
    queue_pairs(&seen);
    attributes(&seen);
    draining(&seen);
    shared_receive_queues(&seen);
    memory(&seen);
    groups_and_counter_sets(&seen);
    limits(&seen);
    ordered(&seen);

    let seen = seen.0.into_inner();
    for reason in Reason::ALL {
        assert!(
            seen.iter().any(|refusal| refusal.reason == *reason),
            "no command was refused for {reason:?}"
        );
    }
    for what in What::ALL {
        assert!(
            seen.iter().any(|refusal| refusal.what == *what),
            "no command was refused because of {what:?}"
        );
    }
}
