// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Moderated CQs: events that are sent after a number of completions, or after some time.

use std::time::Duration;

use testkit::engine::*;
use verbs::{Clock, Limits, RuntimeConfig};
use virtio_rdma_abi::ctrl::CmdModifyCq;
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AsyncEvent, QpState, SendFlags, WcStatus, WrOpcode};
use virtio_rdma_abi::number::Cqn;
use virtio_rdma_abi::ring::ArmKind;

use crate::commands::{EINVAL, EOPNOTSUPP};
use crate::events::{complete_one, qp, COMPLETION};

/// Period of the moderated CQs in microseconds.
const PERIOD: u32 = 1000;
const MICROSECOND: Duration = Duration::from_micros(1);

/// A VM whose clock stands still.
fn world() -> World {
    let config = RuntimeConfig {
        clock: Clock::manual(),
        ..RuntimeConfig::default()
    };
    let world = World::with_config(1, config, Limits::default());
    world.negotiate(&[Feature::CqModeration, Feature::ResizeCq]);
    world
}

/// Lets `time` pass, and waits until the workers have no work left.
fn pass(world: &World, time: Duration) {
    world.runtime.advance(time);
}

fn moderate(cq: &Cq<'_>, count: u32, period: u32) -> Result<(), u8> {
    let cqn = cq.cqn;
    let answer = cq.vm.call(CmdModifyCq { cqn, count, period });
    answer.map(|_| ())
}

/// A CQ that sends its event after `count` completions or [`PERIOD`].
fn moderated(vm: &Vm, count: u32) -> Cq<'_> {
    let cq = Cq::new(vm, 16);
    moderate(&cq, count, PERIOD).unwrap();
    cq
}

// abi: R-1225
#[test]
fn an_event_is_sent_after_a_number_of_completions() {
    let world = world();
    let vm = &world.vms[0];
    let cq = moderated(vm, 4);
    let qp = qp(vm, &cq);
    for _ in 0..3 {
        cq.arm(ArmKind::Next);
        for _ in 0..3 {
            complete_one(&qp, &cq);
            pass(&world, Duration::ZERO);
            assert!(vm.sink.is_empty());
        }
        complete_one(&qp, &cq);
        vm.sink.expect(COMPLETION, cq.cookie);
        // Completions of a CQ that is not armed don't count.
        complete_one(&qp, &cq);
        cq.event_received();
    }
    pass(&world, Duration::from_secs(1));
    assert!(vm.sink.is_empty(), "one event each time it is armed");
}

// abi: R-1226
#[test]
fn an_event_is_sent_after_its_period() {
    let world = world();
    let vm = &world.vms[0];
    let cq = moderated(vm, 100);
    let qp = qp(vm, &cq);
    for _ in 0..3 {
        cq.arm(ArmKind::Next);
        pass(&world, Duration::from_secs(1));
        complete_one(&qp, &cq);
        pass(&world, (PERIOD - 1) * MICROSECOND);
        // Only the first completion determines the time.
        complete_one(&qp, &cq);
        assert!(vm.sink.is_empty());
        pass(&world, MICROSECOND);
        vm.sink.expect(COMPLETION, cq.cookie);
        cq.event_received();
    }
    pass(&world, Duration::from_secs(1));
    assert!(vm.sink.is_empty());
}

/// The period of an event that was sent early, for its number of completions, does not shorten that
/// of the next event.
// abi: R-1226
#[test]
fn each_event_has_a_period_of_its_own() {
    let world = world();
    let vm = &world.vms[0];
    let cq = moderated(vm, 2);
    let qp = qp(vm, &cq);
    cq.arm(ArmKind::Next);
    complete_one(&qp, &cq);
    complete_one(&qp, &cq);
    vm.sink.expect(COMPLETION, cq.cookie);
    cq.event_received();
    pass(&world, PERIOD / 2 * MICROSECOND);
    cq.arm(ArmKind::Next);
    complete_one(&qp, &cq);
    pass(&world, (PERIOD - 1) * MICROSECOND);
    assert!(vm.sink.is_empty());
    pass(&world, MICROSECOND);
    vm.sink.expect(COMPLETION, cq.cookie);
}

/// Completions that arrived before the CQ was armed.
// abi: R-1226
#[test]
fn an_event_that_is_due_by_the_doorbell_is_delayed() {
    let world = world();
    let vm = &world.vms[0];
    let cq = moderated(vm, 2);
    let qp = qp(vm, &cq);
    qp.post(&Wr::new(1, WrOpcode::RdmaWrite));
    pass(&world, Duration::ZERO);
    assert!(cq.arm_silently(ArmKind::Next));
    cq.ring_doorbell();
    pass(&world, (PERIOD - 1) * MICROSECOND);
    // A second doorbell is not the deadline.
    cq.ring_doorbell();
    pass(&world, Duration::ZERO);
    assert!(vm.sink.is_empty());
    pass(&world, MICROSECOND);
    vm.sink.expect(COMPLETION, cq.cookie);
}

// abi: R-1223, R-1227
#[test]
fn a_change_sends_the_delayed_event() {
    let world = world();
    let vm = &world.vms[0];
    let cq = moderated(vm, 100);
    let qp = qp(vm, &cq);
    for (count, period) in [(50, PERIOD), (0, 0), (1, PERIOD), (100, 0)] {
        moderate(&cq, 100, PERIOD).unwrap();
        cq.arm(ArmKind::Next);
        complete_one(&qp, &cq);
        pass(&world, Duration::ZERO);
        assert!(vm.sink.is_empty());
        moderate(&cq, count, period).unwrap();
        vm.sink.expect(COMPLETION, cq.cookie);
        cq.event_received();
        moderate(&cq, count, period).unwrap();
        assert!(vm.sink.is_empty(), "no event was delayed");
    }
    // The last values turned the moderation off.
    cq.arm(ArmKind::Next);
    complete_one(&qp, &cq);
    vm.sink.expect(COMPLETION, cq.cookie);
}

/// The deadline of an event that was sent early does not delay the next event.
// abi: R-1226
#[test]
fn a_shorter_period_applies_at_once() {
    let world = world();
    let vm = &world.vms[0];
    let cq = moderated(vm, 100);
    let qp = qp(vm, &cq);
    cq.arm(ArmKind::Next);
    complete_one(&qp, &cq);
    pass(&world, Duration::ZERO);
    moderate(&cq, 100, PERIOD / 10).unwrap();
    vm.sink.expect(COMPLETION, cq.cookie);
    cq.event_received();
    cq.arm(ArmKind::Next);
    complete_one(&qp, &cq);
    pass(&world, PERIOD / 10 * MICROSECOND);
    vm.sink.expect(COMPLETION, cq.cookie);
}

// abi: R-1228
#[test]
fn a_cq_that_overflows_sends_its_event() {
    let world = world();
    let vm = &world.vms[0];
    let cq = moderated(vm, 100);
    let qp = qp(vm, &cq);
    cq.arm(ArmKind::Next);
    for id in 0..17 {
        qp.post(&Wr::new(id, WrOpcode::RdmaWrite));
    }
    pass(&world, Duration::ZERO);
    vm.sink.expect(COMPLETION, cq.cookie);
    vm.sink
        .expect(EventKind::Async(AsyncEvent::CqErr), cq.cookie);
}

// abi: R-1229
#[test]
fn a_resize_keeps_the_delayed_event() {
    let world = world();
    let vm = &world.vms[0];
    let mut cq = moderated(vm, 100);
    let qp = qp(vm, &cq);
    cq.arm(ArmKind::Next);
    complete_one(&qp, &cq);
    assert_eq!(cq.resize(32, 32).unwrap(), []);
    pass(&world, (PERIOD - 1) * MICROSECOND);
    assert!(vm.sink.is_empty());
    pass(&world, MICROSECOND);
    vm.sink.expect(COMPLETION, cq.cookie);
}

// abi: R-124, R-1230
#[test]
fn a_destroyed_cq_sends_no_event() {
    let world = world();
    let vm = &world.vms[0];
    let delay = || {
        let cq = moderated(vm, 100);
        let qp = qp(vm, &cq);
        cq.arm(ArmKind::Next);
        complete_one(&qp, &cq);
        pass(&world, Duration::ZERO);
        (cq, qp)
    };
    let (cq, qp) = delay();
    qp.destroy().unwrap();
    cq.destroy().unwrap();
    // A CQ that may get the number of the former one.
    let _cq = Cq::new(vm, 16);
    pass(&world, Duration::from_secs(1));
    assert!(vm.sink.is_empty());
    let _objects = delay();
    vm.hca.reset();
    pass(&world, Duration::from_secs(1));
    assert!(vm.sink.is_empty());
    assert_eq!(vm.sink.failure(), None);
}

/// A CQ has at most one entry in the timers, however often its deadline changes, and none once it
/// is destroyed.
// abi: R-1227, R-1230
#[test]
fn a_deadline_goes_with_its_event_or_cq() {
    let world = world();
    let vm = &world.vms[0];
    let cq = moderated(vm, 100);
    let qp = qp(vm, &cq);
    for period in [PERIOD, PERIOD / 2, PERIOD / 10] {
        moderate(&cq, 100, period).unwrap();
        vm.sink.events.lock().unwrap().clear();
        cq.event_received();
        cq.arm(ArmKind::Next);
        complete_one(&qp, &cq);
        pass(&world, Duration::ZERO);
    }
    pass(&world, PERIOD / 10 * MICROSECOND);
    vm.sink.expect(COMPLETION, cq.cookie);
    assert_eq!(world.runtime.next_deadline(), None, "of former periods");
    cq.event_received();
    cq.arm(ArmKind::Next);
    complete_one(&qp, &cq);
    pass(&world, Duration::ZERO);
    qp.destroy().unwrap();
    assert!(world.runtime.next_deadline().is_some());
    cq.destroy().unwrap();
    assert_eq!(world.runtime.next_deadline(), None, "of a destroyed CQ");
}

/// Only a solicited completion starts the delay, and later completions count, solicited or not.
// abi: R-560, R-1225, R-1226
#[test]
fn a_solicited_event_is_delayed() {
    let world = world();
    let vm = &world.vms[0];
    let cq = moderated(vm, 3);
    let qp = qp(vm, &cq);
    let solicit = || {
        qp.post_recv(5, &[]);
        let flags = SendFlags::SOLICITED;
        qp.post(&Wr::new(6, WrOpcode::Send).flags(flags));
        cq.expect(5, WcStatus::Success);
        pass(&world, Duration::ZERO);
    };
    cq.arm(ArmKind::Solicited);
    for _ in 0..5 {
        complete_one(&qp, &cq);
    }
    pass(&world, Duration::from_secs(1));
    assert!(vm.sink.is_empty(), "nothing is solicited");
    solicit();
    complete_one(&qp, &cq);
    pass(&world, Duration::ZERO);
    assert!(vm.sink.is_empty());
    complete_one(&qp, &cq);
    vm.sink.expect(COMPLETION, cq.cookie);
    cq.event_received();
    cq.arm(ArmKind::Solicited);
    solicit();
    pass(&world, (PERIOD - 1) * MICROSECOND);
    assert!(vm.sink.is_empty());
    pass(&world, MICROSECOND);
    vm.sink.expect(COMPLETION, cq.cookie);
}

/// Flushed work requests are completions like others: none is delayed beyond the period.
// abi: R-1225, R-1226
#[test]
fn an_event_of_flushed_work_requests_is_sent() {
    let world = world();
    let vm = &world.vms[0];
    let cq = moderated(vm, 4);
    let qp = qp(vm, &cq);
    for id in 0..4 {
        qp.post_recv(id, &[]);
    }
    cq.arm(ArmKind::Solicited);
    qp.to(QpState::Err);
    vm.sink.expect(COMPLETION, cq.cookie);
    cq.event_received();
    for id in 0..4 {
        cq.expect(id, WcStatus::WrFlushErr);
    }
    cq.arm(ArmKind::Solicited);
    qp.post_recv(4, &[]);
    cq.expect(4, WcStatus::WrFlushErr);
    pass(&world, (PERIOD - 1) * MICROSECOND);
    assert!(vm.sink.is_empty());
    pass(&world, MICROSECOND);
    vm.sink.expect(COMPLETION, cq.cookie);
}

// abi: R-1220, R-1221, R-1222, R-1224
#[test]
fn values_beyond_the_limits_are_refused() {
    let world = world();
    let vm = &world.vms[0];
    let cq = Cq::new(vm, 16);
    let config = vm.hca.config_space();
    let word = |at: usize| u32::from_le_bytes(config[at..][..4].try_into().unwrap());
    let (max_count, max_period) = (word(192), word(196));
    assert_eq!(moderate(&cq, max_count, max_period), Ok(()));
    assert_eq!(moderate(&cq, max_count + 1, 1), Err(EINVAL));
    assert_eq!(moderate(&cq, 1, max_period + 1), Err(EINVAL));
    let request = CmdModifyCq {
        cqn: Cqn::new(1 << 20),
        count: 1,
        period: 1,
    };
    assert_eq!(vm.call(request), Err(EINVAL));
    vm.negotiate(&[]);
    assert_eq!(moderate(&cq, 1, 1), Err(EOPNOTSUPP));
}
