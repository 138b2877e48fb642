// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! State SQD: work requests that have begun are completed, no other work request begins, and the
//! event SQ_DRAINED is raised once if it was requested.

use std::sync::atomic::Ordering;
use std::time::Duration;

use testkit::engine::*;
use verbs::{Clock, Limits, PathPolicy, RuntimeConfig};
use virtio_rdma_abi::ctrl::CmdSetRateLimit;
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AsyncEvent, Mtu, QpAttrMask, QpState, QpType, WcStatus, WrOpcode};
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_abi::ring::Doorbell;
use virtio_rdma_abi::wire::Wire;

const DRAINED: EventKind = EventKind::Async(AsyncEvent::SqDrained);
const EINVAL: u8 = 22;

fn drain(p: &Pair<'_>, notify: u8) {
    let attr = QpAttr {
        en_sqd_async_notify: notify,
        ..QpAttr::ZERO
    };
    p.qa.modify(QpState::Sqd, QpAttrMask::EN_SQD_ASYNC_NOTIFY, attr)
        .unwrap();
}

/// Moves A to SQD while one SEND has begun that can't complete without a receive, and three later
/// SENDs have not begun.
fn begin(p: &Pair<'_>) {
    p.qa.post(&p.send(1, 10));
    wait("the first to begin", || {
        drain(p, 0);
        let begun = p.qa.query().sq_draining == 1;
        if !begun {
            p.qa.to(QpState::Rts);
        }
        begun.then_some(())
    });
    for id in 2..5 {
        p.qa.post(&p.send(id, 10));
    }
}

// abi
#[test]
fn each_time_once_and_only_on_request() {
    each(|p| {
        for _ in 0..3 {
            drain(p, 1);
            p.a.sink.expect(DRAINED, p.qa.cookie);
            assert_eq!(p.qa.query().sq_draining, 0);
            // Another change to SQD raises no event, because the SQ is already drained.
            let same = QpAttr {
                timeout: 14,
                ..QpAttr::ZERO
            };
            p.qa.modify(QpState::Sqd, QpAttrMask::TIMEOUT, same)
                .unwrap();
            p.qa.to(QpState::Rts);
            drain(p, 0);
            p.qa.to(QpState::Rts);
            p.qa.post(&p.wr(1, WrOpcode::RdmaWrite, 8));
            p.cq_a.expect(1, WcStatus::Success);
            assert!(p.a.sink.is_empty());
        }
    });
}

// abi
#[test]
fn what_was_not_begun_goes_on_in_order() {
    each(|p| {
        begin(p);
        for id in 11..15 {
            p.qb.post_recv(id, &[sge(&p.mb, 0, 64)]);
        }
        p.cq_a.expect(1, WcStatus::Success);
        p.cq_b.expect(11, WcStatus::Success);
        wait("the end of draining", || {
            (p.qa.query().sq_draining == 0).then_some(())
        });
        assert_eq!(p.cq_a.poll(), None);
        // A QP in SQD still serves requests of its peer.
        p.qb.post(
            &Wr::new(6, WrOpcode::RdmaRead)
                .local(&p.mb, 0, 64)
                .remote(&p.ma, 0),
        );
        p.cq_b.expect(6, WcStatus::Success);
        assert_eq!(p.qa.state(), QpState::Sqd);
        p.qa.to(QpState::Rts);
        for id in 2..5 {
            p.cq_a.expect(id, WcStatus::Success);
            p.cq_b.expect(10 + id, WcStatus::Success);
        }
    });
}

// abi: R-213
#[test]
fn attributes_of_a_path_in_use_do_not_change() {
    each(|p| {
        begin(p);
        let change = QpAttr {
            timeout: 14,
            ..QpAttr::ZERO
        };
        assert!(p
            .qa
            .modify(QpState::Sqd, QpAttrMask::TIMEOUT, change)
            .is_err());
        assert_ne!(p.qa.query().timeout, 14);
    });
}

// abi
#[test]
fn from_sqd_to_err_and_reset() {
    each(|p| {
        begin(p);
        p.qa.to(QpState::Err);
        for id in 1..5 {
            p.cq_a.expect(id, WcStatus::WrFlushErr);
        }
        p.qa.to(QpState::Reset);
        p.qb.to(QpState::Reset);
        connect(&p.qa, &p.qb);
        begin(p);
        p.qa.to(QpState::Reset);
        p.qb.to(QpState::Reset);
        connect(&p.qa, &p.qb);
        p.qb.post_recv(7, &[sge(&p.mb, 0, 64)]);
        p.qa.post(&p.send(8, 10));
        p.cq_a.expect(8, WcStatus::Success);
        p.cq_b.expect(7, WcStatus::Success);
        assert!(p.a.sink.is_empty() && p.b.sink.is_empty());
    });
}

/// A work request has not begun if the window or a full frame port prevented its first packet,
/// although the work request was already taken from the SQ.
// abi: R-206
#[test]
fn what_was_taken_and_not_begun_waits() {
    // The message has more packets than the window.
    const LONG: u32 = 50_000;
    let config = RuntimeConfig {
        path: PathPolicy::Wire,
        clock: Clock::manual(),
        ..RuntimeConfig::default()
    };
    let world = World::with_config(2, config, Limits::default());
    let options = Options {
        mtu: Mtu::Mtu256,
        ..Options::default()
    };
    let p = Pair::with(&world, options, options);
    world.runtime.advance(Duration::ZERO);
    world.net.lose_one_in.store(1, Ordering::Relaxed);
    let wrs = [1, 2].map(|id| p.wr(id, WrOpcode::RdmaWrite, LONG).bytes());
    p.qa.post_all(&wrs);
    p.qa.ring_doorbell(Doorbell::Sq);
    world.runtime.advance(Duration::ZERO);
    drain(&p, 1);
    assert_eq!(p.qa.query().sq_draining, 1);
    world.net.lose_one_in.store(0, Ordering::Relaxed);
    world.runtime.advance(Duration::from_secs(1));
    p.cq_a.expect(1, WcStatus::Success);
    p.a.sink.expect(DRAINED, p.qa.cookie);
    assert_eq!(p.qa.query().sq_draining, 0);
    world.runtime.advance(Duration::from_secs(1));
    assert_eq!(p.cq_a.poll(), None, "it began");
    p.qa.to(QpState::Rts);
    p.cq_a.expect(2, WcStatus::Success);
}

/// A rate limit delays the rest of a message. The SQ is not drained before the whole message is
/// sent, even if the peer has acknowledged all packets sent so far.
// abi
#[test]
fn a_message_between_two_packets_is_under_way() {
    const LONG: u32 = 20_000;
    let config = RuntimeConfig {
        path: PathPolicy::Wire,
        clock: Clock::manual(),
        ..RuntimeConfig::default()
    };
    let world = World::with_config(2, config, Limits::default());
    for vm in &world.vms {
        vm.negotiate(&[Feature::RateLimit]);
    }
    for qp_type in [QpType::Rc, QpType::Uc] {
        let options = Options::of(qp_type);
        let p = Pair::with(&world, options, options);
        let limit = CmdSetRateLimit {
            qpn: p.qa.qpn,
            rate_limit: 1_000,
            max_burst_size: 5_000,
            ..CmdSetRateLimit::ZERO
        };
        p.a.call(limit).unwrap();
        p.qa.post(&p.wr(1, WrOpcode::RdmaWrite, LONG));
        world.runtime.advance(Duration::ZERO);
        drain(&p, 1);
        world.runtime.advance(Duration::ZERO);
        assert_eq!(p.qa.query().sq_draining, 1, "{qp_type:?}");
        assert!(p.a.sink.is_empty());
        let change = QpAttr {
            rate_limit: 2_000,
            ..QpAttr::ZERO
        };
        let changed = p.qa.modify(QpState::Sqd, QpAttrMask::RATE_LIMIT, change);
        assert_eq!(changed, Err(EINVAL));
        assert_eq!(p.cq_a.poll(), None);
        world.runtime.advance(Duration::from_secs(1));
        p.cq_a.expect(1, WcStatus::Success);
        p.a.sink.expect(DRAINED, p.qa.cookie);
        assert_eq!(p.qa.query().sq_draining, 0);
    }
}
