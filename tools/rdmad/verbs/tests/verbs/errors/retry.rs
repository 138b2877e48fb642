// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Responders that are not ready or not there.

use virtio_rdma_abi::ib::{QpState, WcStatus, WrOpcode};

use crate::harness::*;

#[test]
fn no_receive_posted() {
    for (opcode, rnr_retry) in [
        (WrOpcode::Send, 0),
        (WrOpcode::Send, 3),
        (WrOpcode::RdmaWriteWithImm, 1),
    ] {
        on_both_paths(|path| {
            let world = World::new(2, path);
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

#[test]
fn a_receive_that_comes_late() {
    for opcode in [WrOpcode::Send, WrOpcode::RdmaWriteWithImm] {
        each(|p| {
            let wr = Wr::new(1, opcode).local(&p.ma, 0, 64).remote(&p.mb, 0);
            p.qa.post(&wr);
            // Retries without a limit, so it is still trying.
            std::thread::sleep(std::time::Duration::from_millis(5));
            assert_eq!(p.cq_a.poll(), None);
            p.qb.post_recv(2, &[sge(&p.mb, 0, 64)]);
            p.cq_a.expect(1, WcStatus::Success);
            p.cq_b.expect(2, WcStatus::Success);
        });
    }
}

#[test]
fn a_peer_that_does_not_answer() {
    type Vanish = fn(&Pair<'_>);
    let ways: [(&str, Vanish); 5] = [
        ("destroyed", |p| assert!(p.qb.destroy().is_ok())),
        ("reset", |p| p.qb.to(QpState::Reset)),
        ("in error", |p| p.qb.to(QpState::Err)),
        ("link down", |p| p.qb.vm.device.set_link(false)),
        ("device reset", |p| p.qb.vm.device.reset()),
    ];
    for (name, vanish) in ways {
        eprintln!("{name}");
        on_both_paths(|path| {
            let world = World::new(2, path);
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

#[test]
fn a_peer_that_expects_another_psn() {
    on_both_paths(|path| {
        let world = World::new(2, path);
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

#[test]
fn a_peer_that_is_connected_elsewhere() {
    on_both_paths(|path| {
        let world = World::new(2, path);
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
