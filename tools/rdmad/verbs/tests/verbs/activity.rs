// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A worker that is held in a turn is told with its QP, and so is the work that waits for it.

use std::time::Duration;

use testkit::engine::*;
use verbs::{Doing, Flow, FlowKey, Limits, PathPolicy, RuntimeConfig, WorkerActivity};
use virtio_rdma_abi::ib::{WcStatus, WrOpcode};
use virtio_rdma_abi::ring::{ArmKind, Doorbell};

/// Error of the time for which a flow has waited.
const ERROR: Duration = Duration::from_millis(2);

#[test]
fn a_worker_that_is_held_is_told_with_its_qp_and_what_waits() {
    let config = RuntimeConfig {
        path: PathPolicy::Direct,
        workers: Some(1),
        ..RuntimeConfig::default()
    };
    let world = World::with_config(2, config, Limits::default());
    let (first, second) = (Pair::new(&world), Pair::new(&world));
    let activity = || -> WorkerActivity {
        let mut all = world.runtime.activities();
        assert_eq!(all.len(), 1);
        all.remove(0)
    };
    let sleeps = || (activity().doing == Doing::Sleeping).then_some(());
    wait("sleep of the worker", sleeps);

    // The turn of the first QP raises an event, and is held there.
    let held = first.a.sink.held.lock().unwrap();
    first.cq_a.arm(ArmKind::Next);
    first.qa.post(&first.wr(1, WrOpcode::RdmaWrite, 8));
    let turn = Doing::Turn(FlowKey {
        port: first.a.hca.port(),
        flow: Flow::of(first.qa.qpn),
    });
    wait("turn", || (activity().doing == turn).then_some(()));
    assert_eq!(activity().waiting, []);

    second.qa.ring_doorbell(Doorbell::Sq);
    second.qb.ring_doorbell(Doorbell::Sq);
    second.b.hca.frames_ready();
    let told = activity();
    assert_eq!(told.doing, turn);
    let waiting: Vec<_> = { told.waiting.iter() }
        .map(|waiting| (waiting.port, waiting.flows))
        .collect();
    assert_eq!(
        waiting,
        [(second.a.hca.port(), 1), (second.b.hca.port(), 2)]
    );
    assert_eq!(told.waiting[0].oldest, Flow::of(second.qa.qpn));
    assert!({ told.waiting.iter() }.all(|waiting| waiting.since <= told.since + ERROR));

    drop(held);
    first.cq_a.expect(1, WcStatus::Success);
    wait("sleep of the worker", sleeps);
    assert_eq!(activity().waiting, []);
}
