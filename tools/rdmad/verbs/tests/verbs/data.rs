// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Data of all operations arrives unchanged at the right place, on both data paths.

use std::sync::atomic::Ordering;

use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::cqe::{OPCODE_RECV, OPCODE_RECV_RDMA_WITH_IMM};
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{
    AsyncEvent, Mtu, QpAttrMask, QpState, SendFlags, SigType, WcFlags, WcStatus, WrOpcode,
};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::qp::QpAttr;

/// Message sizes in bytes: empty, odd, near the path MTU, near page sizes, and longer than a turn.
const SIZES: [u32; 19] = [
    0,
    1,
    2,
    7,
    8,
    9,
    63,
    1023,
    1024,
    1025,
    2048,
    4095,
    4096,
    4097,
    65_535,
    131_073,
    1 << 20,
    (1 << 20) + 5,
    (16 << 20) - 1,
];

const BIG: u64 = 16 << 20;

#[test]
fn sends_of_all_sizes() {
    each_setup(|p| {
        let Pair {
            a,
            b,
            cq_a,
            cq_b,
            qa,
            qb,
            ..
        } = p;
        let (from, to) = (a.mr(BIG), b.mr(BIG));
        for (round, &size) in SIZES.iter().enumerate() {
            for sges in 1..=4 {
                let data = pattern(size as usize, u64::from(size) + 1);
                a.write(from.iova, &data);
                b.write(to.iova, &vec![0xee; size as usize]);
                let id = round as u64 * 10 + u64::from(sges);
                qb.post_recv(id, &split(&to, size, 5 - sges));
                // abi
                let mut wr = Wr::new(id + 1000, WrOpcode::SendWithImm).imm([1, 2, 3, sges as u8]);
                wr.sges = split(&from, size, sges);
                qa.post(&wr);
                // abi
                let recv = cq_b.expect(id, WcStatus::Success);
                // abi
                assert_eq!(
                    (recv.byte_len, recv.opcode, recv.qp_num),
                    (size, OPCODE_RECV, qb.qpn)
                );
                // abi
                assert_eq!(
                    (recv.ex, recv.wc_flags),
                    ([1, 2, 3, sges as u8], WcFlags::WITH_IMM)
                );
                let send = cq_a.expect(id + 1000, WcStatus::Success);
                assert_eq!(
                    (send.opcode, send.qp_num),
                    (WrOpcode::SendWithImm.value() as u8, qa.qpn)
                );
                // abi
                assert!(
                    b.read(to.iova, size as usize) == data,
                    "{size} bytes in {sges} SGEs"
                );
            }
        }
        assert!(a.sink.is_empty() && b.sink.is_empty());
    });
}

#[test]
fn writes_and_reads_of_all_sizes() {
    let options = Options {
        mtu: Mtu::Mtu4096,
        ..Options::default()
    };
    each_setup_with(options, |p| {
        let Pair {
            a,
            b,
            cq_a,
            cq_b,
            qa,
            qb,
            ..
        } = p;
        let (local, remote) = (a.mr(BIG), b.mr(BIG + 8));
        for &size in &SIZES {
            let data = pattern(size as usize, u64::from(size) + 2);
            a.write(local.iova, &data);
            let mut wr = Wr::new(1, WrOpcode::RdmaWrite).remote(&remote, 3);
            wr.sges = split(&local, size, 3);
            qa.post(&wr);
            let cqe = cq_a.expect(1, WcStatus::Success);
            // abi: R-684
            assert_eq!(cqe.opcode, WrOpcode::RdmaWrite.value() as u8);
            // abi
            assert!(
                b.read(remote.iova + 3, size as usize) == data,
                "WRITE of {size}"
            );
            assert_eq!(
                cq_b.poll(),
                None,
                "a WRITE completes nothing at the responder"
            );

            a.write(local.iova, &vec![0; size as usize]);
            let mut wr = Wr::new(2, WrOpcode::RdmaRead).remote(&remote, 3);
            wr.sges = split(&local, size, 4);
            qa.post(&wr);
            let cqe = cq_a.expect(2, WcStatus::Success);
            // abi: R-686
            assert_eq!(
                (cqe.opcode, cqe.byte_len),
                (WrOpcode::RdmaRead.value() as u8, size)
            );
            // abi
            assert!(a.read(local.iova, size as usize) == data, "READ of {size}");

            qb.post_recv(9, &[]);
            // abi: R-614
            let mut wr = Wr::new(3, WrOpcode::RdmaWriteWithImm)
                .remote(&remote, 5)
                .imm([9, 8, 7, 6]);
            wr.sges = split(&local, size, 1);
            qa.post(&wr);
            cq_a.expect(3, WcStatus::Success);
            let cqe = cq_b.expect(9, WcStatus::Success);
            assert_eq!(
                (cqe.opcode, cqe.byte_len),
                (OPCODE_RECV_RDMA_WITH_IMM, size)
            );
            // abi
            assert_eq!((cqe.ex, cqe.wc_flags), ([9, 8, 7, 6], WcFlags::WITH_IMM));
            assert!(
                b.read(remote.iova + 5, size as usize) == data,
                "WRITE with IMM of {size}"
            );
        }
    });
}

// abi
#[test]
fn pages_that_lie_apart() {
    const PAGE: u64 = 4096;
    const LEN: u64 = 6 * PAGE;
    // The pages of the MRs are in reverse order.
    let at = |mr: &Mr, offset: u64| mr.iova + LEN - PAGE - (offset - offset % PAGE) + offset % PAGE;
    let get = |vm: &Vm, mr: &Mr, from: u64, size: u32| -> Vec<u8> {
        let offsets = from..from + u64::from(size);
        offsets
            .flat_map(|offset| vm.read(at(mr, offset), 1))
            .collect()
    };
    each_setup(|p| {
        let [ma, mb] = [p.a, p.b].map(|vm| vm.register_reversed(vm.pdn, vm.alloc(LEN), LEN, FULL));
        let ranges = [(0, 0, LEN as u32), (100, 5000, 9000), (4095, 8191, 4098)];
        for (id, (local, remote, size)) in ranges.into_iter().enumerate() {
            for opcode in [WrOpcode::RdmaWrite, WrOpcode::RdmaRead] {
                p.a.write(ma.iova, &pattern(LEN as usize, id as u64 + 1));
                p.b.write(mb.iova, &pattern(LEN as usize, id as u64 + 9));
                let (ours, theirs) = (get(p.a, &ma, local, size), get(p.b, &mb, remote, size));
                let wr = Wr::new(id as u64, opcode)
                    .local(&ma, local, size)
                    .remote(&mb, remote);
                p.qa.post(&wr);
                p.cq_a.expect(id as u64, WcStatus::Success);
                match opcode {
                    WrOpcode::RdmaWrite => assert!(get(p.b, &mb, remote, size) == ours),
                    _ => assert!(get(p.a, &ma, local, size) == theirs),
                }
            }
        }
    });
}

// abi
#[test]
fn inline_data() {
    each_setup(|p| {
        let Pair {
            b,
            cq_a,
            cq_b,
            qa,
            qb,
            ..
        } = p;
        let to = b.mr(4096);
        for size in [0, 1, 8, 199, 200] {
            let data = pattern(size, 5);
            qb.post_recv(1, &[sge(&to, 0, 4096)]);
            qa.post(&Wr::new(2, WrOpcode::Send).inline(&data));
            cq_a.expect(2, WcStatus::Success);
            assert_eq!(cq_b.expect(1, WcStatus::Success).byte_len, size as u32);
            assert_eq!(b.read(to.iova, size), data);
            qa.post(
                &Wr::new(3, WrOpcode::RdmaWrite)
                    .remote(&to, 1000)
                    .inline(&data),
            );
            cq_a.expect(3, WcStatus::Success);
            assert_eq!(b.read(to.iova + 1000, size), data);
        }
    });
}

// abi
#[test]
fn a_stream_in_both_directions_stays_in_order() {
    const MESSAGES: u64 = 300;
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        let (a, b) = (&world.vms[0], &world.vms[1]);
        std::thread::scope(|scope| {
            let (send_qpn, recv_qpn) = std::sync::mpsc::channel();
            let (back_send, back_recv) = std::sync::mpsc::channel();
            scope.spawn(move || stream(a, b, MESSAGES, send_qpn, back_recv));
            scope.spawn(move || stream(b, a, MESSAGES, back_send, recv_qpn));
        });
    });
}

/// One end of a connection on which both ends send a stream of messages.
fn stream(
    vm: &Vm,
    peer: &Vm,
    messages: u64,
    tell: std::sync::mpsc::Sender<Qpn>,
    told: std::sync::mpsc::Receiver<Qpn>,
) {
    const SIZE: u32 = 3000;
    let cq = Cq::new(vm, 256);
    let qp = Qp::new(
        vm,
        &cq,
        &cq,
        Options {
            signal: SigType::All,
            ..Options::default()
        },
    );
    let (out, into) = (vm.mr(64 * 4096), vm.mr(64 * 4096));
    qp.to_init().unwrap();
    let slot = |n: u64| n % 64 * 4096;
    let mut posted = 0;
    while posted < 64 {
        qp.post_recv(posted, &[sge(&into, slot(posted), SIZE)]);
        posted += 1;
    }
    tell.send(qp.qpn).unwrap();
    let peer_qpn = told.recv().unwrap();
    qp.to_rtr(peer, peer_qpn).unwrap();
    qp.to_rts().unwrap();
    let (mut sent, mut acked, mut received) = (0, 0, 0);
    while acked < messages || received < messages {
        while sent < messages && sent < acked + 60 {
            vm.write(out.iova + slot(sent), &pattern(SIZE as usize, sent));
            qp.post(&Wr::new(1000 + sent, WrOpcode::Send).local(&out, slot(sent), SIZE));
            sent += 1;
        }
        let cqe = cq.next();
        assert_eq!(cqe.status, WcStatus::Success.value(), "{cqe:?}");
        if cqe.wr_id >= 1000 {
            assert_eq!(cqe.wr_id, 1000 + acked);
            acked += 1;
        } else {
            assert_eq!(cqe.wr_id, received % 64);
            assert!(
                vm.read(into.iova + slot(received), SIZE as usize)
                    == pattern(SIZE as usize, received)
            );
            received += 1;
            qp.post_recv(posted % 64, &[sge(&into, slot(posted), SIZE)]);
            posted += 1;
        }
    }
}

// abi
#[test]
fn unsignalled_work_completes_silently() {
    each_setup(|p| {
        let Pair { a, b, cq_a, qa, .. } = p;
        let (local, remote) = (a.mr(64), b.mr(64));
        for round in 1000..1100 {
            for id in 0..20 {
                qa.post(
                    &Wr::new(id, WrOpcode::RdmaWrite)
                        .flags(SendFlags::NONE)
                        .local(&local, 0, 64)
                        .remote(&remote, 0),
                );
            }
            qa.post(
                &Wr::new(round, WrOpcode::RdmaWrite)
                    .local(&local, 0, 64)
                    .remote(&remote, 0),
            );
            cq_a.expect(round, WcStatus::Success);
        }
    });
}

#[test]
fn loopback_to_another_qp_and_to_itself() {
    in_all_setups(|setup| {
        let world = World::new(1, setup);
        let vm = &world.vms[0];
        let cq = Cq::new(vm, 64);
        let mr = vm.mr(1 << 17);
        let (qa, qb) = (
            Qp::new(vm, &cq, &cq, Options::default()),
            Qp::new(vm, &cq, &cq, Options::default()),
        );
        connect(&qa, &qb);
        let itself = Qp::new(vm, &cq, &cq, Options::default());
        connect(&itself, &itself);
        for (from, to) in [(&qa, &qb), (&qb, &qa), (&itself, &itself)] {
            let data = pattern(5000, 77);
            vm.write(mr.iova, &data);
            vm.write(mr.iova + 65536, &[0; 5000]);
            to.post_recv(1, &[sge(&mr, 65536, 5000)]);
            from.post(&Wr::new(2, WrOpcode::Send).local(&mr, 0, 5000));
            let mut ids = [cq.next(), cq.next()].map(|cqe| (cqe.wr_id, cqe.status));
            ids.sort();
            assert_eq!(ids, [(1, 0), (2, 0)]);
            assert_eq!(vm.read(mr.iova + 65536, 5000), data);
            from.post(
                &Wr::new(3, WrOpcode::RdmaRead)
                    .local(&mr, 8192, 5000)
                    .remote(&mr, 65536),
            );
            cq.expect(3, WcStatus::Success);
            assert_eq!(vm.read(mr.iova + 8192, 5000), data);
        }
    });
}

#[test]
fn the_wire_survives_loss() {
    in_both_modes(PathPolicy::Wire, |setup| {
        let world = World::new(2, setup);
        world.net.lose_one_in.store(20, Ordering::Relaxed);
        let Pair { a, b, cq_a, qa, .. } = Pair::new(&world);
        let (local, remote) = (a.mr(1 << 18), b.mr(1 << 18));
        let data = pattern(1 << 18, 3);
        a.write(local.iova, &data);
        for round in 0..4 {
            qa.post(
                &Wr::new(round, WrOpcode::RdmaWrite)
                    .local(&local, 0, 1 << 18)
                    .remote(&remote, 0),
            );
            cq_a.expect(round, WcStatus::Success);
            assert!(b.read(remote.iova, 1 << 18) == data);
            a.write(local.iova, &vec![0; 1 << 18]);
            qa.post(
                &Wr::new(round, WrOpcode::RdmaRead)
                    .local(&local, 0, 1 << 18)
                    .remote(&remote, 0),
            );
            cq_a.expect(round, WcStatus::Success);
            assert!(a.read(local.iova, 1 << 18) == data);
        }
    });
}

#[test]
fn the_direct_path_sends_no_frames() {
    in_both_modes(PathPolicy::Direct, |setup| {
        let world = World::new(2, setup);
        let Pair {
            cq_a, cq_b, qa, qb, ..
        } = Pair::new(&world);
        qb.post_recv(1, &[]);
        qa.post(&Wr::new(2, WrOpcode::Send));
        cq_a.expect(2, WcStatus::Success);
        cq_b.expect(1, WcStatus::Success);
        assert_eq!(world.net.sent.load(Ordering::Relaxed), 0);
    });
}

// abi
#[test]
fn a_first_message_in_rtr_establishes_the_connection() {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let (cq_a, cq_b) = (Cq::new(a, 64), Cq::new(b, 64));
        let (qa, qb) = (
            Qp::new(a, &cq_a, &cq_a, Options::default()),
            Qp::new(b, &cq_b, &cq_b, Options::default()),
        );
        qa.to_init().unwrap();
        qb.to_init().unwrap();
        qa.to_rtr(b, qb.qpn).unwrap();
        qa.to_rts().unwrap();
        // The peer is not in RTR yet: the SEND is retried until the peer is.
        qa.post(&Wr::new(2, WrOpcode::Send));
        qb.post_recv(1, &[]);
        qb.to_rtr(a, qa.qpn).unwrap();
        cq_a.expect(2, WcStatus::Success);
        cq_b.expect(1, WcStatus::Success);
        b.sink
            .expect(EventKind::Async(AsyncEvent::CommEst), qb.cookie);
        qb.to_rts().unwrap();
        assert_eq!(qb.state(), QpState::Rts);
        assert!(b.sink.is_empty());
    });
}

#[test]
fn a_connection_changes_its_path_between_messages() {
    in_both_modes(PathPolicy::Wire, |setup| {
        let world = World::new(2, setup);
        let Pair {
            a,
            b,
            cq_a,
            cq_b,
            qa,
            qb,
            ..
        } = Pair::new(&world);
        let (from, to) = (a.mr(8192), b.mr(8192));
        for round in 0..8 {
            let path = PATHS[round as usize % 2];
            world.runtime.set_path(path);
            // The change to RTS selects the data path again.
            qa.modify(QpState::Rts, QpAttrMask::NONE, QpAttr::default())
                .unwrap();
            let frames = world.net.sent.load(Ordering::Relaxed);
            for id in 0..5 {
                let data = pattern(5000, round * 10 + id);
                a.write(from.iova, &data);
                qb.post_recv(id, &[sge(&to, 0, 5000)]);
                qa.post(&Wr::new(id, WrOpcode::Send).local(&from, 0, 5000));
                cq_a.expect(id, WcStatus::Success);
                cq_b.expect(id, WcStatus::Success);
                assert!(b.read(to.iova, 5000) == data);
            }
            let sent = world.net.sent.load(Ordering::Relaxed) - frames;
            assert_eq!(
                sent == 0,
                path == PathPolicy::Direct,
                "{path:?}: {sent} frames"
            );
        }
    });
}
