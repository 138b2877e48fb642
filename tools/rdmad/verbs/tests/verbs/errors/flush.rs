// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Flushing, reset and draining of queues.

use testkit::engine::*;
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{
    AsyncEvent, QpAttrMask, QpState, SendFlags, SigType, WcStatus, WrOpcode,
};
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_abi::wire::Wire;

#[test]
fn error_flushes_everything_in_order() {
    each_setup(|p| {
        // These SENDs wait: B has no receives.
        for id in 0..10 {
            let flags = if id % 2 == 0 {
                SendFlags::NONE
            } else {
                SendFlags::SIGNALED
            };
            p.qa.post(&p.send(id, 10).flags(flags));
        }
        for id in 20..30 {
            p.qa.post_recv(id, &[]);
        }
        p.qa.to(QpState::Err);
        for id in (0..10).chain(20..30) {
            // abi
            p.cq_a.expect(id, WcStatus::WrFlushErr);
        }
        // Work requests that are posted in ERR are flushed too.
        p.qa.post_recv(40, &[]);
        // abi
        p.cq_a.expect(40, WcStatus::WrFlushErr);
        p.qa.post(&p.send(41, 1));
        p.cq_a.expect(41, WcStatus::WrFlushErr);
        assert!(p.qa.vm.sink.is_empty(), "the driver asked for it");
    });
}

// abi
#[test]
fn reset_gives_back_without_completions_and_starts_anew() {
    each_setup(|p| {
        for round in 0..5 {
            for id in 0..10 {
                p.qa.post(&p.send(id, 10));
                p.qa.post_recv(id, &[]);
            }
            p.qa.to(QpState::Reset);
            p.qb.to(QpState::Reset);
            assert_eq!(p.cq_a.poll(), None);
            connect(&p.qa, &p.qb);
            p.qb.post_recv(round, &[sge(&p.mb, 0, 64)]);
            p.qa.post(&p.send(round, 64));
            p.cq_a.expect(round, WcStatus::Success);
            p.cq_b.expect(round, WcStatus::Success);
        }
    });
}

// abi: R-734
#[test]
fn a_half_received_message_is_flushed() {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        let p = Pair::new(&world);
        // The message takes many turns, and its QP is moved to ERR before the end.
        let big = p.qa.vm.mr(24 << 20);
        let into = p.qb.vm.mr(24 << 20);
        p.qb.post_recv(1, &[sge(&into, 0, 24 << 20)]);
        p.qb.post_recv(2, &[]);
        p.qa.post(&Wr::new(3, WrOpcode::Send).local(&big, 0, 24 << 20));
        p.qb.to(QpState::Err);
        let first = p.cq_b.next();
        assert_eq!(first.wr_id, 1);
        p.cq_b.expect(2, WcStatus::WrFlushErr);
        p.qa.destroy().unwrap();
    });
}

#[test]
fn draining() {
    each_setup(|p| {
        let sqd = |notify| {
            let attrs = QpAttr {
                en_sqd_async_notify: notify,
                ..QpAttr::ZERO
            };
            p.qa.modify(QpState::Sqd, QpAttrMask::EN_SQD_ASYNC_NOTIFY, attrs)
                .unwrap();
        };
        p.qa.post(&p.send(1, 10));
        wait("the work to be begun", || {
            // abi: R-229
            sqd(1);
            // abi: R-230
            if p.qa.query().sq_draining == 1 {
                return Some(());
            }
            p.qa.vm
                .sink
                .expect(EventKind::Async(AsyncEvent::SqDrained), p.qa.cookie);
            p.qa.modify(QpState::Rts, QpAttrMask::STATE, QpAttr::ZERO)
                .unwrap();
            None
        });
        p.qa.post(&p.send(2, 10));
        p.qb.post_recv(1, &[sge(&p.mb, 0, 64)]);
        p.qb.post_recv(2, &[sge(&p.mb, 0, 64)]);
        // abi: R-200
        p.cq_a.expect(1, WcStatus::Success);
        // abi: R-207
        p.qa.vm
            .sink
            .expect(EventKind::Async(AsyncEvent::SqDrained), p.qa.cookie);
        // abi: R-230
        assert_eq!(p.qa.query().sq_draining, 0);
        // abi: R-206
        assert_eq!(p.cq_a.poll(), None, "new work waits");
        // Attributes may change while the QP is drained.
        let slower = QpAttr {
            timeout: 20,
            min_rnr_timer: 2,
            ..QpAttr::ZERO
        };
        let same_path = QpAttr {
            ah_attr: p.qa.query().ah_attr,
            ..slower
        };
        p.qa.modify(
            QpState::Sqd,
            QpAttrMask::TIMEOUT | QpAttrMask::MIN_RNR_TIMER | QpAttrMask::AV,
            same_path,
        )
        .unwrap();
        assert_eq!((p.qa.query().timeout, p.qa.query().min_rnr_timer), (20, 2));
        p.qa.modify(QpState::Rts, QpAttrMask::STATE, QpAttr::ZERO)
            .unwrap();
        // abi: R-206
        p.cq_a.expect(2, WcStatus::Success);
    });
}

#[test]
fn overflow_kills_the_cq_and_its_qps_only() {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let healthy = Pair::new(&world);
        let (tiny, cq_b) = (Cq::new(a, 4), Cq::new(b, 64));
        let all = Options {
            signal: SigType::All,
            ..Options::default()
        };
        let qa = Qp::new(a, &tiny, &healthy.cq_a, all);
        let qb = Qp::new(b, &cq_b, &cq_b, all);
        connect(&qa, &qb);
        for id in 0..6 {
            qa.post(&Wr::new(id, WrOpcode::RdmaWrite));
        }
        // abi
        a.sink
            .expect(EventKind::Async(AsyncEvent::CqErr), tiny.cookie);
        a.sink
            .expect(EventKind::Async(AsyncEvent::QpFatal), qa.cookie);
        qa.wait_for(QpState::Err);
        for id in 0..4 {
            // abi
            tiny.expect(id, WcStatus::Success);
        }
        // abi: R-529
        assert_eq!(tiny.poll(), None, "dead");
        // Receives of the QP are flushed to its other CQ, which has not failed.
        qa.post_recv(50, &[]);
        healthy.cq_a.expect(50, WcStatus::WrFlushErr);
        healthy.qa.post(&Wr::new(7, WrOpcode::RdmaWrite));
        // abi: R-648
        healthy.cq_a.expect(7, WcStatus::Success);
        assert!(b.sink.is_empty());
        assert_eq!(
            tiny.destroy(),
            Err(rustix::io::Errno::BUSY.raw_os_error() as u8)
        );
        qa.destroy().unwrap();
        tiny.destroy().unwrap();
    });
}
