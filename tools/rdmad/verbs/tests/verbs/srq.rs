// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Shared receive queues: order of receives and slots, limits, errors and resizing.

use std::sync::atomic::Ordering;

use testkit::engine::qp::PAGE;
use testkit::engine::srq::{request, ring};
use testkit::engine::*;
use virtio_rdma_abi::config::{SrqConfig, SRQ_CONFIG_OFFSET};
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::feature::{Feature, Features};
use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent, QpState, QpType, WcStatus, WrOpcode};
use virtio_rdma_abi::number::{Pdn, Srqn};
use virtio_rdma_abi::ring::{Doorbell, RingAddr, RingKind};
use virtio_rdma_abi::wire::Wire;

use crate::commands::create_qp;

const EINVAL: u8 = 22;
const EBUSY: u8 = 16;
const EOPNOTSUPP: u8 = 95;

const LIMIT: EventKind = EventKind::Async(AsyncEvent::SrqLimitReached);
const LAST: EventKind = EventKind::Async(AsyncEvent::QpLastWqeReached);
const SRQ_ERR: EventKind = EventKind::Async(AsyncEvent::SrqErr);

/// Two QPs of A, each connected to a QP of B. Both QPs of B take their receives from one SRQ.
struct Bench<'vm> {
    a: &'vm Vm,
    b: &'vm Vm,
    cq_a: Cq<'vm>,
    cq_b: Cq<'vm>,
    srq: Srq<'vm>,
    senders: [Qp<'vm>; 2],
    receivers: [Qp<'vm>; 2],
    ma: Mr,
    mb: Mr,
}

impl<'vm> Bench<'vm> {
    fn new(world: &'vm World, options: Options) -> Self {
        let (a, b) = (&world.vms[0], &world.vms[1]);
        let (cq_a, cq_b) = (Cq::new(a, 64), Cq::new(b, 64));
        let srq = Srq::new(b, 8);
        let senders = [(); 2].map(|()| Qp::new(a, &cq_a, &cq_a, options));
        let receivers = [(); 2].map(|()| Qp::with_srq(b, &cq_b, srq.srqn, options).unwrap());
        for (sender, receiver) in senders.iter().zip(&receivers) {
            connect(sender, receiver);
        }
        Self {
            ma: a.mr(1 << 16),
            mb: b.mr(1 << 16),
            a,
            b,
            cq_a,
            cq_b,
            srq,
            senders,
            receivers,
        }
    }

    /// Posts a SEND of `len` bytes at sender `from`.
    fn send(&self, from: usize, id: u64, len: u32) {
        let wr = Wr::new(id, WrOpcode::Send).local(&self.ma, 0, len);
        self.senders[from].post(&match self.senders[from].options.qp_type {
            QpType::Ud => wr.to(&self.receivers[from]),
            _ => wr,
        });
    }

    /// Posts `count` receives of 4096 bytes with ids from `id` on, and returns their slots.
    fn post(&self, id: u64, count: u64) -> Vec<u16> {
        (id..id + count)
            .map(|id| self.srq.post(id, &[sge(&self.mb, (id % 16) * 4096, 4096)]))
            .collect()
    }

    /// Waits for the next completion of B. Returns the index of the QP and the id of the receive.
    fn received(&self, status: WcStatus) -> (usize, u64) {
        let cqe = self.cq_b.next();
        assert_eq!(WcStatus::try_from(cqe.status), Ok(status), "{cqe:?}");
        let whose = self.receivers.iter().position(|qp| qp.qpn == cqe.qp_num);
        (whose.expect("a QP of the SRQ"), cqe.wr_id)
    }
}

fn each_type(test: impl Fn(&Bench<'_>)) {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        on_both_paths(|path| {
            eprintln!("{qp_type:?}");
            test(&Bench::new(&World::new(2, path), Options::of(qp_type)));
        });
    }
}

fn each_rc(test: impl Fn(&Bench<'_>)) {
    on_both_paths(|path| test(&Bench::new(&World::new(2, path), Options::default())));
}

// abi
#[test]
fn two_qps_share_receives_in_the_order_of_the_ring() {
    each_type(|bench| {
        let slots = bench.post(0, 8);
        for id in 0..8u64 {
            let from = [0, 0, 1, 0, 1, 1, 1, 0][id as usize];
            let bytes = pattern(300, id);
            bench.a.write(bench.ma.iova, &bytes);
            bench.send(from, 100 + id, 300);
            bench.cq_a.expect(100 + id, WcStatus::Success);
            assert_eq!(bench.received(WcStatus::Success), (from, id));
            let header = match bench.senders[0].options.qp_type {
                QpType::Ud => 40,
                _ => 0,
            };
            let place = bench.mb.iova + id * 4096 + header;
            assert_eq!(bench.b.read(place, 300), bytes);
        }
        // The driver frees the slots in reverse order.
        for slot in slots.into_iter().rev() {
            bench.srq.complete(slot);
        }
        bench.post(8, 8);
        for id in 8..16 {
            bench.send(1, id, 1);
            bench.cq_a.expect(id, WcStatus::Success);
            assert_eq!(bench.received(WcStatus::Success), (1, id));
        }
        assert!(bench.b.sink.is_empty());
    });
}

/// A receive that is held for a long time keeps its slot, while slots of later receives are freed.
// abi: R-566
#[test]
fn slots_come_back_out_of_order() {
    let world = World::new(2, verbs::PathPolicy::Direct);
    let bench = Bench::new(&world, Options::default());
    bench.post(0, 2);
    // A datagram that does not fit makes its UD QP hold the receive.
    let options = Options::of(QpType::Ud);
    let from = Qp::new(bench.a, &bench.cq_a, &bench.cq_a, options);
    let to = Qp::with_srq(bench.b, &bench.cq_b, bench.srq.srqn, options).unwrap();
    connect(&from, &to);
    from.post(&Wr::new(1, WrOpcode::Send).local(&bench.ma, 0, 4060).to(&to));
    bench.cq_a.expect(1, WcStatus::Success);
    bench.send(0, 2, 10);
    bench.cq_a.expect(2, WcStatus::Success);
    assert_eq!(bench.received(WcStatus::Success), (0, 1));
    // After the QP is destroyed, the next message takes the receive.
    to.destroy().unwrap();
    bench.send(1, 3, 10);
    bench.cq_a.expect(3, WcStatus::Success);
    assert_eq!(bench.received(WcStatus::Success), (1, 0));
}

// abi: R-572
#[test]
fn an_empty_srq_is_not_ready_until_something_is_posted() {
    each_rc(|bench| {
        bench.send(0, 1, 100);
        bench.send(1, 2, 100);
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(bench.cq_a.poll().is_none());
        bench.post(0, 2);
        let mut done = [(); 2].map(|()| bench.cq_a.next().wr_id);
        done.sort();
        assert_eq!(done, [1, 2]);
        for _ in 0..2 {
            bench.received(WcStatus::Success);
        }
    });
    on_both_paths(|path| {
        let world = World::new(2, path);
        let options = Options {
            rnr_retry: 1,
            ..Options::default()
        };
        let bench = Bench::new(&world, options);
        bench.send(0, 1, 1);
        bench.cq_a.expect(1, WcStatus::RnrRetryExcErr);
        assert_eq!(bench.receivers[0].state(), QpState::Rts);
    });
    // QPs of other types lose the message.
    for qp_type in [QpType::Uc, QpType::Ud] {
        on_both_paths(|path| {
            let world = World::new(2, path);
            let bench = Bench::new(&world, Options::of(qp_type));
            bench.send(0, 1, 1);
            bench.cq_a.expect(1, WcStatus::Success);
            assert!(bench.cq_b.poll().is_none());
        });
    }
}

#[test]
fn the_limit_is_told_of_once() {
    each_rc(|bench| {
        let srq = &bench.srq;
        bench.post(0, 8);
        // abi: R-562
        srq.modify(SrqAttrMask::LIMIT, 7).unwrap();
        // abi: R-563
        assert_eq!(srq.query().limit, 7);
        for id in 0..4 {
            bench.send(0, id, 1);
            bench.cq_a.expect(id, WcStatus::Success);
            bench.received(WcStatus::Success);
            let expected = if id == 0 { 7 } else { 0 };
            assert_eq!(srq.query().limit, expected, "after {id}");
        }
        // abi
        bench.b.sink.expect(LIMIT, srq.cookie);
        assert!(bench.b.sink.is_empty(), "once");
        // A limit above the number of posted receives is reached at once.
        srq.modify(SrqAttrMask::LIMIT, 5).unwrap();
        // abi: R-568
        bench.b.sink.expect(LIMIT, srq.cookie);
        srq.modify(SrqAttrMask::LIMIT, 4).unwrap();
        srq.modify(SrqAttrMask::LIMIT, 0).unwrap();
        bench.send(0, 9, 1);
        bench.cq_a.expect(9, WcStatus::Success);
        assert!(bench.b.sink.is_empty(), "disarmed");
        assert_eq!(srq.modify(SrqAttrMask::LIMIT, 9), Err(EINVAL));
        assert_eq!(srq.modify(SrqAttrMask(4), 0), Err(EINVAL));
        // abi: R-564
        assert_eq!(srq.modify(SrqAttrMask::NONE, 1), Err(EINVAL));
    });
}

// abi
#[test]
fn a_qp_in_error_leaves_the_receives_to_others() {
    each_type(|bench| {
        bench.post(0, 3);
        bench.receivers[0].to(QpState::Err);
        let cookie = bench.receivers[0].cookie;
        bench.b.sink.expect(LAST, cookie);
        bench.receivers[0].ring_doorbell(Doorbell::Sq);
        for id in 0..3 {
            bench.send(1, id, 1);
            bench.cq_a.expect(id, WcStatus::Success);
            assert_eq!(bench.received(WcStatus::Success), (1, id));
        }
        assert!(bench.cq_b.poll().is_none(), "nothing was flushed");
        assert!(bench.b.sink.is_empty(), "once");
        // The event is raised once more after RESET.
        bench.receivers[0].to(QpState::Reset);
        bench.receivers[0].to(QpState::Err);
        bench.b.sink.expect(LAST, cookie);
    });
}

/// A QP in ERR flushes the receive of a message that has arrived in part. Other QPs may use the
/// receive's slot again.
// abi
#[test]
fn what_a_qp_in_error_was_receiving_is_flushed() {
    let world = World::new(2, verbs::PathPolicy::Wire);
    let bench = Bench::new(&world, Options::default());
    let slots = bench.post(0, 2);
    bench.srq.modify(SrqAttrMask::LIMIT, 2).unwrap();
    // Only the first of three packets arrives. It takes a receive, so the limit is reached.
    let net = &world.net;
    net.ends_after
        .store(net.sent.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    bench.send(0, 1, 3000);
    bench.b.sink.expect(LIMIT, bench.srq.cookie);
    bench.receivers[0].to(QpState::Err);
    bench.b.sink.expect(LAST, bench.receivers[0].cookie);
    bench.senders[0].to(QpState::Err);
    bench.cq_a.expect(1, WcStatus::WrFlushErr);
    net.ends_after.store(u64::MAX, Ordering::Relaxed);
    assert_eq!(bench.received(WcStatus::WrFlushErr), (0, 0));
    bench.srq.complete(slots[0]);
    let receive = |id, slot| {
        bench.send(1, 10 + id, 1);
        bench.cq_a.expect(10 + id, WcStatus::Success);
        assert_eq!(bench.received(WcStatus::Success), (1, id));
        bench.srq.complete(slot);
    };
    receive(1, slots[1]);
    // Now all slots are free.
    (2..)
        .zip(bench.post(2, 8))
        .for_each(|(id, slot)| receive(id, slot));
}

/// Programs post receives of one length in a ring, so the last one may reach beyond the MR.
// abi
#[test]
fn receives_that_reach_beyond_their_mr() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let (a, b) = (&world.vms[0], &world.vms[1]);
        let srq = Srq::in_pd(b, b.pdn, 4);
        let (cq_a, cq_b) = (Cq::new(a, 16), Cq::new(b, 16));
        let from = Qp::new(a, &cq_a, &cq_a, Options::default());
        let to = Qp::with_srq(b, &cq_b, srq.srqn, Options::default()).unwrap();
        connect(&from, &to);
        let ma = a.mr(4096);
        let mb = b.register(b.pdn, b.alloc(4096), 4096, AccessFlags::LOCAL_WRITE);
        for id in 1..=2 {
            srq.post(id, &[sge(&mb, 4096 - 64, 1024)]);
        }
        let send = |id, len| from.post(&Wr::new(id, WrOpcode::Send).local(&ma, 0, len));
        send(10, 64);
        cq_a.expect(10, WcStatus::Success);
        assert_eq!(cq_b.expect(1, WcStatus::Success).byte_len, 64);
        send(11, 65);
        cq_b.expect(2, WcStatus::LocProtErr);
        cq_a.expect(11, WcStatus::RemOpErr);
        to.wait_for(QpState::Err);
    });
}

/// L_Keys of an SRQ's receives are checked against the PD of the SRQ. R_Keys of the peer are
/// checked against the PD of the QP.
// abi
#[test]
fn keys_are_those_of_the_srq() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let (a, b) = (&world.vms[0], &world.vms[1]);
        let pdn = b.call(CmdCreatePd::ZERO).unwrap().pdn;
        let srq = Srq::in_pd(b, pdn, 4);
        let (cq_a, cq_b) = (Cq::new(a, 16), Cq::new(b, 16));
        let from = Qp::new(a, &cq_a, &cq_a, Options::default());
        let to = Qp::with_srq(b, &cq_b, srq.srqn, Options::default()).unwrap();
        connect(&from, &to);
        let (ma, ours) = (a.mr(4096), b.mr(4096));
        let theirs = b.register(pdn, b.alloc(4096), 4096, AccessFlags::LOCAL_WRITE);
        srq.post(1, &[sge(&theirs, 0, 4096)]);
        srq.post(2, &[sge(&ours, 0, 4096)]);
        let send = |id| from.post(&Wr::new(id, WrOpcode::Send).local(&ma, 0, 100));
        send(10);
        cq_a.expect(10, WcStatus::Success);
        cq_b.expect(1, WcStatus::Success);
        from.post(
            &Wr::new(11, WrOpcode::RdmaWrite)
                .local(&ma, 0, 8)
                .remote(&ours, 0),
        );
        cq_a.expect(11, WcStatus::Success);
        send(12);
        cq_b.expect(2, WcStatus::LocProtErr);
        cq_a.expect(12, WcStatus::RemOpErr);
        to.wait_for(QpState::Err);
        b.sink.expect(LAST, to.cookie);
        assert_eq!(b.call(CmdDestroyPd { pdn }), Err(EBUSY));
        to.destroy().unwrap();
        srq.destroy().unwrap();
        b.call(CmdDeregMr { mrn: theirs.mrn }).unwrap();
        b.call(CmdDestroyPd { pdn }).unwrap();
    });
}

// abi
#[test]
fn a_malformed_receive_harms_the_qp_that_takes_it() {
    each_rc(|bench| {
        // The receive has more SGEs than the SRQ allows.
        let bytes = [3u32.to_le_bytes().to_vec(), 5u64.to_le_bytes().to_vec()].concat();
        bench.srq.post_bytes(&bytes);
        bench.post(6, 1);
        bench.send(0, 1, 1);
        assert_eq!(bench.received(WcStatus::LocQpOpErr), (0, 5));
        bench.cq_a.expect(1, WcStatus::RemOpErr);
        bench.b.sink.expect(LAST, bench.receivers[0].cookie);
        bench.send(1, 2, 1);
        bench.cq_a.expect(2, WcStatus::Success);
        assert_eq!(bench.received(WcStatus::Success), (1, 6));
        assert!(bench.b.sink.is_empty());
    });
}

#[test]
fn a_ring_that_makes_no_sense_fails_the_srq_and_its_qps() {
    each_rc(|bench| {
        let ring = bench.srq.ring();
        ring.set_owner(9);
        bench.send(0, 1, 1);
        // abi: R-521
        bench.cq_a.expect(1, WcStatus::RemOpErr);
        // abi
        bench.b.sink.expect(SRQ_ERR, bench.srq.cookie);
        for receiver in &bench.receivers {
            receiver.wait_for(QpState::Err);
            let fatal = EventKind::Async(AsyncEvent::QpFatal);
            bench.b.sink.expect(fatal, receiver.cookie);
            // abi: R-567
            bench.b.sink.expect(LAST, receiver.cookie);
        }
        assert_eq!(bench.srq.modify(SrqAttrMask::LIMIT, 1), Err(EINVAL));
        for receiver in &bench.receivers {
            receiver.destroy().unwrap();
        }
        bench.srq.destroy().unwrap();
    });
}

#[test]
fn a_queue_grows_with_work_in_it() {
    each_rc(|bench| {
        let slots = bench.post(0, 8);
        for id in 0..3 {
            bench.send(0, id, 1);
            bench.cq_a.expect(id, WcStatus::Success);
            assert_eq!(bench.received(WcStatus::Success), (0, id));
        }
        bench.srq.complete(slots[1]);
        // abi: R-564
        assert_eq!(bench.srq.resize(4), Err(EINVAL), "shorter");
        // abi: R-562
        bench.srq.resize(16).unwrap();
        // abi: R-563
        assert_eq!(bench.srq.query().max_wr, 16);
        // There is room for 9 receives: one in the slot of a completed receive, and 8 in new slots.
        bench.post(8, 9);
        for id in 3..17 {
            bench.send((id % 2) as usize, id, 1);
            bench.cq_a.expect(id, WcStatus::Success);
            // abi
            assert_eq!(
                bench.received(WcStatus::Success),
                ((id % 2) as usize, id),
                "in the order of posting"
            );
        }
        assert!(bench.b.sink.is_empty());
    });
}

// abi
#[test]
fn an_srq_in_use_is_not_destroyed() {
    let world = World::new(1, verbs::PathPolicy::Direct);
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 16);
    let srq = Srq::new(vm, 4);
    let qps = [(); 2].map(|()| Qp::with_srq(vm, &cq, srq.srqn, Options::default()).unwrap());
    for qp in &qps {
        assert_eq!(srq.destroy(), Err(EBUSY));
        qp.destroy().unwrap();
    }
    srq.destroy().unwrap();
    assert_eq!(srq.destroy(), Err(EINVAL));
    let gone = Qp::with_srq(vm, &cq, srq.srqn, Options::default());
    assert_eq!(gone.err(), Some(EINVAL));
    // A reset destroys both QP and SRQ.
    let srq = Srq::new(vm, 4);
    let _qp = Qp::with_srq(vm, &cq, srq.srqn, Options::default()).unwrap();
    vm.hca.reset();
}

#[test]
fn bad_requests_are_refused() {
    let world = World::new(1, verbs::PathPolicy::Direct);
    let vm = &world.vms[0];
    let space = vm.hca.config_space();
    let limits = SrqConfig::get(&space[SRQ_CONFIG_OFFSET..][..SrqConfig::SIZE]);
    // abi
    assert_eq!((limits.max_srq_wr, limits.max_srq_sge), (32_768, 32));
    let ring = ring(vm, 8);
    let good = request(vm, vm.pdn, &ring);
    let bad = [
        CmdCreateSrq {
            pdn: Pdn::new(99),
            ..good
        },
        CmdCreateSrq { max_wr: 0, ..good },
        // abi: R-511
        CmdCreateSrq { max_wr: 9, ..good },
        CmdCreateSrq {
            max_sge: limits.max_srq_sge + 1,
            ..good
        },
        // abi: R-511
        CmdCreateSrq { max_sge: 4, ..good },
        CmdCreateSrq {
            flags: CreateFlags::SRQ,
            ..good
        },
        // abi: R-509
        CmdCreateSrq {
            ring: RingAddr::ZERO,
            ..good
        },
        // abi: R-510
        CmdCreateSrq {
            doorbell_page: u32::MAX,
            ..good
        },
    ];
    for (index, bad) in bad.into_iter().enumerate() {
        assert_eq!(vm.call(bad), Err(EINVAL), "{index}");
    }
    let srqn = vm.call(good).unwrap().srqn;
    // Doorbells of SRQs are accepted and have no effect.
    for srqn in [srqn, Srqn::NONE, Srqn::new(0xff_ffff)] {
        vm.hca.doorbell(PAGE, Doorbell::Srq(srqn).to_u32());
    }
    // The longest SRQ.
    Srq::new(vm, 32_768).destroy().unwrap();
    let cq = Cq::new(vm, 16);
    let gsi = Qp::with_srq(vm, &cq, srqn, Options::of(QpType::Gsi));
    assert_eq!(gsi.err(), Some(EINVAL));
    // A QP has either an RQ or an SRQ.
    for (max_recv_wr, max_recv_sge, done) in
        [(0, 0, None), (1, 0, Some(EINVAL)), (0, 1, Some(EINVAL))]
    {
        let mut cmd = create_qp(vm, &cq);
        (cmd.base.flags, cmd.base.srqn) = (CreateFlags::SRQ, srqn);
        (cmd.base.max_recv_wr, cmd.base.max_recv_sge) = (max_recv_wr, max_recv_sge);
        assert_eq!(vm.call(cmd).err(), done, "{max_recv_wr}, {max_recv_sge}");
    }
}

// abi: R-564
#[test]
fn a_queue_moves_to_no_shorter_slots() {
    let world = World::new(1, verbs::PathPolicy::Direct);
    let vm = &world.vms[0];
    let present = Ring::new(vm, RingKind::Shared, 8, 7);
    let srqn = vm.call(request(vm, vm.pdn, &present)).unwrap().srqn;
    for (slot_shift, expected) in [(6, Err(EINVAL)), (7, Ok(Empty::ZERO)), (8, Ok(Empty::ZERO))] {
        let change = CmdModifySrq {
            srqn,
            attr_mask: SrqAttrMask::MAX_WR,
            max_wr: 8,
            ring: Ring::new(vm, RingKind::Shared, 8, slot_shift).addr,
            ..CmdModifySrq::ZERO
        };
        assert_eq!(vm.call(change), expected, "{slot_shift}");
    }
}

/// A MODIFY_SRQ that contains a size, a ring or a limit is refused if the attribute mask does not
/// name this attribute.
// abi: R-564
#[test]
fn changes_that_are_not_named_are_refused() {
    let world = World::new(1, verbs::PathPolicy::Direct);
    let vm = &world.vms[0];
    let srqn = vm.call(request(vm, vm.pdn, &ring(vm, 8))).unwrap().srqn;
    let none = CmdModifySrq {
        srqn,
        ..CmdModifySrq::ZERO
    };
    assert_eq!(vm.call(none), Ok(Empty::ZERO));
    let ring = ring(vm, 16).addr;
    for bad in [
        CmdModifySrq { max_wr: 8, ..none },
        CmdModifySrq { ring, ..none },
        CmdModifySrq { limit: 1, ..none },
    ] {
        assert_eq!(vm.call(bad), Err(EINVAL));
    }
}

// abi
#[test]
fn without_the_bit_there_are_none() {
    let world = World::new(1, verbs::PathPolicy::Direct);
    let vm = &world.vms[0];
    let (cq, ring) = (Cq::new(vm, 16), ring(vm, 8));
    vm.hca.set_features(Features::of(&[Feature::RingAddr]));
    assert_eq!(vm.call(request(vm, vm.pdn, &ring)), Err(EOPNOTSUPP));
    assert_eq!(vm.call(CmdModifySrq::ZERO), Err(EOPNOTSUPP));
    assert_eq!(vm.call(CmdQuerySrq { srqn: Srqn::new(1) }), Err(EOPNOTSUPP));
    assert_eq!(
        vm.call(CmdDestroySrq { srqn: Srqn::new(1) }),
        Err(EOPNOTSUPP)
    );
    let qp = Qp::with_srq(vm, &cq, Srqn::new(1), Options::default());
    assert_eq!(qp.err(), Some(EINVAL));
}

/// A QP with an SRQ and without an SQ receives messages.
// abi: R-515
#[test]
fn without_an_sq() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let (a, b) = (&world.vms[0], &world.vms[1]);
        let (cq_a, cq_b) = (Cq::new(a, 64), Cq::new(b, 64));
        let srq = Srq::new(b, 8);
        let sender = Qp::new(a, &cq_a, &cq_a, Options::default());
        let options = Options {
            without_sq: true,
            ..Options::default()
        };
        let receiver = Qp::with_srq(b, &cq_b, srq.srqn, options).unwrap();
        connect(&sender, &receiver);
        let (ma, mb) = (a.mr(4096), b.mr(4096));
        srq.post(1, &[sge(&mb, 0, 4096)]);
        let data = pattern(1500, 1);
        a.write(ma.iova, &data);
        sender.post(&Wr::new(2, WrOpcode::Send).local(&ma, 0, 1500));
        cq_a.expect(2, WcStatus::Success);
        cq_b.expect(1, WcStatus::Success);
        assert!(b.read(mb.iova, 1500) == data);
    });
}
