// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Threads with received frames that do the work of a worker that sleeps.

use std::time::Duration;

use roce::headers::{Body, Part, SendPart};
use roce::work::With;
use testkit::engine::*;
use verbs::{Clock, Limits, PathPolicy, RuntimeConfig};
use virtio_rdma_abi::ib::{QpType, WcStatus};

use crate::services::numbered;

/// A pair of QPs of an unreliable connection. The second QP has two receives, and the only worker
/// sleeps.
fn receiving(world: &World) -> Pair<'_> {
    let options = Options::of(QpType::Uc);
    let pair = Pair::with(world, options, options);
    for id in 0..2 {
        pair.qb.post_recv(id, &[sge(&pair.mb, 0, 4096)]);
    }
    world.rest(&[0]);
    pair
}

fn stand_ins(world: &World) -> u64 {
    world.runtime.status().workers[0].stand_ins
}

/// A SEND of an unreliable connection, with this PSN.
fn send(pair: &Pair<'_>, psn: u32) -> Vec<u8> {
    let body = Body::Uc(Part::Send(SendPart::Only(With::Nothing)));
    let headers = numbered(body, 0xffff, pair.qb.qpn, psn);
    frame(pair.a, pair.b, &headers, b"four")
}

#[test]
fn a_thread_with_frames_does_the_work_of_a_worker_that_sleeps() {
    let world = World::stepped(1, PathPolicy::Wire);
    let pair = receiving(&world);
    let before = stand_ins(&world);
    world.net.inject_idle(pair.b.mac, &send(&pair, 0));
    pair.cq_b.expect(0, WcStatus::Success);
    assert_eq!(pair.b.read(pair.mb.iova, 4), b"four");
    assert_eq!(stand_ins(&world), before + 1);
    assert!(!world.runtime.step(0), "the worker was woken");
}

#[test]
fn a_worker_that_is_awake_does_its_work_itself() {
    let world = World::stepped(1, PathPolicy::Wire);
    let pair = receiving(&world);
    let before = stand_ins(&world);
    // This frame wakes the worker, which has yet to take a step.
    world.net.inject(pair.b.mac, &send(&pair, 0));
    world.net.inject_idle(pair.b.mac, &send(&pair, 1));
    assert!(pair.cq_b.poll().is_none());
    world.rest(&[0]);
    for id in 0..2 {
        pair.cq_b.expect(id, WcStatus::Success);
    }
    assert_eq!(stand_ins(&world), before);
}

/// After a stand-in that the host has delayed, the worker does the work for a while.
#[test]
fn a_slow_stand_in_is_the_last_one_for_a_while() {
    let config = RuntimeConfig {
        path: PathPolicy::Wire,
        // A turn may take as long as two looks at the clock.
        clock: Clock::slow(Duration::from_micros(100)),
        ..stepped::config(1)
    };
    let world = World::with_config(2, config, Limits::default());
    let pair = receiving(&world);
    let before = stand_ins(&world);
    world.net.inject_idle(pair.b.mac, &send(&pair, 0));
    pair.cq_b.expect(0, WcStatus::Success);
    assert_eq!(stand_ins(&world), before + 1);
    world.net.inject_idle(pair.b.mac, &send(&pair, 1));
    assert_eq!(pair.cq_b.poll(), None);
    world.rest(&[0]);
    pair.cq_b.expect(1, WcStatus::Success);
    assert_eq!(stand_ins(&world), before + 1);
    world.runtime.pass(Duration::from_secs(1));
    world.net.inject_idle(pair.b.mac, &send(&pair, 2));
    assert_eq!(stand_ins(&world), before + 2);
}
