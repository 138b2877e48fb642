// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Responders that are not ready or do not exist.

use std::time::Duration;

use testkit::engine::*;
use verbs::{Clock, Limits, RuntimeConfig};
use virtio_rdma_abi::ib::{QpState, WcStatus, WrOpcode};

/// Two VMs with a clock that only the test advances.
fn standing_still(setup: Setup) -> World {
    let config = RuntimeConfig {
        path: setup.path,
        clock: Clock::manual(),
        ..RuntimeConfig::default()
    };
    World::in_mode(setup.mode, 2, config, Limits::default())
}

// abi
#[test]
fn no_receive_posted() {
    for (opcode, rnr_retry) in [
        (WrOpcode::Send, 0),
        (WrOpcode::Send, 3),
        (WrOpcode::RdmaWriteWithImm, 1),
    ] {
        in_all_setups(|setup| {
            let world = World::new(2, setup);
            let ours = Options {
                rnr_retry,
                ..Options::default()
            };
            let p = Pair::with(&world, ours, Options::default());
            let wr = Wr::new(1, opcode).local(&p.ma, 0, 64).remote(&p.mb, 0);
            p.fails(&wr, WcStatus::RnrRetryExcErr);
            p.responder_lives();
        });
    }
}

/// The requester retries when the RNR timer that the responder requested has expired, and not
/// earlier (IBTA table 45).
// abi: R-233
#[test]
fn a_receive_that_comes_late() {
    for (min_rnr_timer, delay) in [
        (1, Duration::from_micros(10)),
        (12, Duration::from_micros(640)),
        (20, Duration::from_micros(10_240)),
    ] {
        for opcode in [WrOpcode::Send, WrOpcode::RdmaWriteWithImm] {
            in_all_setups(|setup| {
                let world = standing_still(setup);
                let theirs = Options {
                    min_rnr_timer,
                    ..Options::default()
                };
                let p = Pair::with(&world, Options::default(), theirs);
                p.qa.post(&p.wr(1, opcode, 64));
                world.runtime.advance(Duration::ZERO);
                p.qb.post_recv(2, &[sge(&p.mb, 0, 64)]);
                world.runtime.advance(delay - Duration::from_nanos(1));
                assert_eq!((p.cq_a.poll(), p.cq_b.poll()), (None, None), "{delay:?}");
                world.runtime.advance(Duration::from_nanos(1));
                p.cq_a.expect(1, WcStatus::Success);
                p.cq_b.expect(2, WcStatus::Success);
            });
        }
    }
}

/// The requester gives up after its retries. Each retry takes one to four times 4.096 µs · 2ⁿ
/// (IBTA 9.7.6.1.3).
// abi
#[test]
fn a_timeout_is_as_long_as_the_qp_says() {
    for (timeout, retry_cnt) in [(8, 0), (8, 1), (14, 0), (14, 3)] {
        in_all_setups(|setup| {
            let world = standing_still(setup);
            let ours = Options {
                timeout,
                retry_cnt,
                ..Options::default()
            };
            let p = Pair::with(&world, ours, Options::default());
            p.qb.destroy().unwrap();
            p.qa.post(&p.send(1, 64));
            let tries = u32::from(retry_cnt) + 1;
            let least = tries * (Duration::from_nanos(4096) * (1 << timeout));
            world.runtime.advance(least - Duration::from_nanos(1));
            assert_eq!(p.cq_a.poll(), None, "timeout {timeout}, {tries} tries");
            world.runtime.advance(3 * least + Duration::from_nanos(1));
            p.cq_a.expect(1, WcStatus::RetryExcErr);
        });
    }
}

// abi
#[test]
fn a_peer_that_does_not_answer() {
    type Vanish = fn(&Pair<'_>);
    let ways: [(&str, Vanish); 5] = [
        ("destroyed", |p| assert!(p.qb.destroy().is_ok())),
        ("reset", |p| p.qb.to(QpState::Reset)),
        ("in error", |p| p.qb.to(QpState::Err)),
        ("link down", |p| p.qb.vm.hca.set_link(false)),
        ("device reset", |p| p.qb.vm.hca.reset()),
    ];
    for (name, vanish) in ways {
        eprintln!("{name}");
        in_all_setups(|setup| {
            let world = World::new(2, setup);
            let ours = Options {
                retry_cnt: 1,
                timeout: 8,
                ..Options::default()
            };
            let p = Pair::with(&world, ours, Options::default());
            vanish(&p);
            p.fails(&p.send(1, 64), WcStatus::RetryExcErr);
        });
    }
}

// abi
#[test]
fn a_peer_that_expects_another_psn() {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        let ours = Options {
            retry_cnt: 0,
            timeout: 8,
            psn: 5000,
            ..Options::default()
        };
        let theirs = Options {
            psn: 100,
            ..Options::default()
        };
        let p = Pair::with(&world, ours, theirs);
        p.qb.post_recv(1, &[]);
        p.fails(&p.send(1, 0), WcStatus::RetryExcErr);
        p.responder_lives();
    });
}

// abi: R-225
#[test]
fn a_peer_that_is_connected_elsewhere() {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        let [a, b] = [&world.vms[0], &world.vms[1]];
        let (cq_a, cq_b) = (Cq::new(a, 64), Cq::new(b, 64));
        let options = Options {
            retry_cnt: 0,
            timeout: 8,
            ..Options::default()
        };
        let qa = Qp::new(a, &cq_a, &cq_a, options);
        let qb = Qp::new(b, &cq_b, &cq_b, options);
        qa.to_init().unwrap();
        qb.to_init().unwrap();
        // B expects a peer in its own VM.
        qb.to_rtr(b, qa.qpn).unwrap();
        qb.to_rts().unwrap();
        qa.to_rtr(b, qb.qpn).unwrap();
        qa.to_rts().unwrap();
        qb.post_recv(1, &[]);
        qa.post(&Wr::new(2, WrOpcode::Send));
        cq_a.expect(2, WcStatus::RetryExcErr);
        assert_eq!(cq_b.poll(), None);
    });
}
