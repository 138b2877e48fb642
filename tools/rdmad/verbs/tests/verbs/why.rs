// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! QPs that hang, each for another reason, are explained.

use std::sync::atomic::Ordering;
use std::time::Duration;

use testkit::engine::*;
use verbs::{Clock, Hca, Limits, PathPolicy, RuntimeConfig};
use virtio_rdma_abi::ib::WrOpcode;
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::ring::Doorbell;

/// Two VMs with a clock that only the test advances.
fn world(path: PathPolicy) -> World {
    let config = RuntimeConfig {
        path,
        clock: Clock::manual(),
        ..RuntimeConfig::default()
    };
    World::with_config(2, config, Limits::default())
}

/// Why a QP's work does not go on.
fn why(hca: &Hca, qpn: Qpn) -> Option<String> {
    hca.qp_details(qpn, true).unwrap().1.why
}

/// Fails unless the explanation of a QP has all of `parts`.
#[track_caller]
fn explains(hca: &Hca, qpn: Qpn, parts: &[&str]) {
    let why = why(hca, qpn).unwrap_or_default();
    for part in parts {
        assert!(why.contains(part), "{part:?} is not in {why:?}");
    }
}

#[test]
fn a_qp_without_work_needs_no_explanation() {
    on_both_paths(|path| {
        let world = world(path);
        let p = Pair::new(&world);
        p.qb.post_recv(1, &[sge(&p.mb, 0, 64)]);
        p.qa.post(&p.send(2, 64));
        world.runtime.advance(Duration::ZERO);
        assert_eq!(why(&p.a.hca, p.qa.qpn), None);
        assert_eq!(why(&p.b.hca, p.qb.qpn), None);
    });
}

#[test]
fn a_doorbell_is_lost() {
    on_both_paths(|path| {
        let world = world(path);
        let p = Pair::new(&world);
        world.runtime.advance(Duration::ZERO);
        assert!(p.qa.post_all(&[p.send(1, 8).bytes(), p.send(2, 8).bytes()]));
        world.runtime.advance(Duration::from_secs(1));
        let parts = ["2 work requests are posted", "doorbell has not come"];
        explains(&p.a.hca, p.qa.qpn, &parts);
        // The doorbell that comes after all is no longer missed.
        p.qa.ring_doorbell(Doorbell::Sq);
        world.runtime.advance(Duration::ZERO);
        let why = why(&p.a.hca, p.qa.qpn).unwrap();
        assert!(!why.contains("doorbell"), "{why}");
    });
}

#[test]
fn the_peer_has_no_receive() {
    on_both_paths(|path| {
        let world = world(path);
        for (rnr_retry, left) in [(7, "retries left: without limit"), (3, "retries left: 2")] {
            let ours = Options {
                rnr_retry,
                ..Options::default()
            };
            let theirs = Options {
                // 10.24 ms.
                min_rnr_timer: 20,
                ..Options::default()
            };
            let p = Pair::with(&world, ours, theirs);
            p.qa.post(&p.send(1, 64));
            world.runtime.advance(Duration::ZERO);
            let parts = ["no receive posted (RNR)", "due in 10.2 ms", left];
            explains(&p.a.hca, p.qa.qpn, &parts);
            let parts = ["a request of its peer waits: no receive is posted"];
            explains(&p.b.hca, p.qb.qpn, &parts);
            p.qb.post_recv(1, &[sge(&p.mb, 0, 64)]);
            assert_eq!(why(&p.b.hca, p.qb.qpn), None);
        }
    });
}

#[test]
fn an_srq_has_run_dry() {
    on_both_paths(|path| {
        let world = world(path);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let (cq_a, cq_b) = (Cq::new(a, 64), Cq::new(b, 64));
        let srq = Srq::new(b, 16);
        let from = Qp::new(a, &cq_a, &cq_a, Options::default());
        let to = Qp::with_srq(b, &cq_b, srq.srqn, Options::default()).unwrap();
        connect(&from, &to);
        let (mr, mr_b) = (a.mr(4096), b.mr(4096));
        srq.post(1, &[sge(&mr_b, 0, 64)]);
        for id in 1..=2 {
            from.post(&Wr::new(id, WrOpcode::Send).local(&mr, 0, 64));
        }
        world.runtime.advance(Duration::ZERO);
        let dry = format!("SRQ {} has no receive, and 1 completions", srq.srqn);
        let parts = ["a request of its peer waits", &dry, "not polled"];
        explains(&b.hca, to.qpn, &parts);
    });
}

#[test]
fn the_device_of_the_port_has_failed() {
    on_both_paths(|path| {
        let world = world(path);
        let p = Pair::new(&world);
        assert!(p.qa.post_all(&[p.send(1, 8).bytes()]));
        p.a.hca.fail("planted");
        explains(&p.a.hca, p.qa.qpn, &["of its port has failed: planted"]);
        assert_eq!(p.a.hca.failure().as_deref(), Some("planted"));
        p.a.hca.reset();
        assert_eq!(p.a.hca.failure(), None);
    });
}

#[test]
fn work_is_posted_before_rts() {
    let world = world(PathPolicy::Wire);
    let [a, b] = [&world.vms[0], &world.vms[1]];
    let cq = Cq::new(a, 64);
    let qp = Qp::new(a, &cq, &cq, Options::default());
    qp.to_init().unwrap();
    qp.to_rtr(b, qp.qpn).unwrap();
    qp.post(&Wr::new(1, WrOpcode::Send));
    world.runtime.advance(Duration::ZERO);
    explains(&a.hca, qp.qpn, &["it sends only in RTS, and is in RTR"]);
}

#[test]
fn the_peer_does_not_answer() {
    on_both_paths(|path| {
        let world = world(path);
        let p = Pair::new(&world);
        p.qb.destroy().unwrap();
        p.qa.post(&p.send(1, 64));
        world.runtime.advance(Duration::ZERO);
        let parts = match path {
            PathPolicy::Direct => ["its peer does not answer", "the ACK timeout ends in", "7"],
            PathPolicy::Wire => [
                "1 packets from PSN",
                "are not acknowledged",
                "retries left: 7",
            ],
        };
        explains(&p.a.hca, p.qa.qpn, &parts);
    });
}

#[test]
fn a_window_stays_shut() {
    let world = world(PathPolicy::Wire);
    let p = Pair::new(&world);
    world.net.ends_after.store(0, Ordering::Relaxed);
    for id in 0..64 {
        p.qa.post(&p.send(id, 64));
    }
    world.runtime.advance(Duration::ZERO);
    let parts = [
        "packets from PSN",
        "which is all that the congestion window allows",
    ];
    explains(&p.a.hca, p.qa.qpn, &parts);
}

#[test]
fn a_port_has_no_frames() {
    let world = world(PathPolicy::Wire);
    let p = Pair::new(&world);
    let buffers = world.net.take_buffers(p.a.mac);
    p.qa.post(&p.send(1, 64));
    world.runtime.advance(Duration::ZERO);
    explains(
        &p.a.hca,
        p.qa.qpn,
        &["the port has had no room for its frames for "],
    );
    drop(buffers);
}
