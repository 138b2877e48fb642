// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The GSI QP.

use testkit::engine::*;
use virtio_rdma_abi::ib::{QpState, QpType, WcFlags, WcStatus, WrOpcode, GSI_QPN};

use super::GRH;

/// The well-known Q_Key of QP 1.
const QKEY: u32 = 0x8001_0000;

fn gsi() -> Options {
    Options {
        qkey: QKEY,
        ..Options::of(QpType::Gsi)
    }
}

// abi
#[test]
fn management_datagrams() {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        let p = Pair::with(&world, gsi(), gsi());
        assert_eq!(p.qa.query().port_num, 1);
        let mad = pattern(256, 1);
        p.a.write(p.ma.iova, &mad);
        p.qb.post_recv(1, &[sge(&p.mb, 0, 296)]);
        p.qa.post(&p.send(2, 256));
        p.cq_a.expect(2, WcStatus::Success);
        let cqe = p.cq_b.expect(1, WcStatus::Success);
        assert_eq!(
            (cqe.qp_num, cqe.src_qp, cqe.pkey_index, cqe.byte_len),
            (GSI_QPN, GSI_QPN, 0, 296)
        );
        assert_eq!(cqe.wc_flags, WcFlags::GRH | WcFlags::WITH_NETWORK_HDR_TYPE);
        assert!(p.b.read(p.mb.iova + GRH, 256) == mad);
    });
}

/// A process can't send to QP 1. It may not set the Q_Key of QP 1, and a work request with that
/// Q_Key uses the Q_Key of its own QP.
// abi
#[test]
fn processes_do_not_reach_it() {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let (cq_a, cq_b) = (Cq::new(a, 64), Cq::new(b, 64));
        let user = Qp::new(a, &cq_a, &cq_a, Options::of(QpType::Ud));
        let qp1 = Qp::new(b, &cq_b, &cq_b, gsi());
        connect(&user, &user);
        connect(&qp1, &qp1);
        let (from, to) = (a.mr(256), b.mr(4096));
        qp1.post_recv(1, &[sge(&to, 0, 4096)]);
        for (n, qkey) in [QKEY, u32::MAX, 0].into_iter().enumerate() {
            let mut wr = Wr::new(2, WrOpcode::Send).local(&from, 0, 256).to(&qp1);
            wr.to.as_mut().unwrap().remote_qkey = qkey;
            user.post(&wr);
            cq_a.expect(2, WcStatus::Success);
            wait("the violation to be counted", || {
                (b.violations() == (0, n as u32 + 1)).then_some(())
            });
        }
        assert_eq!(cq_b.poll(), None);
        assert_eq!(qp1.state(), QpState::Rts);
    });
}
