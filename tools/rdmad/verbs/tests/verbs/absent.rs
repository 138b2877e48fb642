// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! QPs that were created without an SQ, without an RQ, or without either.

use testkit::engine::*;
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{AsyncEvent, QpAttrMask, QpState, QpType, WcStatus, WrOpcode};
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_abi::ring::Doorbell;

/// Length in bytes of the GRH, which precedes the data of a datagram in the receive buffer.
const GRH: u64 = 40;

/// Options of a pair in which A has no RQ and B has no SQ.
fn one_way(qp_type: QpType) -> [Options; 2] {
    let options = Options::of(qp_type);
    let sends = Options {
        without_rq: true,
        ..options
    };
    let receives = Options {
        without_sq: true,
        ..options
    };
    [sends, receives]
}

/// A sends message `id`, and B receives it.
fn transfer(p: &Pair<'_>, id: u64) {
    const SIZE: u32 = 700;
    let header = match p.qa.options.qp_type {
        QpType::Ud => GRH,
        _ => 0,
    };
    let data = pattern(SIZE as usize, id);
    p.a.write(p.ma.iova, &data);
    p.b.write(p.mb.iova, &[0xee; 4096]);
    p.qb.post_recv(id, &[sge(&p.mb, 0, 4096)]);
    p.qa.post(&p.send(id + 1000, SIZE));
    p.cq_a.expect(id + 1000, WcStatus::Success);
    p.cq_b.expect(id, WcStatus::Success);
    assert!(p.b.read(p.mb.iova + header, SIZE as usize) == data);
}

// abi
#[test]
fn one_side_only_sends_and_the_other_only_receives() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        in_all_setups(|setup| {
            let world = World::new(2, setup);
            let [sends, receives] = one_way(qp_type);
            let p = Pair::with(&world, sends, receives);
            assert_eq!(p.qa.query().cap.max_recv_wr, 0);
            assert_eq!(p.qb.query().cap.max_send_wr, 0);
            for id in 0..200 {
                transfer(&p, id);
            }
            p.qa.ring_doorbell(Doorbell::Rq);
            p.qb.ring_doorbell(Doorbell::Sq);
            transfer(&p, 200);

            p.qb.post_recv(300, &[]);
            p.qb.to(QpState::Err);
            p.cq_b.expect(300, WcStatus::WrFlushErr);
            p.qa.to(QpState::Err);
            p.qa.post(&p.send(301, 8));
            p.cq_a.expect(301, WcStatus::WrFlushErr);

            p.qa.to(QpState::Reset);
            p.qb.to(QpState::Reset);
            connect(&p.qa, &p.qb);
            transfer(&p, 302);
            assert!(p.a.sink.is_empty() && p.b.sink.is_empty());
            p.qa.destroy().unwrap();
            p.qb.destroy().unwrap();
        });
    }
}

// abi
#[test]
fn a_qp_without_queues_serves_requests() {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        let ours = Options {
            rnr_retry: 0,
            ..Options::default()
        };
        let theirs = Options {
            without_sq: true,
            without_rq: true,
            ..Options::default()
        };
        let p = Pair::with(&world, ours, theirs);
        let data = pattern(3000, 1);
        p.a.write(p.ma.iova, &data);
        p.qa.post(&p.wr(1, WrOpcode::RdmaWrite, 3000));
        p.cq_a.expect(1, WcStatus::Success);
        assert!(p.b.read(p.mb.iova, 3000) == data);
        p.a.write(p.ma.iova, &[0; 3000]);
        p.qa.post(&p.wr(2, WrOpcode::RdmaRead, 3000));
        p.cq_a.expect(2, WcStatus::Success);
        assert!(p.a.read(p.ma.iova, 3000) == data);

        // A QP without an SQ is drained at once.
        let asks = QpAttr {
            en_sqd_async_notify: 1,
            ..QpAttr::default()
        };
        p.qb.modify(QpState::Sqd, QpAttrMask::EN_SQD_ASYNC_NOTIFY, asks)
            .unwrap();
        let drained = EventKind::Async(AsyncEvent::SqDrained);
        p.b.sink.expect(drained, p.qb.cookie);

        // Without an RQ, a SEND never finds a receive.
        p.qa.post(&p.send(3, 8));
        p.cq_a.expect(3, WcStatus::RnrRetryExcErr);
        assert_eq!(p.qb.state(), QpState::Sqd);
        p.qb.to(QpState::Err);
        assert!(p.cq_b.poll().is_none(), "nothing to flush");
    });
}
