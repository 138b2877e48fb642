// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Bursts: consecutive packets for one QP are handled together.

use roce::headers::{Body, Part, RcRequest, Reth, SendPart, WritePart};
use roce::work::With;
use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AsyncEvent, QpState, QpType, WcStatus};
use virtio_rdma_abi::number::Qpn;

use super::numbered;

/// A SEND of one packet.
const SEND: SendPart = SendPart::Only(With::Nothing);

/// A QPN that no QP has.
const NOBODY: Qpn = Qpn::new(0xff_ff00);
/// P_Key of all QPs.
const OURS: u16 = 0xffff;
/// P_Key of another partition.
const FOREIGN: u16 = 0x8001;

#[test]
fn each_packet_reaches_its_qp_in_order() {
    in_both_modes(PathPolicy::Wire, |setup| {
        let world = World::new(2, setup);
        world.negotiate(&[Feature::Counters]);
        let options = Options::of(QpType::Uc);
        let pairs = [(); 2].map(|()| Pair::with(&world, options, options));
        let vm = pairs[0].b;
        for pair in &pairs {
            for id in 0..40 {
                pair.qb.post_recv(id, &[sge(&pair.mb, 64 * id, 64)]);
            }
        }
        let packet = |qpn, pkey, n, payload: &[u8]| {
            let headers = numbered(Body::Uc(Part::Send(SEND)), pkey, qpn, n);
            frame(pairs[0].a, vm, &headers, payload)
        };
        let mut frames = Vec::new();
        let mut sent = [0; 2];
        // More packets than are handled together, in runs for the same QP.
        for run in 0..16 {
            let which = run % 2;
            for _ in 0..run % 5 + 1 {
                let (n, qpn) = (sent[which], pairs[which].qb.qpn);
                frames.push(packet(qpn, OURS, n, &[which as u8, n as u8, 3, 4]));
                sent[which] += 1;
            }
            let qpn = pairs[which].qb.qpn;
            match run % 4 {
                // Adds a bad packet before the last packet of the run, so it is between two packets
                // for the same QP.
                0 => frames.push(packet(qpn, FOREIGN, sent[which], b"four")),
                1 => frames.push(packet(NOBODY, OURS, 0, b"four")),
                2 => {
                    let mut broken = packet(qpn, OURS, sent[which], b"four");
                    *broken.last_mut().unwrap() ^= 1;
                    frames.push(broken);
                }
                _ => {}
            }
            let (n, qpn) = (sent[which], pairs[which].qb.qpn);
            frames.push(packet(qpn, OURS, n, &[which as u8, n as u8, 3, 4]));
            sent[which] += 1;
        }
        let before = vm.counters();
        world.net.inject_all(vm.mac, &frames);
        for (which, pair) in pairs.iter().enumerate() {
            assert!(sent[which] > 16 && sent[which] <= 40);
            for n in 0..sent[which] {
                let cqe = pair.cq_b.expect(n.into(), WcStatus::Success);
                assert_eq!(cqe.byte_len, 4);
                let at = pair.mb.iova + 64 * u64::from(n);
                assert_eq!(vm.read(at, 4), [which as u8, n as u8, 3, 4]);
            }
            assert_eq!(pair.cq_b.poll(), None);
            pair.responder_lives();
        }
        assert_eq!(vm.violations(), (4, 0), "each counted once");
        let counters = vm.counters();
        assert_eq!(counters.bad_packets - before.bad_packets, 4);
        assert_eq!(
            counters.rx_packets - before.rx_packets,
            frames.len() as u64 - 4
        );
    });
}

/// If a request fails the QP, later requests of the burst are not executed.
#[test]
fn a_run_ends_where_the_qp_fails() {
    in_both_modes(PathPolicy::Wire, |setup| {
        let world = World::new(2, setup);
        let p = Pair::new(&world);
        for id in 0..3 {
            p.qb.post_recv(id, &[sge(&p.mb, 64 * id, 64)]);
        }
        let send = |n| {
            let headers = numbered(RcRequest::from(SEND), OURS, p.qb.qpn, n);
            frame(p.a, p.b, &headers, &[n as u8; 4])
        };
        let write = {
            let reth = Reth {
                va: p.mb.iova,
                rkey: p.mb.key ^ 1,
                length: 4,
            };
            let write = RcRequest::from(WritePart::Only(reth, None));
            let headers = numbered(write, OURS, p.qb.qpn, 1);
            frame(p.a, p.b, &headers, b"four")
        };
        p.b.write(p.mb.iova, &[7; 192]);
        world.net.inject_all(p.b.mac, &[send(0), write, send(2)]);
        p.cq_b.expect(0, WcStatus::Success);
        for id in [1, 2] {
            p.cq_b.expect(id, WcStatus::WrFlushErr);
        }
        assert_eq!(p.qb.state(), QpState::Err);
        p.responder_failed(Some(AsyncEvent::QpAccessErr));
        assert_eq!(p.b.read(p.mb.iova, 4), [0; 4]);
        assert_eq!(p.b.read(p.mb.iova + 4, 188), [7; 188]);
    });
}
