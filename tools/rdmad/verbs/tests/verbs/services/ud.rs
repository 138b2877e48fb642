// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Datagrams.

use roce::net::gid_to_ip;
use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::cqe::OPCODE_RECV;
use virtio_rdma_abi::ctrl::{CmdAddGid, CmdDelGid};
use virtio_rdma_abi::ib::{QpState, QpType, SendFlags, WcFlags, WcStatus, WrOpcode};
use virtio_rdma_abi::number::{Pdn, Qpn};
use virtio_rdma_abi::wqe::{AddressVector, Datagram};

use super::{each_ud, GRH};

/// Path MTU of the port in bytes.
const MTU: u32 = 4096;

/// Checks the GRH of a datagram over IPv4: the IPv4 header is in its last 20 bytes.
///
/// `transport` is the number of bytes between the DETH and the ICRC.
fn check_grh(grh: &[u8], [from, to]: [&Vm; 2], hop_limit: u8, traffic_class: u8, transport: u32) {
    let ip = &grh[20..];
    assert_eq!(
        (ip[0], ip[1], ip[8], ip[9]),
        (0x45, traffic_class, hop_limit, 17)
    );
    let address = |at: usize| std::net::IpAddr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap());
    assert_eq!(
        (address(12), address(16)),
        (gid_to_ip(from.gid), gid_to_ip(to.gid))
    );
    let sum = ip
        .chunks(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum::<u32>();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "its checksum");
    // Lengths of IPv4 header, UDP header, BTH, DETH, `transport` and ICRC.
    let total = 20 + 8 + 12 + 8 + transport + 4;
    assert_eq!(u32::from(u16::from_be_bytes([ip[2], ip[3]])), total);
}

#[test]
fn datagrams_of_all_sizes() {
    // abi: R-178
    each_ud(|p| {
        for size in [0, 1, 2, 3, 7, 8, 9, 1023, 1024, 1025, MTU - 1, MTU] {
            for opcode in [WrOpcode::Send, WrOpcode::SendWithImm] {
                let data = pattern(size as usize, u64::from(size) + 1);
                p.a.write(p.ma.iova, &data);
                p.b.write(p.mb.iova, &[0xee; 5000]);
                p.qb.post_recv(1, &split(&p.mb, size + GRH as u32, 4));
                let mut wr = p.wr(2, opcode, 0).imm([5, 6, 7, 8]);
                wr.sges = split(&p.ma, size, 3);
                let to = wr.to.as_mut().unwrap();
                to.av.hop_limit = 7;
                to.av.sl_tclass_flowlabel = AddressVector::pack(3, 0x1c, 0x1234).unwrap();
                p.qa.post(&wr);
                p.cq_a.expect(2, WcStatus::Success);
                let cqe = p.cq_b.expect(1, WcStatus::Success);
                // abi
                assert_eq!(
                    (cqe.opcode, cqe.byte_len, cqe.qp_num, cqe.port_num),
                    (OPCODE_RECV, size + GRH as u32, p.qb.qpn, 1)
                );
                // Without a VLAN tag, `sl` is the type of the headers: 10 for UDP over IPv4.
                // abi
                assert_eq!((cqe.src_qp, cqe.pkey_index, cqe.sl), (p.qa.qpn, 0, 10));
                let flags = match opcode {
                    WrOpcode::SendWithImm => {
                        // abi: R-687
                        assert_eq!(cqe.ex, [5, 6, 7, 8]);
                        WcFlags::GRH | WcFlags::WITH_IMM
                    }
                    _ => WcFlags::GRH,
                };
                // abi
                assert_eq!(cqe.wc_flags, flags | WcFlags::WITH_NETWORK_HDR_TYPE);
                let grh = p.b.read(p.mb.iova, GRH as usize);
                let imm = if opcode == WrOpcode::Send { 0 } else { 4 };
                let transport = imm + size.next_multiple_of(4);
                // abi: R-679
                check_grh(&grh, [p.a, p.b], 7, 0x1c, transport);
                assert!(p.b.read(p.mb.iova + GRH, size as usize) == data);
                let after = p.b.read(p.mb.iova + GRH + u64::from(size), 8);
                assert_eq!(after, [0xee; 8], "no more than the message");
            }
        }
        p.responder_lives();
    });
}

// abi: R-679
#[test]
fn datagrams_over_ipv6() {
    each_ud(|p| {
        let gid = |n| {
            let mut gid = [0; 16];
            (gid[0], gid[15]) = (0xfd, n);
            gid
        };
        for (vm, n) in [(p.a, 1), (p.b, 2)] {
            vm.call(CmdAddGid {
                gid: gid(n),
                gid_type: 2,
                index: 9,
                port_num: 1,
            })
            .unwrap();
        }
        let mut wr = p.send(2, 100);
        let to = wr.to.as_mut().unwrap();
        (to.av.gid_index, to.av.dgid, to.av.hop_limit) = (9, gid(2), 3);
        to.av.sl_tclass_flowlabel = AddressVector::pack(0, 0x28, 0x5_4321).unwrap();
        p.qb.post_recv(1, &[sge(&p.mb, 0, 200)]);
        p.qa.post(&wr);
        p.cq_b.expect(1, WcStatus::Success);
        let grh = p.b.read(p.mb.iova, GRH as usize);
        assert_eq!(grh[..4], [0x62, 0x85, 0x43, 0x21]);
        // Lengths of UDP header, BTH, DETH, data and ICRC.
        assert_eq!(grh[4..6], (8 + 12 + 8 + 100 + 4u16).to_be_bytes());
        assert_eq!(grh[6..8], [17, 3]);
        assert_eq!((&grh[8..24], &grh[24..]), (&gid(1)[..], &gid(2)[..]));
    });
}

#[test]
fn inline_datagrams() {
    each_ud(|p| {
        p.qb.post_recv(1, &[sge(&p.mb, 0, 1000)]);
        p.qa.post(&Wr::new(2, WrOpcode::Send).to(&p.qb).inline(b"by value"));
        p.cq_a.expect(2, WcStatus::Success);
        p.cq_b.expect(1, WcStatus::Success);
        assert_eq!(p.b.read(p.mb.iova + GRH, 8), b"by value");
    });
}

/// A QP can send to itself, to a QP of its own VM and to a QP of another VM.
// abi
#[test]
fn one_qp_and_many_peers() {
    in_all_setups(|setup| {
        let world = World::new(3, setup);
        let vm = &world.vms[0];
        let cq = Cq::new(vm, 64);
        let from = vm.mr(4096);
        let cqs: Vec<_> = world.vms.iter().map(|vm| Cq::new(vm, 64)).collect();
        let options = Options::of(QpType::Ud);
        let own = Qp::new(vm, &cq, &cqs[0], options);
        connect(&own, &own);
        let others: Vec<_> = world
            .vms
            .iter()
            .zip(&cqs)
            .map(|(vm, cq)| {
                let qp = Qp::new(vm, cq, cq, options);
                connect(&qp, &qp);
                qp
            })
            .collect();
        let peers = others.iter().zip(&cqs).chain([(&own, &cqs[0])]);
        for (round, (peer, peer_cq)) in peers.enumerate() {
            let to = peer.vm.mr(4096);
            let data = pattern(500, round as u64);
            vm.write(from.iova, &data);
            peer.post_recv(1, &[sge(&to, 0, 4096)]);
            own.post(&Wr::new(2, WrOpcode::Send).local(&from, 0, 500).to(peer));
            cq.expect(2, WcStatus::Success);
            let cqe = peer_cq.expect(1, WcStatus::Success);
            assert_eq!((cqe.src_qp, cqe.qp_num), (own.qpn, peer.qpn));
            assert!(peer.vm.read(to.iova + GRH, 500) == data);
        }
    });
}

/// A sender may destroy its QP without waiting for the completions of its datagrams.
#[test]
fn datagrams_posted_before_their_qp_is_destroyed() {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        let options = Options::of(QpType::Ud);
        let p = Pair::with(&world, options, options);
        for round in 0..20 {
            let sender = Qp::new(p.a, &p.cq_a, &p.cq_a, options);
            connect(&sender, &sender);
            for id in 0..10 {
                p.qb.post_recv(id, &[sge(&p.mb, 0, 4096)]);
            }
            for id in 0..10 {
                sender.post(&p.send(id, 100).flags(SendFlags::NONE));
            }
            sender.destroy().unwrap();
            for id in 0..10 {
                let cqe = p.cq_b.expect(id, WcStatus::Success);
                assert_eq!(cqe.src_qp, sender.qpn, "round {round}");
            }
        }
    });
}

/// Datagrams take receives in the order of posting, on a mix of both data paths.
#[test]
fn both_paths_share_the_receives() {
    in_both_modes(PathPolicy::Direct, |setup| {
        let world = World::new(2, setup);
        let options = Options::of(QpType::Ud);
        let p = Pair::with(&world, options, options);
        for round in 0..20 {
            world.runtime.set_path(PATHS[round as usize % 2]);
            // After a datagram that does not fit, the QP holds the receive. The next datagram takes
            // it.
            p.qb.post_recv(round, &[sge(&p.mb, 0, 140)]);
            p.qa.post(&p.send(100, 101));
            p.cq_a.expect(100, WcStatus::Success);
            world.runtime.set_path(PATHS[(round / 2) as usize % 2]);
            let data = pattern(100, round);
            p.a.write(p.ma.iova, &data);
            p.qa.post(&p.send(101, 100));
            p.cq_a.expect(101, WcStatus::Success);
            assert_eq!(p.cq_b.expect(round, WcStatus::Success).byte_len, 140);
            assert!(p.b.read(p.mb.iova + GRH, 100) == data);
        }
        p.responder_lives();
    });
}

/// Posts a datagram after `spoil` has changed its work request or the peer so that the datagram is
/// dropped. Checks that the sender sees no error and, after `heal`, that the next one arrives.
fn is_lost(spoil: impl Fn(&Pair<'_>, &mut Wr), heal: impl Fn(&Pair<'_>)) {
    each_ud(|p| {
        let mut wr = p.send(1, 100);
        spoil(p, &mut wr);
        p.qa.post(&wr);
        p.cq_a.expect(1, WcStatus::Success);
        p.await_delivery();
        heal(p);
        p.qb.post_recv(8, &[sge(&p.mb, 0, 4096)]);
        p.qb.post_recv(9, &[sge(&p.mb, 0, 4096)]);
        p.qa.post(&p.send(2, 64));
        p.cq_a.expect(2, WcStatus::Success);
        assert_eq!(p.cq_b.expect(8, WcStatus::Success).byte_len, 104);
        p.responder_lives();
    });
}

// abi
#[test]
fn datagrams_that_nobody_takes() {
    let nothing = |_: &Pair<'_>| ();
    is_lost(|_, _| (), nothing);
    is_lost(
        |_, wr| wr.to.as_mut().unwrap().remote_qpn = Qpn::new(0x12_3456),
        nothing,
    );
    is_lost(|_, wr| wr.to.as_mut().unwrap().av.dmac[5] ^= 0x40, nothing);
    is_lost(|_, wr| wr.to.as_mut().unwrap().av.dgid[15] ^= 0x40, nothing);
    is_lost(|p, _| p.qb.to(QpState::Reset), |p| connect(&p.qb, &p.qb));
    is_lost(
        |p, wr| {
            // The destination is a QP of another type.
            let cq = Cq::new(p.b, 64);
            let other = Qp::new(p.b, &cq, &cq, Options::default());
            connect(&other, &other);
            other.post_recv(1, &[sge(&p.mb, 0, 4096)]);
            wr.to.as_mut().unwrap().remote_qpn = other.qpn;
        },
        nothing,
    );
}

// abi: R-678
#[test]
fn a_datagram_that_does_not_fit_leaves_the_receive() {
    each_ud(|p| {
        p.qb.post_recv(3, &[sge(&p.mb, 0, 100)]);
        p.qa.post(&p.send(1, 61));
        p.qa.post(&p.send(2, 60));
        p.cq_a.expect(1, WcStatus::Success);
        p.cq_a.expect(2, WcStatus::Success);
        assert_eq!(p.cq_b.expect(3, WcStatus::Success).byte_len, 100);
        p.responder_lives();
    });
}

// abi: R-676
#[test]
fn a_receive_with_bad_memory_ends_the_receiver() {
    each_ud(|p| {
        let mut bad = sge(&p.mb, 0, 4096);
        bad.lkey ^= 1;
        p.qb.post_recv(3, &[bad]);
        p.qb.post_recv(4, &[]);
        p.qa.post(&p.send(1, 10));
        p.cq_a.expect(1, WcStatus::Success);
        p.cq_b.expect(3, WcStatus::LocProtErr);
        p.cq_b.expect(4, WcStatus::WrFlushErr);
        p.responder_failed(None);
    });
}

/// A process writes the address vector into the WQE, so the device checks it. PD and port are those
/// of the QP.
#[test]
fn forged_address_vectors() {
    type Change = fn(&mut Datagram);
    let refused: [(&str, Change); 8] = [
        // abi
        ("GID that is not in the table", |to| to.av.gid_index = 2),
        ("GID beyond the table", |to| to.av.gid_index = 255),
        // abi: R-787
        ("no global route", |to| to.av.dgid = [0; 16]),
        ("multicast address", |to| {
            to.av.dgid[..2].copy_from_slice(&[0xff, 2])
        }),
        ("another family", |to| to.av.dgid = [0x20; 16]),
        ("no next hop", |to| to.av.dmac = [0; 6]),
        // abi: R-788
        ("QPN 0", |to| to.remote_qpn = Qpn::NONE),
        ("QPN of 25 bits", |to| {
            to.remote_qpn = Qpn::new(to.remote_qpn.get() | (1 << 24));
        }),
    ];
    for (name, change) in refused {
        eprintln!("{name}");
        each_ud(|p| {
            let mut wr = p.send(1, 10);
            change(wr.to.as_mut().unwrap());
            p.qb.post_recv(1, &[sge(&p.mb, 0, 100)]);
            p.qa.post(&wr);
            // abi: R-789
            p.cq_a.expect(1, WcStatus::LocQpOpErr);
            assert_eq!(p.qa.state(), QpState::Sqe);
            assert_eq!(p.cq_b.poll(), None);
        });
    }
    let meaningless: [(&str, Change); 4] = [
        // abi: R-776
        ("PD", |to| to.av.pdn = Pdn::new(0xdead)),
        // abi: R-775
        ("port", |to| to.av.port = 77),
        // abi: R-780
        ("rate", |to| to.av.static_rate = 99),
        // abi: R-783
        ("reserved bytes", |to| to.av.reserved = [7; 6]),
    ];
    for (name, change) in meaningless {
        eprintln!("{name}");
        each_ud(|p| {
            let mut wr = p.send(1, 10);
            change(wr.to.as_mut().unwrap());
            p.qb.post_recv(1, &[sge(&p.mb, 0, 100)]);
            p.qa.post(&wr);
            // abi: R-785
            p.cq_a.expect(1, WcStatus::Success);
            p.cq_b.expect(1, WcStatus::Success);
        });
    }
}

// abi
#[test]
fn a_gid_that_was_deleted() {
    each_ud(|p| {
        p.a.call(CmdDelGid { index: 1, port: 1 }).unwrap();
        p.qa.post(&p.send(1, 10));
        p.cq_a.expect(1, WcStatus::LocQpOpErr);
    });
}

// abi: R-713
#[test]
fn datagrams_longer_than_a_packet() {
    each_ud(|p| {
        p.qb.post_recv(1, &[sge(&p.mb, 0, 1 << 16)]);
        p.qa.post(&p.send(1, MTU + 1));
        p.cq_a.expect(1, WcStatus::LocLenErr);
        assert_eq!(p.qa.state(), QpState::Sqe);
    });
}
