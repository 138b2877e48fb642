// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Connections whose ends have contradictory attributes fail on both data paths in the same way.

use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::ib::{Mtu, QpState, QpType, WcStatus, WrOpcode};

/// A pair of QPs with the path MTUs `mtus`.
fn pair(world: &World, qp_type: QpType, mtus: [Mtu; 2]) -> Pair<'_> {
    let [ours, theirs] = mtus.map(|mtu| Options {
        mtu,
        ..Options::of(qp_type)
    });
    Pair::with(world, ours, theirs)
}

/// Executes a work request of A. Returns its status, and the state of B afterwards.
fn outcome(path: PathPolicy, mtus: [Mtu; 2], opcode: WrOpcode, len: u32) -> (u8, QpState) {
    let world = World::new(2, path);
    let p = pair(&world, QpType::Rc, mtus);
    p.qb.post_recv(9, &[sge(&p.mb, 0, 1 << 16)]);
    p.qa.post(&p.wr(1, opcode, len));
    let cqe = p.cq_a.next();
    assert_eq!(cqe.wr_id, 1);
    (cqe.status, p.qb.state())
}

// abi
#[test]
fn other_path_mtus() {
    const MTUS: [[Mtu; 2]; 2] = [[Mtu::Mtu1024, Mtu::Mtu4096], [Mtu::Mtu4096, Mtu::Mtu1024]];
    for mtus in MTUS {
        for (opcode, len, status) in [
            (WrOpcode::Send, 1024, WcStatus::Success),
            (WrOpcode::RdmaWrite, 1024, WcStatus::Success),
            (WrOpcode::RdmaRead, 1024, WcStatus::Success),
            (WrOpcode::Send, 1025, WcStatus::RemInvReqErr),
            (WrOpcode::Send, 5000, WcStatus::RemInvReqErr),
            (WrOpcode::RdmaWrite, 1025, WcStatus::RemInvReqErr),
            (WrOpcode::RdmaWrite, 5000, WcStatus::RemInvReqErr),
            (WrOpcode::RdmaRead, 1025, WcStatus::BadRespErr),
            (WrOpcode::RdmaRead, 4096, WcStatus::BadRespErr),
            (WrOpcode::RdmaRead, 4097, WcStatus::LocLenErr),
        ] {
            let what = format!("{mtus:?}, {opcode:?} of {len}");
            let [direct, wire] = PATHS.map(|path| outcome(path, mtus, opcode, len));
            assert_eq!(wire.0, status.value(), "{what}");
            assert_eq!(direct, wire, "{what}");
        }
    }
}

/// An unreliable connection reports no error for a message that the peer drops.
#[test]
fn other_path_mtus_of_an_unreliable_connection() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let p = pair(&world, QpType::Uc, [Mtu::Mtu4096, Mtu::Mtu1024]);
        p.b.write(p.mb.iova, &[7; 4096]);
        p.a.write(p.ma.iova, &[1; 4096]);
        p.qa.post(&p.wr(1, WrOpcode::RdmaWrite, 2000));
        p.cq_a.expect(1, WcStatus::Success);
        p.await_delivery();
        assert_eq!(p.b.read(p.mb.iova, 4096), [7; 4096]);
        p.qa.post(&p.wr(2, WrOpcode::RdmaWrite, 1000));
        p.cq_a.expect(2, WcStatus::Success);
        p.await_delivery();
        assert_eq!(p.b.read(p.mb.iova, 1000), [1; 1000]);
        p.responder_lives();
    });
}

/// A QP of type RC and a QP of type UC do not form a connection.
#[test]
fn other_services() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let ours = Options {
            timeout: 8,
            retry_cnt: 1,
            ..Options::default()
        };
        let p = Pair::with(&world, ours, Options::of(QpType::Uc));
        let mut wr = p.wr(1, WrOpcode::RdmaWrite, 8);
        wr.remote.rkey ^= 1;
        p.qa.post(&wr);
        p.cq_a.expect(1, WcStatus::RetryExcErr);
        p.responder_lives();
    });
}
