// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Unreliable connections.

use std::sync::atomic::Ordering;
use std::time::Duration;

use testkit::engine::*;
use verbs::{Clock, Limits, PathPolicy, RuntimeConfig};
use virtio_rdma_abi::cqe::{OPCODE_RECV, OPCODE_RECV_RDMA_WITH_IMM};
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent, QpState, QpType, WcStatus, WrOpcode};

/// Message sizes in bytes: near the path MTU and page sizes, and longer than a turn.
const SIZES: [u32; 9] = [0, 1, 7, 1023, 1024, 1025, 4097, 131_073, 1_200_001];

fn each_uc(test: impl Fn(&Pair<'_>)) {
    each_setup_with(Options::of(QpType::Uc), test);
}

#[test]
fn messages_of_all_sizes() {
    let options = Options {
        mtu: virtio_rdma_abi::ib::Mtu::Mtu4096,
        // abi: R-177
        ..Options::of(QpType::Uc)
    };
    each_setup_with(options, |p| {
        let (from, to) = (p.a.mr(2 << 20), p.b.mr(2 << 20));
        for size in SIZES {
            // abi
            for opcode in [WrOpcode::SendWithImm, WrOpcode::RdmaWriteWithImm] {
                let data = pattern(size as usize, u64::from(size) + 3);
                p.a.write(from.iova, &data);
                p.b.write(to.iova, &vec![0; size as usize]);
                p.qb.post_recv(5, &split(&to, size, 3));
                let mut wr = Wr::new(1, opcode).remote(&to, 0).imm([1, 2, 3, 4]);
                wr.sges = split(&from, size, 4);
                p.qa.post(&wr);
                p.cq_a.expect(1, WcStatus::Success);
                let cqe = p.cq_b.expect(5, WcStatus::Success);
                let receive = match opcode {
                    WrOpcode::SendWithImm => OPCODE_RECV,
                    _ => OPCODE_RECV_RDMA_WITH_IMM,
                };
                // abi
                assert_eq!(
                    (cqe.opcode, cqe.byte_len, cqe.ex),
                    (receive, size, [1, 2, 3, 4])
                );
                // abi: R-675
                assert!(p.b.read(to.iova, size as usize) == data, "{size} bytes");
            }
        }
        p.responder_lives();
    });
}

/// Posts a message after `spoil` has changed its work request or the peer so that the message is
/// dropped. Checks that the requester sees no error and that the next message arrives.
fn is_lost(opcode: WrOpcode, spoil: impl Fn(&Pair<'_>, &mut Wr)) {
    each_uc(|p| {
        let mut wr = p.wr(1, opcode, 100);
        spoil(p, &mut wr);
        p.qa.post(&wr);
        p.cq_a.expect(1, WcStatus::Success);
        p.await_delivery();
        p.qb.post_recv(8, &[sge(&p.mb, 0, 4096)]);
        p.qb.post_recv(9, &[sge(&p.mb, 0, 4096)]);
        p.qa.post(&p.send(2, 64));
        p.cq_a.expect(2, WcStatus::Success);
        let cqe = p.cq_b.next();
        assert_eq!(
            (cqe.status, cqe.byte_len),
            (WcStatus::Success.value(), 64),
            "{cqe:?}"
        );
        assert_eq!(p.qa.state(), QpState::Rts);
        p.responder_lives();
    });
}

// abi: R-678
#[test]
fn messages_that_find_no_receive() {
    is_lost(WrOpcode::Send, |_, _| ());
    is_lost(WrOpcode::RdmaWriteWithImm, |_, _| ());
}

// abi: R-678
#[test]
fn messages_longer_than_their_receive() {
    for len in [100, 5000] {
        is_lost(WrOpcode::Send, |p, wr| {
            p.qb.post_recv(7, &[sge(&p.mb, 0, 64)]);
            wr.sges[0].length = len;
        });
    }
}

#[test]
fn writes_that_the_peer_refuses() {
    for opcode in [WrOpcode::RdmaWrite, WrOpcode::RdmaWriteWithImm] {
        is_lost(opcode, |_, wr| wr.remote.rkey ^= 1);
        is_lost(opcode, |p, wr| wr.remote.remote_addr += p.mb.len - 99);
        is_lost(opcode, |p, wr| {
            let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
            let mr = p.b.register(p.b.pdn, p.b.alloc(100), 100, access);
            wr.remote.rkey = mr.key;
            wr.remote.remote_addr = mr.addr;
        });
    }
}

#[test]
fn a_qp_that_admits_no_writes() {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        let theirs = Options {
            access: AccessFlags::NONE,
            ..Options::of(QpType::Uc)
        };
        let p = Pair::with(&world, Options::of(QpType::Uc), theirs);
        p.b.write(p.mb.iova, &[9; 64]);
        p.qa.post(&p.wr(1, WrOpcode::RdmaWrite, 64));
        p.cq_a.expect(1, WcStatus::Success);
        p.qb.post_recv(2, &[]);
        p.qa.post(&p.send(2, 0));
        p.cq_b.expect(2, WcStatus::Success);
        assert_eq!(p.b.read(p.mb.iova, 64), [9; 64]);
        p.responder_lives();
    });
}

#[test]
fn a_peer_that_is_not_there() {
    type Vanish = fn(&Pair<'_>);
    let ways: [(&str, Vanish); 4] = [
        ("destroyed", |p| assert!(p.qb.destroy().is_ok())),
        ("reset", |p| p.qb.to(QpState::Reset)),
        ("in error", |p| p.qb.to(QpState::Err)),
        ("link down", |p| p.b.hca.set_link(false)),
    ];
    for (name, vanish) in ways {
        eprintln!("{name}");
        each_uc(|p| {
            vanish(p);
            for id in 0..3 {
                p.qa.post(&p.send(id, 64));
                p.cq_a.expect(id, WcStatus::Success);
            }
            assert_eq!(p.qa.state(), QpState::Rts);
        });
    }
}

/// A port whose link is down takes no packets: they use no receives and write no memory.
#[test]
fn a_port_without_a_link_takes_nothing() {
    in_all_setups(|setup| {
        let config = RuntimeConfig {
            path: setup.path,
            clock: Clock::manual(),
            ..RuntimeConfig::default()
        };
        let world = World::in_mode(setup.mode, 2, config, Limits::default());
        let options = Options::of(QpType::Uc);
        let p = Pair::with(&world, options, options);
        p.b.write(p.mb.iova, &[9; 64]);
        p.qb.post_recv(5, &[]);
        let exchange = || {
            p.qa.post(&p.wr(1, WrOpcode::RdmaWrite, 64));
            p.qa.post(&p.send(2, 0));
            world.runtime.advance(Duration::ZERO);
            let sent = [(); 2].map(|()| p.cq_a.poll().map(|cqe| cqe.wr_id));
            assert_eq!(sent, [Some(1), Some(2)]);
        };
        p.b.hca.set_link(false);
        exchange();
        assert_eq!(p.cq_b.poll(), None);
        assert_eq!(p.b.read(p.mb.iova, 64), [9; 64]);
        p.b.hca.set_link(true);
        exchange();
        assert_eq!(p.cq_b.poll().map(|cqe| cqe.wr_id), Some(5));
        assert_ne!(p.b.read(p.mb.iova, 64), [9; 64]);
    });
}

// abi: R-676
#[test]
fn a_receive_with_bad_memory_ends_the_receiver() {
    each_uc(|p| {
        let mut bad = sge(&p.mb, 0, 4096);
        bad.lkey ^= 1;
        p.qb.post_recv(3, &[bad]);
        p.qb.post_recv(4, &[]);
        p.qa.post(&p.send(1, 100));
        p.cq_a.expect(1, WcStatus::Success);
        p.cq_b.expect(3, WcStatus::LocProtErr);
        p.cq_b.expect(4, WcStatus::WrFlushErr);
        p.responder_failed(None);
        assert_eq!(p.qa.state(), QpState::Rts);
    });
}

// abi: R-208
#[test]
fn a_first_message_in_rtr_establishes_the_connection() {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let (cq_a, cq_b) = (Cq::new(a, 64), Cq::new(b, 64));
        let qa = Qp::new(a, &cq_a, &cq_a, Options::of(QpType::Uc));
        let qb = Qp::new(b, &cq_b, &cq_b, Options::of(QpType::Uc));
        qb.to_init().unwrap();
        qb.to_rtr(a, qa.qpn).unwrap();
        qb.post_recv(1, &[]);
        qa.to_init().unwrap();
        qa.to_rtr(b, qb.qpn).unwrap();
        qa.to_rts().unwrap();
        qa.post(&Wr::new(2, WrOpcode::Send));
        cq_b.expect(1, WcStatus::Success);
        b.sink
            .expect(EventKind::Async(AsyncEvent::CommEst), qb.cookie);
    });
}

/// A sender is reset in the middle of a message. The next message takes the receive that the
/// responder holds for the incomplete message.
#[test]
fn a_sender_that_starts_anew() {
    /// Bytes of a long message. A port has buffers for all of its packets, so that none is lost.
    const LONG: u32 = 512 << 10;
    each_uc(|p| {
        let big = p.a.mr(LONG.into());
        let into = p.b.mr(LONG.into());
        for id in 0..4 {
            p.qb.post_recv(id, &[sge(&into, 0, LONG)]);
        }
        let mut received = 0;
        for round in 0..4 {
            p.qa.post(&Wr::new(9, WrOpcode::Send).local(&big, 0, LONG));
            p.qa.to(QpState::Reset);
            while p.cq_a.poll().is_some() {}
            p.qa.to_init().unwrap();
            p.qa.to_rtr(p.b, p.qb.qpn).unwrap();
            p.qa.to_rts().unwrap();
            let data = pattern(2000, round);
            p.a.write(p.ma.iova, &data);
            p.qa.post(&p.send(round, 2000));
            p.cq_a.expect(round, WcStatus::Success);
            // The long message may be complete before the reset.
            loop {
                let cqe = p.cq_b.expect(received, WcStatus::Success);
                received += 1;
                p.qb.post_recv(received + 3, &[sge(&into, 0, LONG)]);
                if cqe.byte_len == 2000 {
                    break;
                }
            }
            assert!(p.b.read(into.iova, 2000) == data);
        }
    });
}

/// Messages that are received over a lossy network are complete and in order.
#[test]
fn what_a_lossy_network_leaves_is_whole() {
    in_both_modes(PathPolicy::Wire, |setup| {
        const MESSAGES: u32 = 300;
        let world = World::new(2, setup);
        let options = Options::of(QpType::Uc);
        let p = Pair::with(&world, options, options);
        let receives = |n: u32| u64::from(n % 32) * 2048;
        for n in 0..32 {
            p.qb.post_recv(n.into(), &[sge(&p.mb, receives(n), 2048)]);
        }
        world.net.lose_one_in.store(10, Ordering::Relaxed);
        let (mut received, mut last) = (0, None);
        for n in 0..MESSAGES {
            p.a.write(p.ma.iova, &pattern(2048, n.into()));
            p.qa.post(&p.wr(1, WrOpcode::SendWithImm, 2048).imm(n.to_be_bytes()));
            p.cq_a.expect(1, WcStatus::Success);
            while let Some(cqe) = p.cq_b.poll() {
                let number = u32::from_be_bytes(cqe.ex);
                assert_eq!(
                    (cqe.status, cqe.byte_len, cqe.wr_id),
                    (0, 2048, (received % 32).into())
                );
                assert!(last < Some(number), "{number} after {last:?}");
                last = Some(number);
                let at = p.mb.iova + receives(received);
                assert!(p.b.read(at, 2048) == pattern(2048, number.into()));
                p.qb.post_recv(
                    (received % 32).into(),
                    &[sge(&p.mb, receives(received), 2048)],
                );
                received += 1;
            }
        }
        assert!((MESSAGES / 4..MESSAGES).contains(&received), "{received}");
        p.responder_lives();
    });
}
