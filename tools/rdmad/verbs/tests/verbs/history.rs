// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The flight recorder of a port has what explains why work failed.

use std::time::Duration;

use recorder::{Kind, Traced};
use testkit::engine::*;
use verbs::{Clock, Hca, Limits, PathPolicy, RuntimeConfig};
use virtio_rdma_abi::ctrl::Errno;
use virtio_rdma_abi::ib::{QpAttrMask, QpState, WcStatus, WrOpcode};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::Rdma;

/// Two VMs with a clock that only the test advances.
fn world(path: PathPolicy) -> World {
    let config = RuntimeConfig {
        path,
        clock: Clock::manual(),
        ..RuntimeConfig::default()
    };
    World::with_config(2, config, Limits::default())
}

/// The recorded events of a QP, in words.
fn told(hca: &Hca, qpn: Qpn) -> Vec<String> {
    let (events, _) = hca.recorder().read(0);
    let of_qp = events.iter().filter(|each| each.event.qpn == qpn.get());
    let words = of_qp.map(|each| each.event.to_string());
    words
        .map(|text| text.split_once(": ").unwrap().1.to_owned())
        .collect()
}

/// Fails unless the events have each of `parts`, in this order.
#[track_caller]
fn tells(events: &[String], parts: &[&str]) {
    let mut rest = events.iter();
    for part in parts {
        assert!(
            rest.any(|event| event.contains(part)),
            "{part:?} is not in {events:#?}"
        );
    }
}

#[test]
fn the_life_of_a_qp_is_told() {
    let world = world(PathPolicy::Direct);
    let p = Pair::new(&world);
    let qpn = p.qa.qpn;
    p.qa.destroy().unwrap();
    tells(
        &told(&p.a.hca, qpn),
        &[
            "created, type RC",
            "modified, to INIT, from RESET",
            "modified, to RTR, from INIT",
            "modified, to RTS, from RTR",
            "destroyed",
        ],
    );
}

#[test]
fn an_exhausted_retry_count_is_told() {
    on_both_paths(|path| {
        let world = world(path);
        let p = Pair::new(&world);
        p.qb.destroy().unwrap();
        p.qa.post(&p.send(0x77, 64));
        for _ in 0..64 {
            world.runtime.advance(Duration::from_secs(1));
        }
        let timeout = match path {
            PathPolicy::Direct => "peer does not answer",
            PathPolicy::Wire => "ACK timeout",
        };
        let events = told(&p.a.hca, p.qa.qpn);
        let timeouts = events.iter().filter(|event| event.contains(timeout));
        assert_eq!(timeouts.count(), 8, "seven retries: {events:#?}");
        tells(
            &events,
            &[
                "retries left 7",
                "retries left 0",
                "send work request failed, status RETRY_EXC_ERR, wr id 0x77",
                "failed, to ERR",
            ],
        );
        if path == PathPolicy::Wire {
            let (events, _) = p.b.hca.recorder().read(0);
            let dropped = |kind| events.iter().any(|each| each.event.kind == kind);
            assert!(
                dropped(Kind::NoQp),
                "the other side tells of the packets: {events:#?}"
            );
        }
    });
}

#[test]
fn a_missing_receive_is_told_at_both_ends() {
    let ours = Options {
        rnr_retry: 2,
        ..Options::default()
    };
    on_both_paths(|path| {
        let world = world(path);
        let p = Pair::with(&world, ours, Options::default());
        p.qa.post(&p.send(1, 64));
        for _ in 0..64 {
            world.runtime.advance(Duration::from_secs(1));
        }
        let refused = match path {
            PathPolicy::Direct => "peer has no receive posted",
            PathPolicy::Wire => "RNR NAK received",
        };
        tells(
            &told(&p.a.hca, p.qa.qpn),
            &[
                refused,
                "retries left 0",
                "status RNR_RETRY_EXC_ERR",
                "failed, to ERR",
            ],
        );
        if path == PathPolicy::Wire {
            tells(&told(&p.b.hca, p.qb.qpn), &["RNR NAK sent"]);
        }
    });
}

#[test]
fn a_refused_key_is_told_with_key_and_address() {
    on_both_paths(|path| {
        let world = world(path);
        let p = Pair::new(&world);
        let remote = Rdma {
            remote_addr: 0x1234_5000,
            rkey: 0xabcd,
        };
        p.qa.post(&Wr {
            remote,
            ..p.wr(5, WrOpcode::RdmaWrite, 64)
        });
        world.runtime.advance(Duration::ZERO);
        tells(
            &told(&p.b.hca, p.qb.qpn),
            &[
                "R_Key refused, rkey 0xabcd, address 0x12345000, reason NO_SUCH_KEY",
                "failed, to ERR",
                "event, event QP_ACCESS_ERR",
            ],
        );
        tells(
            &told(&p.a.hca, p.qa.qpn),
            &["status REM_ACCESS_ERR, wr id 0x5, reason PEER_ACCESS"],
        );
        if path == PathPolicy::Wire {
            tells(&told(&p.b.hca, p.qb.qpn), &["NAK sent"]);
            tells(
                &told(&p.a.hca, p.qa.qpn),
                &["code remote access error", "REM_ACCESS_ERR"],
            );
        }
    });
}

#[test]
fn a_long_wait_is_told_with_its_cause() {
    let world = world(PathPolicy::Direct);
    let theirs = Options {
        // 10.24 ms.
        min_rnr_timer: 20,
        ..Options::default()
    };
    let p = Pair::with(&world, Options::default(), theirs);
    p.qa.post(&p.send(1, 64));
    world.runtime.advance(Duration::ZERO);
    p.qb.post_recv(1, &[sge(&p.mb, 0, 64)]);
    world.runtime.advance(Duration::from_millis(50));
    tells(
        &told(&p.a.hca, p.qa.qpn),
        &["peer has no receive", "waited, for a deadline"],
    );
}

#[test]
fn commands_and_resets_are_told() {
    let world = world(PathPolicy::Direct);
    let p = Pair::new(&world);
    let refused = p.qa.modify(QpState::Rtr, QpAttrMask::NONE, QpAttr::ZERO);
    assert_eq!(refused, Err(Errno::Einval.value()));
    p.a.hca.set_link(false);
    p.a.hca.reset();
    let (events, _) = p.a.hca.recorder().read(0);
    let words: Vec<_> = events.iter().map(|each| each.event.to_string()).collect();
    tells(
        &words,
        &[
            "command CREATE_QP",
            "command MODIFY_QP refused (EINVAL): qp_state: there is no transition from RTS to RTR",
            "link, up 0",
            "event, event PORT_ERR",
            "reset",
        ],
    );
}

#[test]
fn what_occurs_for_each_packet_is_kept_nowhere() {
    let world = world(PathPolicy::Wire);
    let p = Pair::new(&world);
    p.a.hca.recorder().set_traced(Traced::Qp(p.qa.qpn.get()));
    let before = p.a.hca.recorder().read(0).1;
    for id in 0..32 {
        p.qb.post_recv(id, &[sge(&p.mb, 0, 64)]);
        p.qa.post(&p.send(id, 64));
    }
    world.runtime.advance(Duration::ZERO);
    for id in 0..32 {
        p.cq_a.expect(id, WcStatus::Success);
    }
    assert_eq!(
        p.a.hca.recorder().read(0).1,
        before,
        "a good message leaves no event"
    );
}

/// An ACK timeout uses up no retry while other packets of the peer's host arrive: its answer may be
/// late.
#[test]
fn timeouts_are_excused_while_the_peers_host_is_heard() {
    let timeouts = |is_heard: bool| {
        let world = world(PathPolicy::Wire);
        let (p, other) = (Pair::new(&world), Pair::new(&world));
        p.qb.destroy().unwrap();
        p.qa.post(&p.send(1, 64));
        for id in 0..400 {
            if is_heard {
                other.write(id);
            }
            world.runtime.advance(Duration::from_millis(5));
            if is_heard {
                other.cq_a.expect(id, WcStatus::Success);
            }
        }
        let events = told(&p.a.hca, p.qa.qpn);
        events
            .iter()
            .filter(|event| event.contains("ACK timeout"))
            .count()
    };
    let (quiet, heard) = (timeouts(false), timeouts(true));
    assert!(0 < heard && heard < quiet, "{heard} {quiet}");
}
