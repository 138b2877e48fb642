// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Rules of scenarios: what fails, by whom it is noticed, and that nothing else changes.

use std::time::{Duration, Instant};

use chaos::Limit;
use testkit::engine::*;
use testkit::wait_until;
use verbs::{DataPath, HcaConfig, PathPolicy};
use virtio_rdma_abi::config::{AtomicCap, Config, OwnRingsConfig, OWN_RINGS_CONFIG_OFFSET};
use virtio_rdma_abi::ctrl::{CmdCreatePd, Errno};
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AsyncEvent, QpAttrMask, QpState, QpType, WcStatus, WrOpcode, PORT};
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_abi::ring::{ArmKind, Doorbell};
use virtio_rdma_abi::wire::Wire;

/// Adds the rules to the scenario of a VM.
fn order(vm: &Vm, rules: &str) {
    vm.hca.rules().add(&rules.parse().unwrap()).unwrap();
}

/// For each rule of a VM how many events it was about, and to how many it applied.
fn counts(vm: &Vm) -> Vec<(u64, u64)> {
    let rules = vm.hca.rules().list();
    rules.iter().map(|rule| (rule.seen, rule.applied)).collect()
}

/// The kinds of the events of rules that VM has recorded.
fn recorded(vm: &Vm) -> Vec<String> {
    let (events, _) = vm.hca.recorder().read(0);
    let texts = events.iter().map(|recorded| recorded.event.to_string());
    texts.filter(|text| text.contains("scenario")).collect()
}

/// Every status that a rule can order ends the chosen work request, after those before it. The QP
/// fails and flushes what follows.
#[test]
fn a_send_work_request_fails_with_the_status() {
    for status in WcStatus::ALL {
        let name = status.c_name().to_str().unwrap();
        let rule = format!("send any nth 2 then fail {name}");
        if rule.parse::<chaos::Scenario>().is_err() {
            continue;
        }
        each(|p| {
            order(p.a, &rule);
            p.qa.post(&p.wr(1, WrOpcode::RdmaWrite, 100));
            p.cq_a.expect(1, WcStatus::Success);
            p.fails(&p.wr(2, WrOpcode::RdmaWrite, 100), *status);
            assert_eq!(counts(p.a), [(2, 1)]);
            assert_eq!(recorded(p.a).len(), 1);
            // The peer does not know.
            p.responder_lives();
        });
    }
}

/// A rule is about the operations and the QPs that it names. QPs are counted in the order of their
/// creation.
#[test]
fn a_rule_is_about_what_it_names() {
    each(|p| {
        let other = Pair::between([p.a, p.b], Options::default(), Options::default());
        order(p.a, "send RDMA_READ qp 2 then fail REM_ACCESS_ERR");
        for pair in [p, &other] {
            pair.qa.post(&pair.wr(1, WrOpcode::RdmaWrite, 100));
            pair.cq_a.expect(1, WcStatus::Success);
        }
        p.qa.post(&p.wr(2, WrOpcode::RdmaRead, 100));
        p.cq_a.expect(2, WcStatus::Success);
        other.fails(
            &other.wr(3, WrOpcode::RdmaRead, 100),
            WcStatus::RemAccessErr,
        );
        assert_eq!(counts(p.a), [(1, 1)]);
    });
}

/// A rule about a peer is about all connections with it, and no others.
#[test]
fn a_rule_is_about_a_peer() {
    on_both_paths(|path| {
        let world = World::new(3, path);
        let [a, b, c] = [0, 1, 2].map(|vm| &world.vms[vm]);
        let near = Pair::between([a, b], Options::default(), Options::default());
        let far = Pair::between([a, c], Options::default(), Options::default());
        order(a, "send any peer 10.0.0.3 nth 2 then fail RETRY_EXC_ERR");
        order(a, "c: completion peer 10.0.0.3 from 9 then drop");
        for pair in [&near, &far] {
            pair.qa.post(&pair.wr(1, WrOpcode::RdmaWrite, 100));
            pair.cq_a.expect(1, WcStatus::Success);
        }
        near.qa.post(&near.wr(2, WrOpcode::RdmaWrite, 100));
        near.cq_a.expect(2, WcStatus::Success);
        far.fails(&far.wr(3, WrOpcode::RdmaWrite, 100), WcStatus::RetryExcErr);
        // One of success, one of the failure, two of flushed work.
        assert_eq!(counts(a), [(2, 1), (4, 0)]);
    });
}

/// A rule about an MR is about requests with its key. MRs are counted in the order of their
/// registration.
#[test]
fn a_rule_is_about_an_mr() {
    each(|p| {
        let other = Pair::between([p.a, p.b], Options::default(), Options::default());
        order(p.b, "access any mr 2 from 2 then fail REM_ACCESS_ERR");
        for pair in [p, &other] {
            pair.qa.post(&pair.wr(1, WrOpcode::RdmaWrite, 100));
            pair.cq_a.expect(1, WcStatus::Success);
        }
        p.qa.post(&p.wr(2, WrOpcode::RdmaRead, 100));
        p.cq_a.expect(2, WcStatus::Success);
        other.fails(
            &other.wr(3, WrOpcode::RdmaRead, 100),
            WcStatus::RemAccessErr,
        );
        assert_eq!(counts(p.b), [(2, 1)]);
        // A key that the MR does not have now.
        let mut outdated = p.wr(4, WrOpcode::RdmaRead, 100).remote(&other.mb, 0);
        outdated.remote.rkey ^= 1;
        p.fails(&outdated, WcStatus::RemAccessErr);
        assert_eq!(counts(p.b), [(2, 1)]);
    });
}

/// A receive fails when its message arrives. The sender is told that its peer failed.
#[test]
fn a_receive_fails_with_the_status() {
    for status in [
        WcStatus::LocLenErr,
        WcStatus::LocQpOpErr,
        WcStatus::LocProtErr,
    ] {
        each(|p| {
            let name = status.c_name().to_str().unwrap();
            order(p.b, &format!("receive nth 2 then fail {name}"));
            for id in [1, 2] {
                p.qb.post_recv(id, &[sge(&p.mb, 0, 100)]);
            }
            p.qa.post(&p.send(3, 100));
            p.cq_a.expect(3, WcStatus::Success);
            p.cq_b.expect(1, WcStatus::Success);
            p.qa.post(&p.send(4, 100));
            p.cq_b.expect(2, status);
            p.cq_a.expect(4, WcStatus::RemOpErr);
            p.qb.wait_for(QpState::Err);
            assert_eq!(counts(p.b), [(2, 1)]);
        });
    }
}

/// A QP fails with an event, at a send work request or at a receive.
#[test]
fn a_qp_fails_with_an_event() {
    for event in [
        AsyncEvent::QpFatal,
        AsyncEvent::QpReqErr,
        AsyncEvent::QpAccessErr,
    ] {
        let name = event.c_name().to_str().unwrap();
        each(|p| {
            order(p.a, &format!("send any nth 2 then raise {name}"));
            p.qa.post(&p.wr(1, WrOpcode::RdmaWrite, 100));
            p.cq_a.expect(1, WcStatus::Success);
            p.qa.post(&p.wr(2, WrOpcode::RdmaWrite, 100));
            p.cq_a.expect(2, WcStatus::WrFlushErr);
            assert_eq!(p.qa.state(), QpState::Err);
            p.a.sink.expect(EventKind::Async(event), p.qa.cookie);
        });
        each(|p| {
            order(p.b, &format!("receive then raise {name}"));
            p.qb.post_recv(1, &[sge(&p.mb, 0, 100)]);
            p.qa.post(&p.send(2, 100));
            p.cq_a.expect(2, WcStatus::RemOpErr);
            p.responder_failed(Some(event));
            p.cq_b.expect(1, WcStatus::WrFlushErr);
        });
    }
}

/// The device of a port fails and asks for a reset, at each kind of event. Its peers live.
#[test]
fn a_device_fails() {
    for rule in ["command CREATE_PD", "send any", "receive"] {
        let theirs = Options {
            timeout: 8,
            retry_cnt: 1,
            ..Options::default()
        };
        on_both_paths(|path| {
            let world = World::new(2, path);
            let p = &Pair::with(&world, Options::default(), theirs);
            order(p.a, &format!("x: {rule} nth 1 then crash"));
            if rule == "command CREATE_PD" {
                assert_eq!(p.a.call(CmdCreatePd {}).unwrap_err(), Errno::Eio.value());
            } else if rule == "receive" {
                p.qa.post_recv(1, &[]);
                p.qb.post(&Wr::new(2, WrOpcode::Send));
                // Nobody answers any more.
                p.cq_b.expect(2, WcStatus::RetryExcErr);
            } else {
                p.qa.post(&p.wr(1, WrOpcode::RdmaWrite, 100));
            }
            wait_until("the device asks for a reset", || {
                p.a.sink.failure().is_some()
            });
            assert_eq!(p.a.hca.failure().unwrap(), "rule x of the scenario");
            assert!(p.b.hca.failure().is_none());
        });
    }
}

/// A message that finds no receive is sent again, until there are no retries left.
#[test]
fn a_receive_is_withheld() {
    each(|p| {
        order(p.b, "receive nth 1 then withhold");
        p.qb.post_recv(1, &[sge(&p.mb, 0, 100)]);
        p.qa.post(&p.send(2, 100));
        p.cq_a.expect(2, WcStatus::Success);
        p.cq_b.expect(1, WcStatus::Success);
        assert_eq!(counts(p.b), [(2, 1)]);
    });
    let ours = Options {
        rnr_retry: 1,
        ..Options::default()
    };
    on_both_paths(|path| {
        let world = World::new(2, path);
        let p = Pair::with(&world, ours, Options::default());
        order(p.b, "receive then withhold");
        p.qb.post_recv(1, &[sge(&p.mb, 0, 100)]);
        p.fails(&p.send(2, 100), WcStatus::RnrRetryExcErr);
        assert_eq!(counts(p.b), [(2, 2)]);
    });
}

/// A datagram whose receive is withheld is lost.
#[test]
fn a_datagram_is_lost_without_a_receive() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let options = Options::of(QpType::Ud);
        let p = Pair::with(&world, options, options);
        order(p.b, "receive nth 1 then withhold");
        p.qb.post_recv(1, &[sge(&p.mb, 0, 200)]);
        for id in [2, 3] {
            p.qa.post(&p.send(id, 100));
            p.cq_a.expect(id, WcStatus::Success);
        }
        let received = p.cq_b.expect(1, WcStatus::Success);
        assert_eq!(received.byte_len, 140);
        assert!(p.cq_b.poll().is_none());
    });
}

/// Packets that are lost are sent again. A rule about packets puts connections on the wire.
#[test]
fn a_packet_is_lost() {
    for path in [PathPolicy::Direct, PathPolicy::Wire] {
        let world = World::new(2, path);
        order(&world.vms[0], "packet qp 1 nth 2 then drop");
        let p = Pair::new(&world);
        let (status, _) = p.a.hca.qp_details(p.qa.qpn, false).unwrap();
        assert_eq!(status.peer.unwrap().path, DataPath::Wire);
        let data = pattern(20_000, 1);
        p.a.write(p.ma.iova, &data);
        p.qa.post(&p.wr(1, WrOpcode::RdmaWrite, 20_000));
        p.cq_a.expect(1, WcStatus::Success);
        assert_eq!(p.b.read(p.mb.iova, 20_000), data);
        let [(seen, applied)] = counts(p.a)[..] else {
            panic!("one rule");
        };
        // The peer sends packets too.
        p.qb.post(
            &Wr::new(2, WrOpcode::RdmaWrite)
                .local(&p.mb, 0, 8)
                .remote(&p.ma, 0),
        );
        p.cq_b.expect(2, WcStatus::Success);
        // Without those that are sent again.
        assert_eq!((seen, applied), (20_000u64.div_ceil(1024), 1));
    }
}

/// A rule that comes or goes while a connection is there changes neither end's path.
#[test]
fn a_connection_keeps_its_path() {
    let path_of = |qp: &Qp<'_>| {
        let (status, _) = qp.vm.hca.qp_details(qp.qpn, false).unwrap();
        status.peer.unwrap().path
    };
    for (before, path) in [(false, DataPath::Direct), (true, DataPath::Wire)] {
        let world = World::new(2, PathPolicy::Direct);
        let rule = "x: packet from 1000000 then drop";
        if before {
            order(&world.vms[0], rule);
        }
        let p = Pair::new(&world);
        if before {
            p.a.hca.rules().remove("x").unwrap();
        } else {
            order(p.a, rule);
        }
        // RTS to RTS, with a new timer.
        let attrs = QpAttr {
            min_rnr_timer: 5,
            ..QpAttr::ZERO
        };
        p.qa.modify(
            QpState::Rts,
            QpAttrMask::STATE | QpAttrMask::MIN_RNR_TIMER,
            attrs,
        )
        .unwrap();
        for (from, to, cq, mrs) in [
            (&p.qa, &p.qb, &p.cq_a, [&p.ma, &p.mb]),
            (&p.qb, &p.qa, &p.cq_b, [&p.mb, &p.ma]),
        ] {
            assert_eq!([from, to].map(path_of), [path; 2]);
            from.post(
                &Wr::new(1, WrOpcode::RdmaWrite)
                    .local(mrs[0], 0, 8)
                    .remote(mrs[1], 0),
            );
            cq.expect(1, WcStatus::Success);
        }
    }
    // One end connects before the rule and the other one afterwards.
    let world = World::new(2, PathPolicy::Direct);
    let [a, b] = [0, 1].map(|at| &world.vms[at]);
    let [cq_a, cq_b] = [a, b].map(|vm| Cq::new(vm, 8));
    let qa = Qp::new(a, &cq_a, &cq_a, Options::default());
    let qb = Qp::new(b, &cq_b, &cq_b, Options::default());
    for qp in [&qa, &qb] {
        qp.to_init().unwrap();
    }
    qa.to_rtr(b, qb.qpn).unwrap();
    order(b, "packet from 1000000 then drop");
    qb.to_rtr(a, qa.qpn).unwrap();
    assert_eq!([&qa, &qb].map(path_of), [DataPath::Direct; 2]);
}

/// Work requests before the one that fails succeed on either path, however many are posted at once,
/// and those after it meet no rule.
#[test]
fn rules_choose_among_many_work_requests() {
    for what in ["fail REM_OP_ERR", "raise QP_FATAL"] {
        each(|p| {
            order(p.a, &format!("send any from 7 then {what}"));
            let wqes: Vec<_> = (1..=20)
                .map(|id| p.wr(id, WrOpcode::RdmaWrite, 100).bytes())
                .collect();
            p.qa.post_all(&wqes);
            p.qa.ring_doorbell(Doorbell::Sq);
            for id in 1..7 {
                p.cq_a.expect(id, WcStatus::Success);
            }
            let failed = p.cq_a.next();
            assert_eq!((failed.wr_id, failed.status != 0), (7, true));
            for id in 8..=20 {
                p.cq_a.expect(id, WcStatus::WrFlushErr);
            }
            assert_eq!(counts(p.a), [(7, 1)]);
        });
    }
}

/// Packets that are sent again are not lost once more: a QP gets over the loss of each packet.
#[test]
fn each_packet_is_lost_once() {
    let world = World::new(2, PathPolicy::Wire);
    let ours = Options {
        retry_cnt: 7,
        ..Options::default()
    };
    let p = Pair::with(&world, ours, Options::default());
    order(p.a, "packet then drop");
    for id in 1..5 {
        p.qa.post(&p.wr(id, WrOpcode::RdmaWrite, 8));
        p.cq_a.expect(id, WcStatus::Success);
        assert_eq!(counts(p.a), [(id, id)]);
    }
}

/// A command is refused with each error number, at the call that the rule names.
#[test]
fn a_command_is_refused() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    for errno in Errno::ALL {
        let name = errno.c_name().to_str().unwrap();
        order(
            vm,
            &format!("x: command CREATE_PD nth 2 then refuse {name}"),
        );
        vm.call(CmdCreatePd {}).unwrap();
        assert_eq!(vm.call(CmdCreatePd {}).unwrap_err(), errno.value());
        vm.call(CmdCreatePd {}).unwrap();
        assert_eq!(counts(vm), [(3, 1)]);
        vm.hca.rules().remove("x").unwrap();
    }
}

/// A command that is delayed is executed all the same.
#[test]
fn a_command_waits() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    order(vm, "command CREATE_PD then wait 1ms");
    vm.call(CmdCreatePd {}).unwrap();
    assert_eq!(counts(vm), [(1, 1)]);
}

/// The counts go on in another process.
#[test]
fn an_upgrade_keeps_rules_and_counts() {
    let world = World::new(1, PathPolicy::Direct);
    let vm = &world.vms[0];
    order(vm, "command CREATE_PD nth 2 then refuse EBUSY");
    vm.call(CmdCreatePd {}).unwrap();
    goes_on(vm);
    assert_eq!(vm.call(CmdCreatePd {}).unwrap_err(), Errno::Ebusy.value());
}

/// A peer's request is refused at its memory: its work request ends with the status, and the QP
/// that refuses it fails with an event, as after a real error. Requests before it are executed.
#[test]
fn an_access_is_refused() {
    for (status, event) in [
        (WcStatus::RemAccessErr, AsyncEvent::QpAccessErr),
        (WcStatus::RemInvReqErr, AsyncEvent::QpReqErr),
        (WcStatus::RemOpErr, AsyncEvent::QpFatal),
    ] {
        let name = status.c_name().to_str().unwrap();
        for opcode in [
            WrOpcode::RdmaWrite,
            WrOpcode::RdmaRead,
            WrOpcode::AtomicFetchAndAdd,
        ] {
            each(|p| {
                let access = match opcode {
                    WrOpcode::RdmaWrite => "REMOTE_WRITE",
                    WrOpcode::RdmaRead => "REMOTE_READ",
                    _ => "REMOTE_ATOMIC",
                };
                order(p.b, &format!("access {access} nth 2 then fail {name}"));
                order(p.b, "other: access FLUSH_GLOBAL then fail REM_OP_ERR");
                p.qa.post(&p.wr(1, opcode, 8));
                p.cq_a.expect(1, WcStatus::Success);
                p.fails(&p.wr(2, opcode, 8), status);
                p.responder_failed(Some(event));
                assert_eq!(counts(p.b), [(2, 1), (0, 0)]);
            });
        }
    }
}

/// A request of an unreliable connection is dropped without a word.
#[test]
fn a_refused_access_of_an_unreliable_connection_is_lost() {
    each_with(Options::of(QpType::Uc), |p| {
        order(p.b, "access any nth 1 then fail REM_ACCESS_ERR");
        p.a.write(p.ma.iova, &[7; 8]);
        p.qa.post(&p.wr(1, WrOpcode::RdmaWrite, 8));
        p.cq_a.expect(1, WcStatus::Success);
        p.await_delivery();
        assert_eq!(p.b.read(p.mb.iova, 8), [0; 8]);
        p.qa.post(&p.wr(2, WrOpcode::RdmaWrite, 8));
        p.cq_a.expect(2, WcStatus::Success);
        wait_until("the second one to arrive", || {
            p.b.read(p.mb.iova, 8) == [7; 8]
        });
        p.responder_lives();
    });
}

/// Completions that a rule holds come late and together, with one event.
#[test]
fn completions_are_held() {
    each_setup(|p| {
        order(p.a, "completion cq 1 nth 2 then hold 100ms");
        p.qa.post(&p.wr(1, WrOpcode::RdmaWrite, 8));
        p.cq_a.expect(1, WcStatus::Success);
        p.cq_a.arm(ArmKind::Next);
        let began = Instant::now();
        for id in 2..5 {
            p.qa.post(&p.wr(id, WrOpcode::RdmaWrite, 8));
        }
        p.a.sink.expect(EventKind::Completion, p.cq_a.cookie);
        assert!(began.elapsed() >= Duration::from_millis(100));
        for id in 2..5 {
            assert_eq!(p.cq_a.poll().unwrap().wr_id, id);
        }
        assert!(p.a.sink.is_empty());
        let [(seen, applied)] = counts(p.a)[..] else {
            panic!("one rule");
        };
        assert_eq!((seen, applied), (4, 1));
        // The next one is not held.
        p.qa.post(&p.wr(5, WrOpcode::RdmaWrite, 8));
        p.cq_a.expect(5, WcStatus::Success);
    });
}

/// Held completions are there when the command has ended after which a driver expects none.
#[test]
fn held_completions_come_before_the_end_of_their_qp() {
    for ends in [true, false] {
        each_setup(|p| {
            order(p.a, "completion qp 1 nth 1 then hold 600s");
            p.qa.post(&p.wr(1, WrOpcode::RdmaWrite, 8));
            wait_until("the completion is held", || {
                let held = p.a.hca.cq_details(Some(p.cq_a.cqn))[0].held;
                held.is_some_and(|left| left > 500_000_000_000)
            });
            assert!(p.cq_a.poll().is_none());
            if ends {
                p.qa.destroy().unwrap();
            } else {
                p.qa.to(QpState::Reset);
            }
            assert_eq!(p.cq_a.poll().unwrap().wr_id, 1);
        });
    }
}

/// Held completions, and an event that is requested for them or held, come in the process that goes
/// on.
#[test]
fn an_upgrade_lets_completions_go() {
    for (arms, rule) in [(false, ""), (true, ""), (true, "event then hold 600s\n")] {
        on_both_paths(|path| {
            let world = World::new(2, path);
            let p = &Pair::new(&world);
            order(p.a, &format!("{rule}completion nth 1 then hold 600s"));
            if arms {
                p.cq_a.arm(ArmKind::Next);
            }
            p.qa.post(&p.wr(1, WrOpcode::RdmaWrite, 8));
            wait_until("the completion is held", || {
                let held = p.a.hca.cq_details(Some(p.cq_a.cqn))[0].held;
                held.is_some()
            });
            turn_ends(&p.qa);
            goes_on(p.a);
            p.cq_a.expect(1, WcStatus::Success);
            if arms && rule.is_empty() {
                p.a.sink.expect(EventKind::Completion, p.cq_a.cookie);
            }
            assert!(
                p.a.sink.is_empty(),
                "{arms} {rule} {:?}",
                p.a.sink.events.lock().unwrap()
            );
        });
    }
    // An event that is held goes too.
    each(|p| {
        order(p.a, "event then hold 600s");
        p.cq_a.arm(ArmKind::Next);
        p.qa.post(&p.wr(1, WrOpcode::RdmaWrite, 8));
        wait_until("the event is held", || counts(p.a) == [(1, 1)]);
        turn_ends(&p.qa);
        goes_on(p.a);
        p.a.sink.expect(EventKind::Completion, p.cq_a.cookie);
        p.cq_a.expect(1, WcStatus::Success);
    });
}

/// Waits for the end of the turn of a QP: the command needs its lock.
fn turn_ends(qp: &Qp<'_>) {
    qp.query();
}

/// Another process goes on with the device.
fn goes_on(vm: &Vm) {
    let state = vm.hca.save().unwrap();
    vm.hca.reset();
    vm.hca.restore(&state).unwrap();
    vm.hca.resume();
}

/// A completion that is lost never comes; those after it do.
#[test]
fn a_completion_is_lost() {
    each_setup(|p| {
        order(p.a, "completion nth 1 then drop");
        for id in [1, 2] {
            p.qa.post(&p.wr(id, WrOpcode::RdmaWrite, 8));
        }
        p.cq_a.expect(2, WcStatus::Success);
        assert!(p.cq_a.poll().is_none());
    });
}

/// A CQ fails as after an overflow, and its QPs with it.
#[test]
fn a_cq_fails() {
    each(|p| {
        order(p.a, "completion nth 2 then raise CQ_ERR");
        for id in [1, 2] {
            p.qa.post(&p.wr(id, WrOpcode::RdmaWrite, 8));
        }
        p.cq_a.expect(1, WcStatus::Success);
        let failed = EventKind::Async(AsyncEvent::CqErr);
        p.a.sink.expect(failed, p.cq_a.cookie);
        p.qa.wait_for(QpState::Err);
        assert!(p.cq_a.poll().is_none());
    });
}

/// Completion events that are late, lost, or sent twice.
#[test]
fn completion_events_are_late_lost_and_repeated() {
    on_both_paths(|path| {
        let world = World::new(2, path);
        let p = Pair::new(&world);
        let rules = "late: event nth 1 then hold 100ms\nlost: event nth 2 then drop\n\
                     twice: event nth 3 then repeat\nother: event cq 2 then drop\n";
        order(p.a, rules);
        let event = EventKind::Completion;
        let write = |id| {
            p.cq_a.arm(ArmKind::Next);
            p.qa.post(&p.wr(id, WrOpcode::RdmaWrite, 8));
            p.cq_a.expect(id, WcStatus::Success);
        };
        let began = Instant::now();
        write(1);
        p.a.sink.expect(event, p.cq_a.cookie);
        assert!(began.elapsed() >= Duration::from_millis(100));
        p.cq_a.event_received();
        write(2);
        wait_until("the second one is lost", || counts(p.a)[1].1 == 1);
        // The driver requests no other event before it has got this one. It gives up.
        p.cq_a.event_received();
        write(3);
        for _ in 0..2 {
            p.a.sink.expect(event, p.cq_a.cookie);
        }
        assert!(p.a.sink.is_empty());
        assert_eq!(counts(p.a), [(3, 1), (3, 1), (3, 1), (0, 0)]);
    });
}

/// Events that tell of no failure are told, and the work goes on.
#[test]
fn events_are_told_without_a_reason() {
    use AsyncEvent::*;
    for event in [CommEst, SqDrained, PkeyChange] {
        each(|p| {
            let name = event.c_name().to_str().unwrap();
            order(p.a, &format!("send any nth 2 then raise {name}"));
            for id in 1..4 {
                p.qa.post(&p.wr(id, WrOpcode::RdmaWrite, 8));
                p.cq_a.expect(id, WcStatus::Success);
            }
            let of_qp = matches!(event, CommEst | SqDrained);
            let cookie = if of_qp { p.qa.cookie } else { PORT.into() };
            p.a.sink.expect(EventKind::Async(event), cookie);
            assert!(p.a.sink.is_empty());
        });
    }
}

/// An SRQ fails with its QPs, or tells that it runs dry though it does not. A QP without an SRQ
/// does not count.
#[test]
fn an_srq_raises_events() {
    for (event, fails) in [
        (AsyncEvent::SrqLimitReached, false),
        (AsyncEvent::SrqErr, true),
    ] {
        on_both_paths(|path| {
            let world = World::new(2, path);
            let [a, b] = [0, 1].map(|at| &world.vms[at]);
            let (cq_a, cq_b) = (Cq::new(a, 64), Cq::new(b, 64));
            let srq = Srq::new(b, 8);
            let from = Qp::new(a, &cq_a, &cq_a, Options::default());
            let to = Qp::with_srq(b, &cq_b, srq.srqn, Options::default()).unwrap();
            connect(&from, &to);
            let name = event.c_name().to_str().unwrap();
            order(b, &format!("receive then raise {name}"));
            let mb = b.mr(4096);
            srq.post(7, &[sge(&mb, 0, 100)]);
            from.post(&Wr::new(1, WrOpcode::Send));
            let told = (EventKind::Async(event), srq.cookie);
            b.sink.expect(told.0, told.1);
            if fails {
                cq_a.expect(1, WcStatus::RemOpErr);
                to.wait_for(QpState::Err);
            } else {
                cq_a.expect(1, WcStatus::Success);
                cq_b.expect(7, WcStatus::Success);
            }
            assert_eq!(counts(b), [(1, 1)]);
        });
    }
    each(|p| {
        order(p.b, "receive then raise SRQ_ERR");
        p.qb.post_recv(1, &[sge(&p.mb, 0, 100)]);
        p.qa.post(&p.send(2, 8));
        p.cq_a.expect(2, WcStatus::Success);
        assert_eq!(counts(p.b), [(0, 0)]);
    });
}

/// The link goes down for a time, as both events tell. Messages of this time arrive afterwards.
#[test]
fn a_link_flaps() {
    for event in ["send any nth 2", "command CREATE_PD"] {
        let options = Options {
            timeout: 13,
            retry_cnt: 7,
            ..Options::default()
        };
        on_both_paths(|path| {
            let world = World::new(2, path);
            let p = &Pair::with(&world, options, options);
            order(p.a, &format!("{event} times 1 then flap 20ms"));
            p.qa.post(&p.wr(1, WrOpcode::RdmaWrite, 8));
            p.cq_a.expect(1, WcStatus::Success);
            if event.starts_with("command") {
                p.a.call(CmdCreatePd {}).unwrap();
            }
            p.qa.post(&p.wr(2, WrOpcode::RdmaWrite, 8));
            p.cq_a.expect(2, WcStatus::Success);
            for event in [AsyncEvent::PortErr, AsyncEvent::PortActive] {
                p.a.sink.expect(EventKind::Async(event), PORT.into());
            }
            assert!(p.a.sink.is_empty());
            // A reset lets the link go up.
            order(p.a, "x: command CREATE_PD then flap 600s");
            p.a.call(CmdCreatePd {}).unwrap();
            assert!(!p.a.hca.status().link);
            p.a.hca.reset();
            assert!(p.a.hca.status().link);
        });
    }
}

/// Packets that are damaged, doubled or late change nothing but the time.
#[test]
fn packets_are_damaged_doubled_and_delayed() {
    for effect in ["corrupt", "repeat", "delay 1", "delay 3"] {
        let world = World::new(2, PathPolicy::Wire);
        world.negotiate(&[Feature::Counters]);
        let options = Options {
            retry_cnt: 7,
            ..Options::default()
        };
        let p = Pair::with(&world, options, options);
        order(p.a, &format!("packet every 5 from 3 then {effect}"));
        let data = pattern(30_000, 1);
        p.a.write(p.ma.iova, &data);
        for id in 1..4 {
            p.qa.post(&p.wr(id, WrOpcode::RdmaWrite, 30_000));
            p.cq_a.expect(id, WcStatus::Success);
        }
        assert_eq!(p.b.read(p.mb.iova, 30_000), data, "{effect}");
        let (seen, applied) = counts(p.a)[0];
        assert_eq!((seen, applied), (90, 18), "{effect}");
        // Some arrive after the last completion.
        p.await_delivery();
        let counters = p.b.counters();
        match effect {
            "corrupt" => assert_eq!(counters.bad_packets, 18),
            "repeat" => assert!(counters.duplicates >= 18, "{}", counters.duplicates),
            _ => assert!(counters.out_of_sequence > 0),
        }
        p.responder_lives();
    }
}

/// A QP that falls silent in the middle of a message is never heard again, until its reset.
#[test]
fn a_qp_falls_silent() {
    let world = World::new(2, PathPolicy::Wire);
    let ours = Options {
        timeout: 14,
        retry_cnt: 2,
        ..Options::default()
    };
    let p = Pair::with(&world, ours, Options::default());
    order(p.a, "packet nth 3 then silence");
    p.fails(&p.wr(1, WrOpcode::RdmaWrite, 30_000), WcStatus::RetryExcErr);
    p.responder_lives();
    for qp in [&p.qa, &p.qb] {
        qp.to(QpState::Reset);
    }
    connect(&p.qa, &p.qb);
    p.qa.post(&p.wr(2, WrOpcode::RdmaWrite, 30_000));
    p.cq_a.expect(2, WcStatus::Success);
}

/// A port has less to offer if its scenario says so.
#[test]
fn a_weak_device_tells_its_limits() {
    let mut config = HcaConfig::new(mac(0));
    for (limit, most) in [
        (Limit::MaxSge, 2),
        (Limit::MaxInlineData, 0),
        (Limit::AtomicCap, 0),
        (Limit::MaxQpWr, 1 << 30),
        (Limit::MaxRdAtomic, 1),
    ] {
        config.lower(limit, most);
    }
    let limits = &config.limits;
    assert_eq!((limits.max_sge, limits.max_inline_data), (2, 0));
    assert_eq!(limits.max_qp_wr, 32_768);
    assert_eq!(limits.max_rd_atomic, 1);
    assert_eq!(config.atomic_cap, AtomicCap::None);
    let world = World::with_limits(1, PathPolicy::Direct, config.limits);
    let space = world.vms[0].hca.config_space();
    let base = Config::get(&space[..Config::SIZE]);
    assert_eq!((base.max_send_sge, base.max_qp_rd_atom), (2, 1));
    let own = OwnRingsConfig::get(&space[OWN_RINGS_CONFIG_OFFSET..][..OwnRingsConfig::SIZE]);
    assert_eq!(own.max_inline_data, 0);
}
