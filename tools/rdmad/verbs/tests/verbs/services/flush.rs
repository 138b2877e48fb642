// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Error states, reset, draining and destruction of QPs of each type.

use testkit::engine::*;
use virtio_rdma_abi::ib::{QpAttrMask, QpState, QpType, WcStatus, WrOpcode};
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_abi::wire::Wire;

use super::{data_offset, USER_TYPES};

const UNRELIABLE: [QpType; 2] = [QpType::Uc, QpType::Ud];

// abi
#[test]
fn error_flushes_both_queues() {
    for qp_type in USER_TYPES {
        each_setup_with(Options::of(qp_type), |p| {
            for id in 20..30 {
                p.qa.post_recv(id, &[]);
            }
            p.qa.to(QpState::Err);
            for id in 0..10 {
                p.qa.post(&p.send(id, 10));
            }
            let mut ids: Vec<_> = (0..20)
                .map(|_| {
                    let cqe = p.cq_a.next();
                    assert_eq!(cqe.status, WcStatus::WrFlushErr.value());
                    cqe.wr_id
                })
                .collect();
            // Work requests of each queue are flushed in the order of posting.
            ids.sort_by_key(|id| *id >= 20);
            assert!(ids.into_iter().eq((0..10).chain(20..30)));
            assert!(p.a.sink.is_empty());
        });
    }
}

/// An error of the SQ of an unreliable QP does not affect the RQ, and the QP can send again after a
/// change to RTS.
// abi
#[test]
fn send_queue_error() {
    for qp_type in UNRELIABLE {
        each_setup_with(Options::of(qp_type), |p| {
            for round in 0..3 {
                let mut bad = p.send(1, 10);
                bad.sges[0].lkey ^= 1;
                p.qa.post(&bad);
                p.qa.post(&p.send(2, 10));
                p.cq_a.expect(1, WcStatus::LocProtErr);
                p.cq_a.expect(2, WcStatus::WrFlushErr);
                assert_eq!(p.qa.state(), QpState::Sqe);
                p.qa.post(&p.send(3, 10));
                p.cq_a.expect(3, WcStatus::WrFlushErr);
                // The QP still receives in SQE.
                p.qa.post_recv(4, &[sge(&p.ma, 4096, 200)]);
                let mut to_us = Wr::new(5, WrOpcode::Send).local(&p.mb, 4096, 100);
                if qp_type == QpType::Ud {
                    to_us = to_us.to(&p.qa);
                }
                p.qb.post(&to_us);
                p.cq_b.expect(5, WcStatus::Success);
                p.cq_a.expect(4, WcStatus::Success);
                p.qa.modify(QpState::Rts, QpAttrMask::NONE, QpAttr::ZERO)
                    .unwrap();
                let data = pattern(100, round);
                p.a.write(p.ma.iova, &data);
                p.qb.post_recv(6, &[sge(&p.mb, 0, 200)]);
                p.qa.post(&p.send(7, 100));
                p.cq_a.expect(7, WcStatus::Success);
                p.cq_b.expect(6, WcStatus::Success);
                let at = p.mb.iova + data_offset(qp_type);
                assert!(p.b.read(at, 100) == data);
            }
            p.responder_lives();
            assert!(p.a.sink.is_empty());
        });
    }
}

// abi: R-205
#[test]
fn work_posted_in_sqe_is_flushed_even_if_rts_comes_first() {
    for qp_type in UNRELIABLE {
        each_setup_with(Options::of(qp_type), |p| {
            let mut bad = p.send(0, 10);
            bad.sges[0].lkey ^= 1;
            p.qa.post(&bad);
            for id in 1..50 {
                p.qa.post(&p.send(id, 10));
            }
            p.cq_a.expect(0, WcStatus::LocProtErr);
            p.qa.wait_for(QpState::Sqe);
            p.qa.modify(QpState::Rts, QpAttrMask::NONE, QpAttr::ZERO)
                .unwrap();
            p.qa.post(&p.send(50, 10));
            for id in 1..50 {
                p.cq_a.expect(id, WcStatus::WrFlushErr);
            }
            p.cq_a.expect(50, WcStatus::Success);
        });
    }
}

// abi
#[test]
fn reset_starts_anew() {
    for qp_type in USER_TYPES {
        each_setup_with(Options::of(qp_type), |p| {
            for round in 0..3 {
                for id in 0..10 {
                    p.qa.post_recv(id, &[]);
                }
                p.qa.to(QpState::Reset);
                p.qb.to(QpState::Reset);
                assert_eq!(p.cq_a.poll(), None);
                connect(&p.qa, &p.qb);
                p.qb.post_recv(round, &[sge(&p.mb, 0, 104)]);
                p.qa.post(&p.send(round, 64));
                p.cq_a.expect(round, WcStatus::Success);
                p.cq_b.expect(round, WcStatus::Success);
            }
        });
    }
}

// abi
#[test]
fn destroy_with_work_outstanding() {
    for qp_type in USER_TYPES {
        each_setup_with(Options::of(qp_type), |p| {
            for id in 0..30 {
                p.qb.post_recv(id, &[sge(&p.mb, 0, 1 << 16)]);
                p.qa.post_recv(id, &[sge(&p.ma, 0, 1 << 16)]);
            }
            for id in 0..60 {
                p.qa.post(&p.send(id, 4000));
            }
            p.qa.destroy().unwrap();
            p.qb.destroy().unwrap();
            // QUERY_QP fails: no new QP has the number, because the device assigns a freed QPN
            // again only after all others.
            assert!(p
                .qa
                .vm
                .call(virtio_rdma_abi::ctrl::CmdQueryQp {
                    qpn: p.qa.qpn,
                    attr_mask: QpAttrMask::STATE,
                })
                .is_err());
            p.cq_a.destroy().unwrap();
            p.cq_b.destroy().unwrap();
        });
    }
}

// abi
#[test]
fn an_unreliable_qp_drains() {
    use virtio_rdma_abi::event::EventKind;
    use virtio_rdma_abi::ib::AsyncEvent;
    for qp_type in UNRELIABLE {
        each_setup_with(Options::of(qp_type), |p| {
            p.qa.post(&p.send(1, 10));
            p.cq_a.expect(1, WcStatus::Success);
            let notify = QpAttr {
                en_sqd_async_notify: 1,
                ..QpAttr::ZERO
            };
            p.qa.modify(QpState::Sqd, QpAttrMask::EN_SQD_ASYNC_NOTIFY, notify)
                .unwrap();
            p.a.sink
                .expect(EventKind::Async(AsyncEvent::SqDrained), p.qa.cookie);
            p.qa.post(&p.send(2, 10));
            assert_eq!(p.qa.query().sq_draining, 0);
            assert_eq!(p.cq_a.poll(), None, "new work waits");
            p.qa.modify(QpState::Rts, QpAttrMask::NONE, QpAttr::ZERO)
                .unwrap();
            p.cq_a.expect(2, WcStatus::Success);
        });
    }
}
