// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! READs to peers that answer late or never. Other QPs of the port go on.

use std::time::Duration;

use roce::headers::{Aeth, Bth, Headers, RcResponse, ReadPart, Syndrome};
use roce::Psn;
use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::ib::{WcStatus, WrOpcode, DEFAULT_PKEY};
use virtio_rdma_abi::number::Qpn;

/// The longest time that a silent peer delays other QPs.
const PERIOD: Duration = Duration::from_millis(50);
/// A READ with 64 response packets. A port has room for the responses to 16 of them.
const LEN: u32 = 64 << 10;
/// A QP that does not exist.
const NOBODY: Qpn = Qpn::new(0xfff0);

/// QPs of VM 0 that each read from a QP that does not exist.
struct Unanswered<'vm> {
    qps: Vec<Qp<'vm>>,
    _cq: Cq<'vm>,
}

impl<'vm> Unanswered<'vm> {
    fn new(world: &'vm World, count: usize, timeout: u8) -> Self {
        let [vm, peer] = [&world.vms[0], &world.vms[1]];
        let (cq, memory) = (Cq::new(vm, 64), vm.mr(LEN.into()));
        let options = Options {
            timeout,
            ..Options::default()
        };
        let qps = Vec::from_iter((0..count).map(|_| {
            let qp = Qp::new(vm, &cq, &cq, options);
            qp.to_init().unwrap();
            qp.to_rtr(peer, NOBODY).unwrap();
            qp.to_rts().unwrap();
            qp.post(
                &Wr::new(0, WrOpcode::RdmaRead)
                    .local(&memory, 0, LEN)
                    .remote(&memory, 0),
            );
            qp
        }));
        world.rest(&[0]);
        Self { qps, _cq: cq }
    }

    /// Sends the response packet number `n` to each of the QPs.
    fn answer(&self, world: &World, n: u32) {
        let [vm, peer] = [&world.vms[0], &world.vms[1]];
        let (syndrome, msn) = (Syndrome::ACK, 1);
        let part = match n {
            0 => ReadPart::First(Aeth { syndrome, msn }),
            _ => ReadPart::Middle,
        };
        for qp in &self.qps {
            let psn = Psn::new(qp.options.psn).add(n);
            let headers = Headers::new(Bth::new(DEFAULT_PKEY, qp.qpn, psn), RcResponse::Read(part));
            world
                .net
                .inject(vm.mac, &frame(peer, vm, &headers, &[0; 1024]));
        }
        world.rest(&[0]);
    }
}

/// Pairs of QPs whose first ends read from the others.
fn readers(world: &World) -> Vec<Pair<'_>> {
    let vms = [&world.vms[0], &world.vms[1]];
    let pair = |_| Pair::between(vms, Options::default(), Options::default());
    Vec::from_iter((0..4).map(pair))
}

fn read(world: &World, pairs: &[Pair<'_>], id: u64) {
    for pair in pairs {
        pair.qa.post(&pair.wr(id, WrOpcode::RdmaRead, LEN));
    }
    world.rest(&[0]);
}

/// Checks that the READs `id` of all pairs are complete.
fn expect(pairs: &[Pair<'_>], id: u64) {
    for pair in pairs {
        let cqe = pair.cq_a.poll().expect("a completion");
        assert_eq!((cqe.wr_id, cqe.status), (id, WcStatus::Success.value()));
    }
}

/// Whether the QPs use ACK timeouts or not, their READs delay others once.
#[test]
fn silent_peers_delay_other_qps_for_a_short_time() {
    for timeout in [0, 15] {
        let world = World::stepped(1, PathPolicy::Wire);
        let pairs = readers(&world);
        let _silent = Unanswered::new(&world, 16, timeout);
        read(&world, &pairs, 0);
        assert!(
            pairs.iter().all(|pair| pair.cq_a.poll().is_none()),
            "no room"
        );
        world.runtime.pass(PERIOD);
        world.rest(&[0]);
        expect(&pairs, 0);
        for id in 1..20 {
            read(&world, &pairs, id);
            expect(&pairs, id);
            world.runtime.pass(PERIOD / 3);
            world.rest(&[0]);
        }
    }
}

#[test]
fn slow_peers_delay_other_qps_for_a_short_time() {
    let world = World::stepped(1, PathPolicy::Wire);
    let pairs = readers(&world);
    let slow = Unanswered::new(&world, 16, 0);
    read(&world, &pairs, 0);
    slow.answer(&world, 0);
    world.runtime.pass(PERIOD);
    slow.answer(&world, 1);
    expect(&pairs, 0);
    for id in 1..20 {
        read(&world, &pairs, id);
        expect(&pairs, id);
        world.runtime.pass(PERIOD / 3);
        slow.answer(&world, 1 + id as u32);
    }
}
