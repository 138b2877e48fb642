// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A hostile guest harms only itself.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use testkit::engine::*;
use verbs::{Clock, Limits, PathPolicy, RuntimeConfig};
use virtio_rdma_abi::ctrl::{CmdDeregMr, Command};
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{AsyncEvent, QpState, SigType, WcStatus, WrOpcode};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::ring::{ArmKind, Doorbell};
use virtio_rdma_ring::RingMemory;

/// A connection of well-behaved QPs, which has to work regardless of hostile objects.
struct Healthy<'vm> {
    cq: Cq<'vm>,
    qp: Qp<'vm>,
    peer_cq: Cq<'vm>,
    peer: Qp<'vm>,
    from: Mr,
    to: Mr,
}

impl<'vm> Healthy<'vm> {
    fn new(world: &'vm World) -> Self {
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let (cq, peer_cq) = (Cq::new(a, 64), Cq::new(b, 64));
        let qp = Qp::new(a, &cq, &cq, Options::default());
        let peer = Qp::new(b, &peer_cq, &peer_cq, Options::default());
        connect(&qp, &peer);
        Self {
            from: a.mr(8192),
            to: b.mr(8192),
            cq,
            qp,
            peer_cq,
            peer,
        }
    }

    fn works(&self) {
        let data = pattern(5000, 42);
        self.qp.vm.write(self.from.iova, &data);
        self.peer.post_recv(1, &[sge(&self.to, 0, 5000)]);
        self.qp
            .post(&Wr::new(2, WrOpcode::Send).local(&self.from, 0, 5000));
        self.cq.expect(2, WcStatus::Success);
        self.peer_cq.expect(1, WcStatus::Success);
        assert!(self.peer.vm.read(self.to.iova, 5000) == data);
    }
}

// abi
#[test]
fn an_index_that_jumps_is_a_fatal_error_of_that_qp() {
    on_both_paths(|path| {
        for is_send in [true, false] {
            let world = World::new(2, path);
            let healthy = Healthy::new(&world);
            let [a, b] = [&world.vms[0], &world.vms[1]];
            let (cq_a, cq_b) = (Cq::new(a, 64), Cq::new(b, 64));
            let qa = Qp::new(a, &cq_a, &cq_a, Options::default());
            let qb = Qp::new(b, &cq_b, &cq_b, Options::default());
            connect(&qa, &qb);
            let (victim, ring) = match is_send {
                true => (&qa, &qa.sq),
                false => (&qb, &qb.rq),
            };
            ring.set_owner(5000);
            if !is_send {
                // The device reads the index of the RQ when a message needs a receive.
                qa.post(&Wr::new(1, WrOpcode::Send));
                cq_a.expect(1, WcStatus::RemOpErr);
            }
            victim.ring_doorbell(if is_send { Doorbell::Sq } else { Doorbell::Rq });
            victim.wait_for(QpState::Err);
            victim
                .vm
                .sink
                .expect(EventKind::Async(AsyncEvent::QpFatal), victim.cookie);
            healthy.works();
            // The QP can be used again after RESET.
            ring.set_owner(0);
            qa.to(QpState::Reset);
            qb.to(QpState::Reset);
            connect(&qa, &qb);
        }
    });
}

// abi
#[test]
fn a_cq_ring_that_makes_no_sense_kills_the_cq() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let healthy = Healthy::new(&world);
        let vm = &world.vms[0];
        let cq = Cq::new(vm, 32);
        let qp = Qp::new(vm, &cq, &cq, Options::default());
        connect(&qp, &qp);
        // The device reads the consumer index only when it knows of no free slot.
        cq.ring.set_owner(1000);
        for id in 0..33 {
            qp.post(&Wr::new(id, WrOpcode::RdmaWrite));
        }
        vm.sink
            .expect(EventKind::Async(AsyncEvent::CqErr), cq.cookie);
        vm.sink
            .expect(EventKind::Async(AsyncEvent::QpFatal), qp.cookie);
        qp.destroy().unwrap();
        cq.destroy().unwrap();
        healthy.works();
    });
}

/// A doorbell is accepted only on the doorbell page of its object.
// abi
#[test]
fn doorbells_ring_only_what_their_page_may() {
    let clock = Clock::manual();
    let config = RuntimeConfig {
        clock,
        ..RuntimeConfig::default()
    };
    let world = World::with_config(2, config, Limits::default());
    let healthy = Healthy::new(&world);
    let p = Pair::new(&world);
    // Waits until the workers have no work left.
    let run_until_idle = || world.runtime.advance(Duration::ZERO);
    let others = [0, qp::PAGE - 1, qp::PAGE + 1, 4095, 4096, u32::MAX];
    let ring_elsewhere = |doorbell: Doorbell| {
        for page in others {
            p.a.hca.doorbell(page, doorbell.to_u32());
        }
        run_until_idle();
    };

    run_until_idle();

    // The SQ has a work request for which no doorbell was rung.
    assert!(p.qa.post_all(&[p.wr(1, WrOpcode::RdmaWrite, 8).bytes()]));
    ring_elsewhere(Doorbell::Sq(p.qa.qpn));
    assert_eq!(p.cq_a.poll(), None);
    p.qa.ring_doorbell(Doorbell::Sq);
    run_until_idle();
    p.cq_a.expect(1, WcStatus::Success);

    // The CQ is armed after its completion was written.
    p.qa.post(&p.wr(2, WrOpcode::RdmaWrite, 8));
    run_until_idle();
    assert!(p.cq_a.arm_silently(ArmKind::Next));
    ring_elsewhere(Doorbell::Cq(p.cq_a.cqn));
    assert!(p.a.sink.is_empty());
    p.cq_a.ring_doorbell();
    p.a.sink.expect(EventKind::Completion, p.cq_a.cookie);
    p.cq_a.expect(2, WcStatus::Success);

    // The RQ of a QP in ERR has a receive to be flushed.
    p.qa.to(QpState::Err);
    run_until_idle();
    assert!(p.qa.put_recv(3, &[]));
    ring_elsewhere(Doorbell::Rq(p.qa.qpn));
    assert_eq!(p.cq_a.poll(), None);
    p.qa.ring_doorbell(Doorbell::Rq);
    run_until_idle();
    p.cq_a.expect(3, WcStatus::WrFlushErr);

    // Doorbell values that name no existing queue.
    for value in [
        0,
        u32::MAX,
        0x0100_0000,
        0x0200_0002,
        0x0300_0000,
        0x03ff_ffff,
        0x0400_0001,
        0x7f00_0002,
    ] {
        p.a.hca.doorbell(qp::PAGE, value);
    }
    healthy.works();
}

// abi: R-539
#[test]
fn a_doorbell_storm_costs_others_nothing_but_time() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let healthy = Healthy::new(&world);
        let stop = AtomicBool::new(false);
        let storm = Qp::new(&world.vms[0], &healthy.cq, &healthy.cq, Options::default());
        let (hca, qpn, cqn) = (&world.vms[0].hca, storm.qpn, healthy.cq.cqn);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        for value in [
                            Doorbell::Sq(qpn),
                            Doorbell::Rq(qpn),
                            Doorbell::Cq(cqn),
                            Doorbell::Sq(Qpn::new(qpn.get() + 9)),
                        ] {
                            hca.doorbell(3, value.to_u32());
                        }
                    }
                });
            }
            for _ in 0..20 {
                healthy.works();
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}

// abi: R-122
#[test]
fn objects_may_go_while_work_is_outstanding() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let healthy = Healthy::new(&world);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        const LEN: u32 = 4 << 20;
        let (from, into_iova) = (a.mr(LEN.into()), b.alloc(LEN.into()));
        for round in 0..20 {
            let (cq_a, cq_b) = (Cq::new(a, 64), Cq::new(b, 64));
            let options = Options {
                signal: SigType::All,
                // In rounds in which the peer is destroyed, the requester should give up soon. In
                // other rounds, a slow peer must not cause an error.
                retry_cnt: if round % 4 == 1 { 0 } else { 7 },
                timeout: if round % 4 == 1 { 8 } else { 16 },
                slots: 16,
                ..Options::default()
            };
            let (qa, qb) = (
                Qp::new(a, &cq_a, &cq_a, options),
                Qp::new(b, &cq_b, &cq_b, options),
            );
            connect(&qa, &qb);
            let to = b.register(b.pdn, into_iova, LEN.into(), FULL);
            qa.post(
                &Wr::new(1, WrOpcode::RdmaWrite)
                    .local(&from, 0, LEN)
                    .remote(&to, 0),
            );
            qa.post(
                &Wr::new(2, WrOpcode::RdmaRead)
                    .local(&from, 0, LEN)
                    .remote(&to, 0),
            );
            match round % 4 {
                0 => {
                    b.call(CmdDeregMr { mrn: to.mrn }).unwrap();
                    // After the response to DEREG_MR, the device no longer writes to the memory.
                    let data = pattern(LEN as usize, round);
                    b.write(into_iova, &data);
                    let cqe = cq_a.next();
                    assert!([WcStatus::Success.value(), WcStatus::RemAccessErr.value()]
                        .contains(&cqe.status));
                    cq_a.next();
                    assert!(
                        b.read(into_iova, LEN as usize) == data,
                        "written after DEREG_MR"
                    );
                }
                1 => {
                    qb.destroy().unwrap();
                    cq_b.destroy().unwrap();
                    cq_a.next();
                    cq_a.next();
                }
                2 => {
                    qa.destroy().unwrap();
                    cq_a.destroy().unwrap();
                    let data = pattern(LEN as usize, round);
                    b.write(into_iova, &data);
                    healthy.works();
                    // On the wire path, frames may still be in flight to the responder, which is
                    // not destroyed.
                    if path == PathPolicy::Direct {
                        assert!(
                            b.read(into_iova, LEN as usize) == data,
                            "written after DESTROY_QP"
                        );
                    }
                }
                _ => {
                    qa.to(QpState::Reset);
                    qb.to(QpState::Reset);
                }
            }
            if round % 4 != 0 {
                b.call(CmdDeregMr { mrn: to.mrn }).unwrap();
            }
            let _ = (qa.destroy(), qb.destroy(), cq_a.destroy(), cq_b.destroy());
            healthy.works();
        }
    });
}

#[test]
fn drivers_that_come_and_go() {
    const VMS: usize = 3;
    const ROUNDS: u64 = 400;
    on_both_paths(|path| {
        let world = World::new(VMS, path);
        // The current QPN of each VM, or 0.
        let current: [AtomicU32; VMS] = Default::default();
        std::thread::scope(|scope| {
            for (index, vm) in world.vms.iter().enumerate() {
                let (world, current) = (&world, &current);
                scope.spawn(move || {
                    let mr = vm.mr(1 << 20);
                    for round in 0..ROUNDS {
                        let dice = pattern(8, round * 31 + index as u64);
                        let peer = usize::from(dice[0]) % VMS;
                        come_and_go(
                            vm,
                            &world.vms[peer],
                            &current[index],
                            &current[peer],
                            &mr,
                            &dice,
                        );
                    }
                });
            }
        });
        Healthy::new(&world).works();
    });
}

/// Creates, uses and destroys a QP. The random bytes `dice` choose the steps.
fn come_and_go(vm: &Vm, peer: &Vm, ours: &AtomicU32, theirs: &AtomicU32, mr: &Mr, dice: &[u8]) {
    let options = Options {
        retry_cnt: dice[1] & 1,
        rnr_retry: dice[1] & 7,
        timeout: 8,
        slots: 16,
        ..Options::default()
    };
    let (send, recv) = (Cq::new(vm, 32), Cq::new(vm, 32));
    let qp = Qp::new(vm, &send, &recv, options);
    ours.store(qp.qpn.get(), Ordering::SeqCst);
    qp.to_init().unwrap();
    let peer_qpn = Qpn::new(theirs.load(Ordering::SeqCst).max(2));
    qp.to_rtr(peer, peer_qpn).unwrap();
    if dice[2] % 4 != 0 && qp.to_rts().is_err() {
        // Packets of the peer may fail the QP before RTS.
        assert_eq!(qp.state(), QpState::Err);
    }
    for id in 0..u64::from(dice[3] % 16) {
        qp.post_recv(id, &[sge(mr, 0, 1 << 19)]);
        let opcode = [
            WrOpcode::Send,
            WrOpcode::RdmaWrite,
            WrOpcode::RdmaRead,
            WrOpcode::SendWithImm,
        ];
        let wr = Wr::new(id, opcode[usize::from(dice[4] % 4)]);
        // The R_Key of this VM's MR is valid at the peer only by chance.
        qp.post(&wr.local(mr, 0, 1 << (dice[5] % 20)).remote(mr, 0));
    }
    match dice[6] % 4 {
        0 => qp.to(QpState::Err),
        1 => qp.to(QpState::Reset),
        2 => {
            let _ = (send.poll(), recv.poll());
        }
        _ => {}
    }
    qp.destroy().unwrap();
    send.destroy().unwrap();
    recv.destroy().unwrap();
}

// abi: R-589
#[test]
fn memory_that_is_unmapped_under_a_ring_ends_its_qp() {
    let world = World::new(2, PathPolicy::Direct);
    let healthy = Healthy::new(&world);
    let vm = &world.vms[0];
    // This ring is outside the memory from which the driver allocates.
    let extra: u64 = 1 << 32;
    let fd = dma::testing::guest_memory(1 << 20).unwrap();
    vm.space.map(extra, fd, 0, 1 << 20, true).unwrap();
    let cq = Cq::new(vm, 64);
    let qp = Qp::with_sq_at(vm, extra, &cq, Options::default());
    connect(&qp, &qp);
    vm.space.unmap(extra, 1 << 20).unwrap();
    qp.ring_doorbell(Doorbell::Sq);
    qp.wait_for(QpState::Err);
    vm.sink
        .expect(EventKind::Async(AsyncEvent::QpFatal), qp.cookie);
    healthy.works();
}

/// One act of a hostile owner of a connection.
#[derive(Clone, Debug)]
enum Act {
    Scribble { ring: u8, offset: u32, byte: u8 },
    Post(Vec<u8>),
    Publish { ring: u8, position: u32 },
    Doorbell(u32),
    Poll,
}

fn act() -> impl Strategy<Value = Act> {
    let bytes = prop::collection::vec(any::<u8>(), 1..200);
    // WQEs with a plausible header and random content.
    let wqe = (0u8..6, 0u8..32, 0u8..40, bytes).prop_map(|(sges, flags, opcode, mut noise)| {
        noise.resize(128, 0);
        noise[..12].fill(0);
        noise[0] = sges;
        noise[4] = flags;
        noise[8] = opcode;
        noise
    });
    prop_oneof![
        3 => (0u8..5, any::<u32>(), any::<u8>())
            .prop_map(|(ring, offset, byte)| Act::Scribble { ring, offset, byte }),
        3 => wqe.prop_map(Act::Post),
        1 => (0u8..5, 0u32..80).prop_map(|(ring, position)| Act::Publish { ring, position }),
        2 => any::<u32>().prop_map(Act::Doorbell),
        1 => Just(Act::Poll),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    // abi
    #[test]
    fn garbage_in_rings_harms_only_its_owner(
        direct in any::<bool>(),
        acts in prop::collection::vec(act(), 1..80),
    ) {
        let path = if direct { PathPolicy::Direct } else { PathPolicy::Wire };
        let world = World::new(2, path);
        let healthy = Healthy::new(&world);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let (cq_a, cq_b) = (Cq::new(a, 16), Cq::new(b, 16));
        let qa = Qp::new(a, &cq_a, &cq_a, Options::default());
        let qb = Qp::new(b, &cq_b, &cq_b, Options::default());
        connect(&qa, &qb);
        let rings = [&qa.sq, &qa.rq, &qb.sq, &qb.rq, &cq_a.ring];
        let guard_a = pattern(4096, 1);
        let untouched = a.alloc(4096);
        a.write(untouched, &guard_a);
        for (position, act) in acts.iter().enumerate() {
            match act {
                Act::Scribble { ring, offset, byte } => {
                    rings[usize::from(*ring)].scribble(*offset, *byte)
                }
                Act::Post(wqe) => {
                    // Writes to the next slot, even if the device has not freed it.
                    let slot = position as u32;
                    let ring = &qa.sq;
                    ring.write(ring.layout.slot(slot), wqe);
                    ring.set_owner(slot + 1);
                    qa.ring_doorbell(Doorbell::Sq);
                }
                Act::Publish { ring, position } => {
                    let ring = rings[usize::from(*ring)];
                    ring.set_owner(*position);
                    qa.ring_doorbell(Doorbell::Rq);
                }
                Act::Doorbell(value) => a.hca.doorbell(3, *value),
                Act::Poll => {
                    let _ = cq_b.try_poll();
                }
            }
        }
        healthy.works();
        qa.destroy().unwrap();
        qb.destroy().unwrap();
        cq_a.destroy().unwrap();
        cq_b.destroy().unwrap();
        prop_assert!(a.read(untouched, 4096) == guard_a);
        healthy.works();
    }

    // abi: R-102
    #[test]
    fn garbage_commands_are_answered(
        command in prop::sample::select(Command::ALL),
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        room in 0usize..200,
    ) {
        let world = World::new(1, PathPolicy::Direct);
        let vm = &world.vms[0];
        let mut request = vec![command.value()];
        request.extend(&bytes);
        let mut response = Vec::new();
        vm.hca.command(&request, room, &mut response);
        prop_assert!(!response.is_empty() && (response.len() == 1 || response.len() <= room));
    }

    #[test]
    fn garbage_frames_are_dropped(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..20)
    ) {
        let world = World::new(2, PathPolicy::Wire);
        let healthy = Healthy::new(&world);
        for frame in &frames {
            world.net.inject(world.vms[1].mac, frame);
        }
        healthy.works();
    }
}
