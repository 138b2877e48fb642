// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The cost of a turn is bounded, and a QP with more work gets another turn.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use std::time::Duration;

use roce::headers::{Aeth, Body, Bth, Deth, Headers, RcResponse, Syndrome};
use roce::net::{gid_to_ip, multicast_mac};
use roce::Psn;
use testkit::engine::*;
use verbs::{Clock, Limits, PathPolicy, RuntimeConfig, RuntimeStatus, MAX_TURN};
use virtio_rdma_abi::ctrl::{CmdAllocMw, CmdAttachMcast, CmdDeregMr, CmdDetachMcast};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{
    AccessFlags, AhFlags, MwType, QpAttrMask, QpState, QpType, SendFlags, WcStatus, WrOpcode,
    DEFAULT_PKEY, MULTICAST_QPN,
};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::qp::{AhAttr, GlobalRoute, QpAttr};
use virtio_rdma_abi::ring::{Doorbell, WORK_SLOTS};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::BindMw;
use virtio_rdma_ring::RingMemory;

const BINDABLE: AccessFlags = AccessFlags(AccessFlags::LOCAL_WRITE.0 | AccessFlags::MW_BIND.0);
/// Slots of the longest ring.
const MAX_SLOTS: u32 = *WORK_SLOTS.end();
/// Number of local work requests for each signaled one.
const PERIOD: u32 = 1024;

/// Connects a QP to a peer with a MAC address that no port of the process has.
pub fn connect_outside(qp: &Qp<'_>) {
    qp.to_init().unwrap();
    let mut dgid = qp.vm.gid;
    dgid[15] = 200;
    let attrs = QpAttr {
        path_mtu: qp.options.mtu.value(),
        dest_qp_num: Qpn::new(77),
        rq_psn: qp.options.psn,
        max_dest_rd_atomic: qp.options.rd_atomic,
        min_rnr_timer: qp.options.min_rnr_timer,
        ah_attr: AhAttr {
            grh: GlobalRoute {
                dgid,
                sgid_index: 1,
                hop_limit: 1,
                ..GlobalRoute::ZERO
            },
            port_num: 1,
            ah_flags: AhFlags::GRH,
            dmac: mac(200),
            ..AhAttr::ZERO
        },
        ..QpAttr::ZERO
    };
    let reliable = match qp.options.qp_type {
        QpType::Rc => QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER,
        _ => QpAttrMask::NONE,
    };
    let mask = QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN
        | reliable;
    qp.modify(QpState::Rtr, mask, attrs).unwrap();
    qp.to_rts().unwrap();
}

/// A memory window and the MR to which it is bound.
struct Window {
    mr: Mr,
    key: u32,
}

impl Window {
    fn new(vm: &Vm, mw_type: MwType) -> Self {
        let mw = CmdAllocMw {
            pdn: vm.pdn,
            mw_type: mw_type.value(),
            reserved: [0; 3],
        };
        Self {
            mr: vm.register(vm.pdn, vm.alloc(4096), 4096, BINDABLE),
            key: vm.call(mw).unwrap().rkey,
        }
    }

    /// A BIND_MW that changes the R_Key of the window from `old_key` to `key`.
    fn bind(&self, id: u64, old_key: u32, key: u32) -> Vec<u8> {
        let bind = BindMw {
            addr: self.mr.addr,
            length: 64,
            mw_rkey: old_key,
            rkey: key,
            lkey: self.mr.key,
            access: AccessFlags::REMOTE_READ,
            reserved: [0; 4],
        };
        wqe(id, WrOpcode::BindMw, 0, &bind)
    }
}

/// The WQE without the flag SIGNALED.
pub fn unsignaled(mut wqe: Vec<u8>) -> Vec<u8> {
    wqe[4..8].copy_from_slice(&SendFlags::NONE.0.to_le_bytes());
    wqe
}

/// Fills the SQ with pairs of BIND_MW and LOCAL_INV that can be executed repeatedly. The last of
/// each [`PERIOD`] work requests is signaled.
fn fill_with_local_work(qp: &Qp<'_>) {
    let window = Window::new(qp.vm, MwType::Two);
    let bind = unsignaled(window.bind(0, window.key, window.key));
    let last = local_inv(1, window.key);
    let invalidate = unsignaled(last.clone());
    for slot in 0..qp.sq.layout.slots() {
        let wqe = match (slot % 2, slot % PERIOD) {
            (0, _) => &bind,
            (_, rest) if rest == PERIOD - 1 => &last,
            _ => &invalidate,
        };
        qp.sq.write(qp.sq.layout.slot(slot), wqe);
    }
}

/// Checks that no turn cost more than [`MAX_TURN`], and that all work of turns was charged.
pub fn is_bounded(status: &RuntimeStatus) {
    assert_eq!(status.uncharged, 0, "{status:?}");
    assert!(status.longest_turn > 0, "{status:?}");
    assert!(status.longest_turn <= MAX_TURN as u64, "{status:?}");
}

/// A turn ends when its budget is used up, and another turn continues.
#[test]
fn a_long_queue_takes_many_turns() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let config = RuntimeConfig {
            workers: Some(1),
            clock: Clock::manual(),
            ..RuntimeConfig::default()
        };
        let world = World::with_config(1, config, Limits::default());
        world.negotiate(&[Feature::MemWindows]);
        let vm = &world.vms[0];
        let cq = Cq::new(vm, 64);
        let options = Options {
            slots: MAX_SLOTS,
            ..Options::of(qp_type)
        };
        let qp = Qp::new(vm, &cq, &cq, options);
        connect_outside(&qp);
        fill_with_local_work(&qp);
        qp.sq.set_owner(MAX_SLOTS);
        qp.ring_doorbell(Doorbell::Sq);
        world.runtime.advance(Duration::ZERO);
        for _ in 0..MAX_SLOTS / PERIOD {
            cq.expect(1, WcStatus::Success);
        }
        is_bounded(&world.runtime.status());
        // All work requests in one turn would cost far more than the longest turn did.
        let status = world.runtime.status();
        assert!(u64::from(MAX_SLOTS) * 512 > 8 * status.longest_turn);
    }
}

/// The budget of a turn bounds the flushing of work requests too.
#[test]
fn a_long_queue_is_flushed_in_many_turns() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let (cq, slots) = (Cq::new(vm, 4096), 2048);
    let options = Options {
        slots,
        ..Options::default()
    };
    let qp = Qp::new(vm, &cq, &cq, options);
    connect_outside(&qp);
    qp.to(QpState::Err);
    let wr = |id| Wr::new(id, WrOpcode::Send).bytes();
    qp.post_all(&Vec::from_iter((0..slots.into()).map(wr)));
    qp.ring_doorbell(Doorbell::Sq);
    for id in 0..slots.into() {
        qp.post_recv(10_000 + id, &[]);
    }
    let mut flushed = Vec::from_iter((0..2 * slots).map(|_| cq.next().wr_id));
    flushed.sort();
    let slots = u64::from(slots);
    let all = (0..slots).chain(10_000..10_000 + slots);
    assert!(flushed.into_iter().eq(all));
    is_bounded(&world.runtime.status());
}

/// Each multicast datagram is copied to all members of its group, so few datagrams use up the
/// budget of a turn.
#[test]
fn datagrams_to_a_large_group_take_many_turns() {
    const DATAGRAMS: u32 = 64;
    let config = RuntimeConfig {
        workers: Some(1),
        clock: Clock::manual(),
        ..RuntimeConfig::default()
    };
    let world = World::with_config(1, config, Limits::default());
    world.negotiate(&[Feature::Multicast]);
    let vm = &world.vms[0];
    let members = Limits::default().max_mcast_qp_attach;
    let cq = Cq::new(vm, (members * DATAGRAMS).next_power_of_two());
    let mr = vm.mr(8192);
    let mut group = vm.gid;
    group[12..].copy_from_slice(&[239, 1, 2, 3]);
    let options = Options::of(QpType::Ud);
    for _ in 0..members {
        let qp = Qp::new(vm, &cq, &cq, options);
        connect(&qp, &qp);
        let (qpn, mgid) = (qp.qpn, group);
        vm.call(CmdAttachMcast { qpn, mgid }).unwrap();
        for id in 0..DATAGRAMS {
            qp.post_recv(id.into(), &[sge(&mr, 0, 8192)]);
        }
    }
    let deth = Deth {
        qkey: options.qkey,
        src_qpn: Qpn::new(77),
    };
    let bth = Bth::new(DEFAULT_PKEY, MULTICAST_QPN, Psn::new(1));
    let headers = Headers::new(bth, Body::Ud { deth, imm: None });
    let mut sender = vm.gid;
    sender[15] = 200;
    let to = (multicast_mac(gid_to_ip(group)), group);
    let datagram = frame_between((mac(200), sender), to, &headers, &[5; 4096]);
    world
        .net
        .inject_all(vm.mac, &vec![datagram; DATAGRAMS as usize]);
    world.runtime.advance(Duration::ZERO);
    for _ in 0..members * DATAGRAMS {
        let cqe = cq.poll().expect("a copy for each member");
        assert_eq!(cqe.status, WcStatus::Success.value());
    }
    is_bounded(&world.runtime.status());
}

/// Number of QPs of a group.
const MEMBERS: u32 = 40;

/// A QP that leaves a group while a datagram is delivered to the group gets nothing after it has
/// left. All others get the datagram once.
#[test]
fn a_member_leaves_a_group_during_a_delivery() {
    let world = World::stepped(1, PathPolicy::Wire);
    world.negotiate(&[Feature::Multicast]);
    let vm = &world.vms[0];
    let (cq, mr) = (Cq::new(vm, 128), vm.mr(8192));
    let mut group = vm.gid;
    group[12..].copy_from_slice(&[239, 1, 2, 3]);
    let options = Options::of(QpType::Ud);
    let members = Vec::from_iter((0..MEMBERS).map(|_| {
        let qp = Qp::new(vm, &cq, &cq, options);
        connect(&qp, &qp);
        let (qpn, mgid) = (qp.qpn, group);
        vm.call(CmdAttachMcast { qpn, mgid }).unwrap();
        (0..2).for_each(|id| qp.post_recv(id, &[sge(&mr, 0, 8192)]));
        qp
    }));
    world.rest(&[0]);
    let deth = Deth {
        qkey: options.qkey,
        src_qpn: Qpn::new(77),
    };
    let bth = Bth::new(DEFAULT_PKEY, MULTICAST_QPN, Psn::new(1));
    let headers = Headers::new(bth, Body::Ud { deth, imm: None });
    let mut sender = vm.gid;
    sender[15] = 200;
    let to = (multicast_mac(gid_to_ip(group)), group);
    let datagram = frame_between((mac(200), sender), to, &headers, &[5; 4096]);
    world.net.inject(vm.mac, &datagram);
    let mut receivers = Vec::new();
    while receivers.is_empty() {
        assert!(world.runtime.step(0));
        receivers.extend(std::iter::from_fn(|| cq.poll()).map(|cqe| cqe.qp_num));
    }
    assert!(receivers.len() < members.len(), "a turn for all members");
    let has_it = |qp: &&Qp<'_>| receivers.contains(&qp.qpn);
    let late = Vec::from_iter(members.iter().filter(|qp| !has_it(qp)));
    let (leaver, others) = late.split_last().expect("a member without the datagram");
    let (qpn, mgid) = (leaver.qpn, group);
    vm.call(CmdDetachMcast { qpn, mgid }).unwrap();
    world.rest(&[0]);
    let mut rest = Vec::from_iter(std::iter::from_fn(|| cq.poll()).map(|cqe| cqe.qp_num));
    rest.sort();
    let mut others = Vec::from_iter(others.iter().map(|qp| qp.qpn));
    others.sort();
    assert_eq!(rest, others);
    is_bounded(&world.runtime.status());
}

/// Frames that hold no packet fill a turn as others do, and so do frames for a failed device.
#[test]
fn useless_frames_take_many_turns() {
    const FRAMES: usize = 320;
    for fails in [false, true] {
        let world = World::stepped(1, PathPolicy::Direct);
        let vm = &world.vms[0];
        if fails {
            vm.hca.fail("planted");
        }
        world.net.inject_all(vm.mac, &vec![[0x5a; 64]; FRAMES]);
        let (mut left, mut turns) = (FRAMES, 0);
        while left > 0 {
            assert!(world.runtime.step(0), "asleep before the end");
            let now = world.net.waiting(vm.mac);
            turns += usize::from(now < left);
            left = now;
        }
        assert!(turns >= FRAMES / 80, "{turns} turns");
        is_bounded(&world.runtime.status());
    }
}

/// Work requests of tiny pieces of memory fill a turn although they have few bytes.
#[test]
fn many_pieces_of_memory_take_many_turns() {
    const COUNT: u64 = 60;
    const SGES: u32 = 32;
    for (qp_type, path) in [
        (QpType::Rc, PathPolicy::Direct),
        (QpType::Ud, PathPolicy::Direct),
        (QpType::Rc, PathPolicy::Wire),
        (QpType::Ud, PathPolicy::Wire),
    ] {
        let world = World::stepped(1, path);
        let options = Options {
            sge: SGES,
            inline: 0,
            ..Options::of(qp_type)
        };
        let pair = Pair::with(&world, options, options);
        world.rest(&[0]);
        let pieces =
            |mr: &Mr, len| Vec::from_iter((0..SGES).map(|n| sge(mr, u64::from(n) * 64, len)));
        for id in 0..COUNT {
            // The buffers of a datagram hold its GRH too.
            pair.qb.put_recv(id, &pieces(&pair.mb, 3));
        }
        let wrs = (0..COUNT).map(|id| {
            let mut wr = pair.wr(id, WrOpcode::Send, 0);
            wr.sges = pieces(&pair.ma, 1);
            wr.bytes()
        });
        pair.qa.post_all(&Vec::from_iter(wrs));
        pair.qa.ring_doorbell(Doorbell::Sq);
        let (mut done, mut most) = (0, 0);
        while done < COUNT {
            assert!(world.runtime.step(0), "asleep before the end");
            let received = std::iter::from_fn(|| pair.cq_b.poll()).count() as u64;
            most = most.max(received);
            done += received;
        }
        // A piece costs more than its byte: without that, all work requests would fit a turn.
        assert!(most <= COUNT / 3, "{qp_type:?}, {path:?}: {most} in a turn");
        world.rest(&[0]);
        is_bounded(&world.runtime.status());
    }
}

/// On a host that is slow, turns end by the clock, and all work is done.
#[test]
fn turns_end_by_the_clock() {
    const COUNT: u64 = 60;
    for path in PATHS {
        let config = RuntimeConfig {
            path,
            clock: Clock::slow(Duration::from_micros(50)),
            ..stepped::config(1)
        };
        let world = World::with_config(2, config, Limits::default());
        let pair = Pair::new(&world);
        world.rest(&[0]);
        let wrs = (0..COUNT).map(|id| pair.wr(id, WrOpcode::RdmaWrite, 8).bytes());
        pair.qa.post_all(&Vec::from_iter(wrs));
        pair.qa.ring_doorbell(Doorbell::Sq);
        let (mut done, mut most) = (0, 0);
        while done < COUNT {
            assert!(world.runtime.step(0), "asleep before the end");
            let now = std::iter::from_fn(|| pair.cq_a.poll()).count() as u64;
            most = most.max(now);
            done += now;
        }
        assert!(most <= COUNT / 3, "{path:?}: {most} of {COUNT} in a turn");
    }
}

/// A message that the end of a turn's time cuts arrives whole.
#[test]
fn a_message_that_is_cut_arrives_whole() {
    const LEN: u64 = 15 << 12;
    let config = RuntimeConfig {
        clock: Clock::slow(Duration::from_micros(50)),
        ..stepped::config(1)
    };
    let world = World::with_config(2, config, Limits::default());
    let [a, b] = [&world.vms[0], &world.vms[1]];
    let pair = Pair::new(&world);
    // Each page is a piece of its own.
    let scattered = |vm: &Vm| vm.register_reversed(vm.pdn, vm.alloc(LEN), LEN, FULL);
    let (ours, theirs) = (scattered(a), scattered(b));
    let moved = || {
        let sent = |vm: &Vm| vm.hca.status().counters.direct_tx_bytes;
        sent(a) + sent(b)
    };
    let opcodes = [
        WrOpcode::Send,
        WrOpcode::RdmaWriteWithImm,
        WrOpcode::RdmaRead,
    ];
    for (id, opcode) in (0..).zip(opcodes) {
        let bytes = pattern(LEN as usize, id);
        let receives = opcode != WrOpcode::RdmaRead;
        if receives {
            a.write(ours.iova, &bytes);
            pair.qb.post_recv(id, &[sge(&theirs, 0, LEN as u32)]);
        } else {
            b.write(theirs.iova, &bytes);
        }
        let wr = Wr::new(id, opcode).local(&ours, 0, LEN as u32);
        pair.qa.post(&wr.remote(&theirs, 0));
        let (mut before, mut parts) = (moved(), 0);
        let cqe = loop {
            assert!(world.runtime.step(0), "asleep before the end");
            parts += u32::from(moved() > before);
            before = moved();
            if let Some(cqe) = pair.cq_a.poll() {
                break cqe;
            }
        };
        assert_eq!((cqe.wr_id, cqe.status), (id, WcStatus::Success.value()));
        assert!(parts > 1, "{opcode:?} was done in a turn");
        assert!(a.read(ours.iova, LEN as usize) == bytes, "{opcode:?}");
        assert!(b.read(theirs.iova, LEN as usize) == bytes, "{opcode:?}");
        if receives {
            assert_eq!(u64::from(pair.cq_b.next().byte_len), LEN);
        }
    }
}

/// One acknowledgement completes many work requests, so few acknowledgements use up a turn.
#[test]
fn acknowledgements_of_much_work_take_many_turns() {
    const QPS: usize = 16;
    // The packets fit into the share of a new connection in the start window of its port.
    const COUNT: u32 = 30;
    let config = RuntimeConfig {
        workers: Some(1),
        clock: Clock::manual(),
        ..RuntimeConfig::default()
    };
    let world = World::with_config(1, config, Limits::default());
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 256);
    let options = Options {
        slots: 128,
        ..Options::default()
    };
    let qps = Vec::from_iter((0..QPS).map(|_| {
        let qp = Qp::new(vm, &cq, &cq, options);
        connect_outside(&qp);
        qp
    }));
    let mut peer = vm.gid;
    peer[15] = 200;
    let acknowledgements = Vec::from_iter(qps.iter().map(|qp| {
        let wqes = (1..=COUNT).map(|id| {
            let wqe = Wr::new(id.into(), WrOpcode::RdmaWrite).bytes();
            match id {
                COUNT => wqe,
                _ => unsignaled(wqe),
            }
        });
        qp.post_all(&Vec::from_iter(wqes));
        qp.ring_doorbell(Doorbell::Sq);
        let last = Psn::new(options.psn).add(COUNT - 1);
        let (syndrome, msn) = (Syndrome::ACK, COUNT);
        let ack = RcResponse::Ack(Aeth { syndrome, msn });
        let headers = Headers::new(Bth::new(DEFAULT_PKEY, qp.qpn, last), ack);
        frame_between((mac(200), peer), (vm.mac, vm.gid), &headers, &[])
    }));
    world.runtime.advance(Duration::ZERO);
    assert!(cq.poll().is_none());
    world.net.inject_all(vm.mac, &acknowledgements);
    world.runtime.advance(Duration::ZERO);
    for _ in &qps {
        cq.expect(COUNT.into(), WcStatus::Success);
    }
    let counters = vm.hca.status().counters;
    assert_eq!(counters.rx_packets, QPS as u64, "each is counted once");
    is_bounded(&world.runtime.status());
}

/// A reset waits only once for the turns in progress, regardless of the number of objects.
#[test]
fn a_reset_waits_once() {
    let world = World::new(1, PathPolicy::Direct);
    world.negotiate(&[Feature::MemWindows]);
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 64);
    for _ in 0..10 {
        let qp = Qp::new(vm, &cq, &cq, Options::default());
        connect(&qp, &qp);
        let window = Window::new(vm, MwType::Two);
        qp.post_bytes(&window.bind(1, window.key, window.key));
        cq.expect(1, WcStatus::Success);
    }
    let before = world.runtime.status().grace_periods;
    vm.hca.reset();
    assert_eq!(world.runtime.status().grace_periods, before + 1);
}

/// A process that posts local work requests faster than they are executed does not block other VMs.
#[test]
fn endless_local_work_leaves_other_vms_their_turns() {
    /// Number of work requests after which the test gives up. It is far more than one turn
    /// executes, because the attacker may have many turns while the host runs neither this thread
    /// nor that of the command.
    const LIMIT: u64 = 20 * MAX_SLOTS as u64;
    for qp_type in [QpType::Rc, QpType::Uc] {
        let world = World::new(2, PathPolicy::Direct);
        world.negotiate(&[Feature::MemWindows]);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let cq = Cq::new(a, 64);
        let options = Options {
            slots: MAX_SLOTS,
            ..Options::of(qp_type)
        };
        let qp = Qp::new(a, &cq, &cq, options);
        connect_outside(&qp);
        fill_with_local_work(&qp);
        let victims = [(); 4].map(|()| b.mr(4096));
        let (stop, executed) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let (sq, cq, stop, executed) = (&qp.sq, &cq.ring, &stop, &executed);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) && executed.load(Ordering::Relaxed) < LIMIT {
                    let completed = cq.device();
                    cq.set_owner(completed);
                    sq.set_owner(completed * PERIOD + MAX_SLOTS);
                    executed.store(u64::from(completed * PERIOD), Ordering::Relaxed);
                }
            });
            wait("a full ring", || (sq.owner() == MAX_SLOTS).then_some(()));
            qp.ring_doorbell(Doorbell::Sq);
            wait("the first turn", || {
                (executed.load(Ordering::Relaxed) > 0).then_some(())
            });
            for victim in &victims {
                // DEREG_MR waits once for the current turns, at most one of each worker.
                let periods = world.runtime.status().grace_periods;
                b.call(CmdDeregMr { mrn: victim.mrn }).unwrap();
                assert_eq!(world.runtime.status().grace_periods, periods + 1);
                let before = executed.load(Ordering::Relaxed);
                assert!(before < LIMIT, "{qp_type:?}: the turn has no end");
                wait("more turns of the attacker", || {
                    (executed.load(Ordering::Relaxed) > before).then_some(())
                });
            }
            stop.store(true, Ordering::Relaxed);
        });
        is_bounded(&world.runtime.status());
    }
}

/// All work requests of a full SQ are executed, although no response wakes the worker again.
#[test]
fn a_full_queue_of_an_unreliable_connection_is_sent() {
    const COUNT: u64 = 250;
    for path in PATHS {
        let world = World::new(2, path);
        let options = Options {
            slots: 256,
            ..Options::of(QpType::Uc)
        };
        let p = Pair::with(&world, options, options);
        for round in 0..3 {
            let wqes = (0..COUNT).map(|id| {
                let wr = p.wr(id, WrOpcode::RdmaWrite, 64).bytes();
                if id + 1 == COUNT {
                    wr
                } else {
                    unsignaled(wr)
                }
            });
            // The doorbell is rung only if the device requests it.
            if p.qa.post_all(&Vec::from_iter(wqes)) {
                p.qa.ring_doorbell(Doorbell::Sq);
            }
            p.cq_a.expect(COUNT - 1, WcStatus::Success);
            assert!(p.cq_a.poll().is_none(), "{path:?}, round {round}");
        }
    }
}

/// All work requests of a full SQ are executed, although they send no packets.
#[test]
fn a_full_queue_of_local_work_is_executed() {
    const COUNT: u64 = 200;
    for qp_type in [QpType::Rc, QpType::Uc] {
        for path in PATHS {
            let world = World::new(2, path);
            world.negotiate(&[Feature::MemWindows]);
            let options = Options {
                slots: 256,
                ..Options::of(qp_type)
            };
            let p = Pair::with(&world, options, options);
            let window = Window::new(p.a, MwType::One);
            let mut key = window.key;
            let wqes = (0..COUNT).map(|id| {
                let next = (key & !0xff) | (key.wrapping_add(1) & 0xff);
                let bind = window.bind(id, key, next);
                key = next;
                if id + 1 == COUNT {
                    bind
                } else {
                    unsignaled(bind)
                }
            });
            p.qa.post_all(&Vec::from_iter(wqes));
            p.qa.ring_doorbell(Doorbell::Sq);
            p.cq_a.expect(COUNT - 1, WcStatus::Success);
            // The next work request is executed too.
            p.qa.post(&p.wr(COUNT, WrOpcode::RdmaWrite, 8));
            p.cq_a.expect(COUNT, WcStatus::Success);
        }
    }
}
