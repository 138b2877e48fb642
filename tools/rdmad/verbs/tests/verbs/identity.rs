// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Packets with a forged sender.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use roce::headers::{
    Aeth, Body, Bth, Deth, Headers, NakCode, RcRequest, RcResponse, Reth, SendPart, Syndrome,
    WritePart,
};
use roce::net::{ip_to_gid, link_local};
use roce::ud::{GSI_QKEY, GSI_QPN};
use roce::work::With;
use roce::Psn;
use tempfile::TempDir;
use testkit::engine::*;
use testkit::Netdev;
use verbs::{Clock, Limits, PathPolicy, Runtime, RuntimeConfig};
use virtio_rdma_abi::ctrl::{CmdAddGid, CmdAddGidVlan, CmdAllocMw, CmdDelGid, CmdDeregMr};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{
    AhFlags, AsyncEvent, MwType, QpAttrMask, QpState, QpType, WcStatus, WrOpcode, NO_VLAN,
};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::qp::{AhAttr, GlobalRoute, QpAttr};
use virtio_rdma_abi::wire::Wire;
use vswitch::Config;

/// A management datagram that a process sends to UDP port 4791.
fn management(from: &Vm, to: &Vm) -> Vec<u8> {
    let deth = Deth {
        qkey: GSI_QKEY,
        src_qpn: GSI_QPN,
    };
    let bth = Bth::new(0xffff, GSI_QPN, Psn::new(0));
    let headers = Headers::new(bth, Body::Ud { deth, imm: None });
    frame(from, to, &headers, &[0x5a; 256])
}

/// The GSI QP belongs to the guest's kernel. A process of another guest must not be able to send to
/// this QP by a UDP socket.
#[test]
fn the_gsi_qp_takes_nothing_from_a_network_interface() {
    let dir = TempDir::new().unwrap();
    let net = dir.path().join("net");
    let daemon = Daemon::with_ports(1..=2, 1, PathPolicy::Wire, Config::default(), |port| {
        if port.mac == mac(2) {
            port.net = Some(net.clone());
        }
    });
    let [a, b] = [&daemon.vms[0], &daemon.vms[1]];
    let (cq_a, cq_b) = (Cq::new(a, 64), Cq::new(b, 64));
    let options = Options {
        qkey: GSI_QKEY,
        ..Options::of(QpType::Gsi)
    };
    let gsi = Qp::new(a, &cq_a, &cq_a, options);
    let theirs = Qp::new(b, &cq_b, &cq_b, options);
    connect(&gsi, &theirs);
    let mr = a.mr(4096);
    gsi.post_recv(9, &[sge(&mr, 0, 400)]);
    Netdev::at(&net).send(&management(b, a));
    wait("a frame to be refused", || {
        (daemon.switch.stats()[1].refused == 1).then_some(())
    });
    // A datagram from the RDMA device of VM B arrives and takes the first receive, so the frame
    // above took no receive.
    let data = b.mr(64);
    theirs.post(&Wr::new(1, WrOpcode::Send).local(&data, 0, 64).to(&gsi));
    let cqe = cq_a.expect(9, WcStatus::Success);
    assert_eq!((cqe.byte_len, cqe.src_qp), (40 + 64, GSI_QPN));
}

/// Peers reach a port at its further MAC addresses, on both paths. The port sends with its own one,
/// by which the peer recognizes it.
#[test]
fn a_port_is_reached_at_its_further_addresses() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for named in [[1, 2].map(more_mac), [mac(1), more_mac(2)]] {
            on_both_paths(|path| {
                let mut world = World::new(2, path);
                world.negotiate(&[Feature::Counters]);
                for (vm, mac) in world.vms.iter_mut().zip(named) {
                    vm.mac = mac;
                }
                let options = Options::of(qp_type);
                let p = Pair::with(&world, options, options);
                p.qb.post_recv(3, &[sge(&p.mb, 0, 4096)]);
                p.qa.post(&p.send(1, 100));
                p.cq_a.expect(1, WcStatus::Success);
                p.cq_b.expect(3, WcStatus::Success);
                let direct = u64::from(path == PathPolicy::Direct);
                assert_eq!(p.a.counters().direct_tx_messages, direct, "{qp_type:?}");
                if qp_type != QpType::Ud {
                    assert_eq!(p.qa.query().ah_attr.dmac, named[1], "{qp_type:?}");
                }
            });
        }
    }
}

const EPERM: u8 = 1;
const EEXIST: u8 = 17;
const EADDRINUSE: u8 = 98;

fn add_gid(vm: &Vm, index: u16, gid: [u8; 16], vlan: u16) -> Option<u8> {
    let base = CmdAddGid {
        gid,
        gid_type: 2,
        index,
        port_num: 1,
    };
    vm.call(CmdAddGidVlan { base, vlan }).err()
}

fn del_gid(vm: &Vm, index: u16) {
    vm.call(CmdDelGid { index, port: 1 }).unwrap();
}

// abi
#[test]
fn an_address_is_of_one_port_at_a_time() {
    let config = RuntimeConfig {
        clock: Clock::manual(),
        ..RuntimeConfig::default()
    };
    let world = World::with_config(2, config, Limits::default());
    world.negotiate(&[Feature::GidVlan]);
    let [a, b] = [&world.vms[0], &world.vms[1]];
    let refused = |vm: &Vm| vm.hca.status().refused_gids;
    assert_eq!(add_gid(b, 5, a.gid, NO_VLAN), Some(EADDRINUSE));
    assert_eq!(add_gid(b, 5, a.gid, 0), Some(EADDRINUSE));
    assert_eq!((refused(a), refused(b)), (0, 2));
    // The same address in another VLAN belongs to another network.
    assert_eq!(add_gid(b, 5, a.gid, 7), None);
    assert_eq!(add_gid(a, 5, a.gid, 7), Some(EADDRINUSE));
    // A port may have an address in several GID entries. It owns the address until the last of
    // these entries is deleted.
    assert_eq!(add_gid(a, 6, a.gid, NO_VLAN), None);
    assert_eq!(add_gid(a, 6, b.gid, NO_VLAN), Some(EADDRINUSE));
    del_gid(a, 1);
    del_gid(a, 1);
    assert_eq!(add_gid(b, 8, a.gid, NO_VLAN), Some(EADDRINUSE));
    assert_eq!(add_gid(a, 6, b.gid, 9), Some(EEXIST));
    assert_eq!(add_gid(b, 9, b.gid, 9), None, "the failure left no claim");
    // Another port gets the address when its owner deletes the last entry, a minute after its owner
    // was reset, or when its owner is detached.
    del_gid(a, 6);
    assert_eq!(add_gid(b, 8, a.gid, NO_VLAN), None);
    b.hca.reset();
    assert_eq!(add_gid(a, 1, a.gid, NO_VLAN), Some(EADDRINUSE));
    world.runtime.advance(Duration::from_secs(60));
    assert_eq!(add_gid(a, 1, a.gid, NO_VLAN), None);
    a.hca.detach();
    b.negotiate(&[Feature::GidVlan]);
    assert_eq!(add_gid(b, 8, a.gid, NO_VLAN), None);
    assert_eq!(add_gid(b, 9, link_local(a.mac).octets(), NO_VLAN), None);
}

// abi
#[test]
fn a_port_has_the_addresses_that_it_was_given() {
    let given: [IpAddr; 2] = [[10, 0, 0, 1].into(), [0xfd; 16].into()];
    let net = Arc::new(Net::default());
    let runtime = Runtime::new(RuntimeConfig::default()).unwrap();
    let vm = |n, addresses: &[IpAddr]| {
        let port = net.port(mac(n));
        let limits = Limits::default();
        let vm = Vm::with_addresses(n, &runtime, port.clone(), &limits, addresses);
        port.attach(&vm.hca);
        vm.negotiate(&[Feature::GidVlan]);
        vm
    };
    let (a, b) = (vm(1, &given), vm(2, &[]));
    for (vlan, index) in [(NO_VLAN, 20), (7, 21)] {
        let other = ip_to_gid([10, 0, 0, 9].into());
        assert_eq!(add_gid(&a, index, other, vlan), Some(EPERM));
        for address in given.into_iter().chain([link_local(a.mac).into()]) {
            let gid = ip_to_gid(address);
            assert_eq!(add_gid(&a, index, gid, vlan), None);
            del_gid(&a, index);
            // The address has no GID entry now, but another port still must not use it.
            assert_eq!(add_gid(&b, index, gid, vlan), Some(EADDRINUSE));
        }
        assert_eq!(add_gid(&b, index, other, vlan), None);
    }
    for vm in [&a, &b] {
        vm.hca.detach();
    }
}

/// Numbers and keys of other objects can't be guessed from those of one's own objects.
// abi
#[test]
fn keys_and_numbers_do_not_follow_each_other() {
    let world = World::new(1, PathPolicy::Direct);
    world.negotiate(&[Feature::MemWindows]);
    let vm = &world.vms[0];
    let follow = |numbers: &[u32]| {
        let next = |pair: &&[u32]| pair[0] + 1 == pair[1];
        numbers.windows(2).filter(next).count()
    };
    let memory = vm.alloc(4096);
    let keys: Vec<_> = (0..100)
        .map(|_| vm.register(vm.pdn, memory, 4096, FULL).key)
        .collect();
    let numbers: Vec<_> = keys.iter().map(|key| key >> 8).collect();
    assert!(follow(&numbers) < 10, "{numbers:?}");
    let windows: Vec<_> = (0..100)
        .map(|_| {
            let mw_type = MwType::One.value();
            let mw = CmdAllocMw {
                pdn: vm.pdn,
                mw_type,
                reserved: [0; 3],
            };
            vm.call(mw).unwrap().rkey >> 8
        })
        .collect();
    assert!(follow(&windows) < 10, "{windows:?}");
    let cq = Cq::new(vm, 64);
    let options = Options {
        slots: 2,
        ..Options::default()
    };
    let qpns: Vec<_> = (0..100)
        .map(|_| Qp::new(vm, &cq, &cq, options).qpn.get())
        .collect();
    assert!(follow(&qpns) < 10, "{qpns:?}");
}

/// The keys of successive MRs with the same number are different and not predictable.
// abi
#[test]
fn a_number_that_comes_back_has_another_key() {
    let limits = Limits {
        max_mr: 1,
        ..Limits::default()
    };
    let world = World::with_limits(1, PathPolicy::Direct, limits);
    let vm = &world.vms[0];
    let memory = vm.alloc(4096);
    let keys: Vec<_> = (0..200)
        .map(|_| {
            let mr = vm.register(vm.pdn, memory, 4096, FULL);
            vm.call(CmdDeregMr { mrn: mr.mrn }).unwrap();
            mr.key as u8
        })
        .collect();
    assert!(keys.windows(2).all(|pair| pair[0] != pair[1]));
    let next = |pair: &&[u8]| pair[0].wrapping_add(1) == pair[1];
    assert!(keys.windows(2).filter(next).count() < 20, "{keys:?}");
}

/// An unreliable connection silently drops a WRITE with a wrong R_Key. After many of them, the QP
/// fails.
#[test]
fn keys_can_not_be_tried_without_end() {
    const TRIES: u64 = 256;
    on_both_paths(|path| {
        let world = World::new(2, path);
        let options = Options::of(QpType::Uc);
        let p = Pair::with(&world, options, options);
        for id in 0..TRIES {
            assert_eq!(p.qb.state(), QpState::Rts, "after {id}");
            let mut wr = p.wr(id, WrOpcode::RdmaWrite, 8);
            wr.remote.rkey ^= 1;
            p.qa.post(&wr);
            p.cq_a.expect(id, WcStatus::Success);
        }
        p.responder_failed(Some(AsyncEvent::QpAccessErr));
        assert_eq!(p.qa.state(), QpState::Rts);
    });
}

/// Headers of a SEND of one packet to `to`, with the first PSN that `to` expects.
fn send_only(to: &Qp<'_>) -> Headers {
    let send = RcRequest::from(SendPart::Only(With::Nothing));
    Headers::new(Bth::new(0xffff, to.qpn, Psn::new(to.options.psn)), send)
}

/// Headers of a WRITE of 4 bytes to `to` with an invalid R_Key.
fn write_nowhere(to: &Qp<'_>) -> Headers {
    let reth = Reth {
        va: 0,
        rkey: 0xdead_beef,
        length: 4,
    };
    let write = RcRequest::from(WritePart::Only(reth, None));
    Headers::new(Bth::new(0xffff, to.qpn, Psn::new(to.options.psn)), write)
}

/// Checks that the next SEND of A arrives unchanged at B and that both QPs are in RTS.
fn connection_lives(p: &Pair<'_>) {
    let data = pattern(64, 1);
    p.a.write(p.ma.iova, &data);
    p.qb.post_recv(7, &[sge(&p.mb, 0, 64)]);
    p.qa.post(&p.send(5, 64));
    p.cq_a.expect(5, WcStatus::Success);
    p.cq_b.expect(7, WcStatus::Success);
    assert!(p.b.read(p.mb.iova, 64) == data);
    assert_eq!(p.qa.state(), QpState::Rts);
    p.responder_lives();
}

/// A packet to B with the GID of A and another source MAC address.
fn forged(p: &Pair<'_>, mac: [u8; 6], headers: &Headers, payload: &[u8]) -> Vec<u8> {
    frame_between((mac, p.a.gid), (p.b.mac, p.b.gid), headers, payload)
}

#[test]
fn requests_from_another_mac_address_are_not_taken() {
    on_both_paths(|path| {
        let world = World::new(3, path);
        let p = Pair::new(&world);
        let (outside, c) = ([2, 9, 9, 9, 9, 9], world.vms[2].mac);
        for mac in [c, outside] {
            let send = forged(&p, mac, &send_only(&p.qb), b"forged!!");
            let write = forged(&p, mac, &write_nowhere(&p.qb), b"boom");
            world.net.inject(p.b.mac, &send);
            world.net.inject(p.b.mac, &write);
            // The peer is a port of this daemon, so packets that passed a router are not its own.
            world.net.inject_routed(p.b.mac, &send);
            world.net.inject_routed(p.b.mac, &write);
        }
        connection_lives(&p);
    });
}

/// On the direct path, a connection accepts no packets, even with the right MAC address.
#[test]
fn the_direct_path_takes_no_packets() {
    let world = World::new(2, PathPolicy::Direct);
    let p = Pair::new(&world);
    for headers in [send_only(&p.qb), write_nowhere(&p.qb)] {
        let forged = forged(&p, p.a.mac, &headers, b"boom");
        world.net.inject(p.b.mac, &forged);
    }
    p.await_delivery();
    connection_lives(&p);
}

/// A SEND ends with the response of the peer, not with a forged earlier response of another port.
#[test]
fn answers_from_another_mac_address_are_not_taken() {
    let refusal = Syndrome::Nak(NakCode::RemoteAccess);
    for (forged, true_one, status) in [
        (Syndrome::ACK, refusal, WcStatus::RemAccessErr),
        (refusal, Syndrome::ACK, WcStatus::Success),
    ] {
        let world = World::new(3, PathPolicy::Wire);
        let options = Options {
            // Without a timeout, the SEND stays in flight until a response arrives.
            timeout: 0,
            ..Options::default()
        };
        let p = Pair::with(&world, options, options);
        world.net.lose_one_in.store(1, Ordering::Relaxed);
        let before = world.net.sent.load(Ordering::Relaxed);
        p.qa.post(&p.send(5, 64));
        wait("the SEND to leave", || {
            (world.net.sent.load(Ordering::Relaxed) > before).then_some(())
        });
        let answer = |mac, syndrome| {
            let psn = Psn::new(p.qa.options.psn);
            let ack = RcResponse::Ack(Aeth { syndrome, msn: 1 });
            let headers = Headers::new(Bth::new(0xffff, p.qa.qpn, psn), ack);
            frame_between((mac, p.b.gid), (p.a.mac, p.a.gid), &headers, &[])
        };
        let answers = [answer(world.vms[2].mac, forged), answer(p.b.mac, true_one)];
        world.net.inject_all(p.a.mac, &answers);
        p.cq_a.expect(5, status);
    }
}

/// Packets of a host behind a router have the router's source MAC address.
#[test]
fn packets_through_a_router_are_taken_from_its_uplink_alone() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 64);
    let qp = Qp::new(vm, &cq, &cq, Options::default());
    let far = ([2, 9, 9, 9, 9, 1], {
        let mut gid = vm.gid;
        gid[12..].copy_from_slice(&[192, 0, 2, 1]);
        gid
    });
    qp.to_init().unwrap();
    let attrs = QpAttr {
        path_mtu: qp.options.mtu.value(),
        dest_qp_num: Qpn::new(7),
        rq_psn: qp.options.psn,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 1,
        ah_attr: AhAttr {
            grh: GlobalRoute {
                dgid: far.1,
                sgid_index: 1,
                hop_limit: 1,
                ..GlobalRoute::ZERO
            },
            port_num: 1,
            ah_flags: AhFlags::GRH,
            dmac: far.0,
            ..AhAttr::ZERO
        },
        ..QpAttr::ZERO
    };
    let mask = QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN
        | QpAttrMask::MAX_DEST_RD_ATOMIC
        | QpAttrMask::MIN_RNR_TIMER;
    qp.modify(QpState::Rtr, mask, attrs).unwrap();
    let mr = vm.mr(64);
    qp.post_recv(1, &[sge(&mr, 0, 64)]);
    let from_router = frame_between(
        ([2, 9, 9, 9, 9, 2], far.1),
        (vm.mac, vm.gid),
        &send_only(&qp),
        b"routed!!",
    );
    world.net.inject(vm.mac, &from_router);
    // The second packet completes the receive only if the first packet was dropped.
    let honest = frame_between(far, (vm.mac, vm.gid), &send_only(&qp), b"honest!!");
    world.net.inject(vm.mac, &honest);
    cq.expect(1, WcStatus::Success);
    assert_eq!(vm.read(mr.iova, 8), b"honest!!");
    qp.post_recv(2, &[sge(&mr, 0, 64)]);
    let mut next = send_only(&qp);
    next.bth.psn = Psn::new(qp.options.psn + 1);
    let routed = frame_between(
        ([2, 9, 9, 9, 9, 2], far.1),
        (vm.mac, vm.gid),
        &next,
        b"routed!!",
    );
    world.net.inject_routed(vm.mac, &routed);
    cq.expect(2, WcStatus::Success);
    assert_eq!(vm.read(mr.iova, 8), b"routed!!");
}
