// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Doorbells that are served by the thread that rings them. No message is missed, and workers serve
//! streams of messages.

use std::thread;
use std::time::Duration;

use testkit::engine::*;
use verbs::{Limits, PathPolicy, RuntimeConfig};
use virtio_rdma_abi::ib::{WcStatus, WrOpcode};
use virtio_rdma_abi::ring::Doorbell;

/// Pause before a doorbell, in which workers go to sleep.
const REST: Duration = Duration::from_millis(2);
/// Polling time of workers, longer than a test: a polled queue requests no doorbell.
const POLL: Duration = Duration::from_secs(60);

fn at_once(path: PathPolicy, poll: Duration) -> World {
    let config = RuntimeConfig {
        path,
        poll,
        at_once: true,
        ..RuntimeConfig::default()
    };
    World::with_config(2, config, Limits::default())
}

#[test]
fn after_an_idle_gap_the_ringing_thread_serves() {
    const IN_A_ROW: u32 = 20;
    let world = at_once(PathPolicy::Direct, Duration::ZERO);
    let pair = Pair::new(&world);
    let (mut id, mut done) = (0, 0);
    // Not every message is served by the ringing thread: a worker that waits for a CPU has not gone
    // to sleep yet. If 20 messages in a row are complete right after their doorbell, the ringing
    // thread served all of them, because a worker is not that fast each time.
    wait(
        "messages that are executed when the doorbell was rung",
        || {
            id += 1;
            thread::sleep(REST);
            assert!(pair.write(id));
            if let Some(cqe) = pair.cq_a.poll() {
                assert_eq!(cqe.wr_id, id);
                done += 1;
            } else {
                pair.cq_a.expect(id, WcStatus::Success);
                done = 0;
            }
            (done == IN_A_ROW).then_some(())
        },
    );
}

#[test]
fn a_stream_is_watched_by_a_worker() {
    for path in [PathPolicy::Direct, PathPolicy::Wire] {
        let world = at_once(path, POLL);
        let pair = Pair::new(&world);
        let mut id = 0;
        wait("a message without a doorbell", || {
            let asked = (0..100).all(|_| {
                id += 1;
                pair.write_and_wait(id)
            });
            (!asked).then_some(())
        });
    }
}

/// A QP that had many work requests is served by a worker at its next doorbell too, even after a
/// pause.
#[test]
fn after_a_stream_a_worker_serves() {
    let world = at_once(PathPolicy::Direct, POLL);
    let pair = Pair::new(&world);
    // Several attempts: a worker that was kept from its CPU does not poll for a while.
    wait("a message without a doorbell", || {
        thread::sleep(REST);
        let many: Vec<_> = (0..20)
            .map(|id| pair.wr(id, WrOpcode::RdmaWrite, 8).bytes())
            .collect();
        pair.qa.post_all(&many);
        pair.qa.ring_doorbell(Doorbell::Sq);
        (0..20).for_each(|id| {
            pair.cq_a.expect(id, WcStatus::Success);
        });
        [20, 21]
            .map(|id| {
                thread::sleep(REST);
                pair.write_and_wait(id)
            })
            .contains(&false)
            .then_some(())
    });
}

/// Both sides send with varying pauses, while workers and both sending threads serve the same QPs.
// abi: R-524
#[test]
fn nothing_is_missed() {
    const MESSAGES: u64 = 3_000;
    for path in [PathPolicy::Direct, PathPolicy::Wire] {
        let world = at_once(path, POLL);
        let pairs = [[0, 1], [1, 0]].map(|ends| {
            let vms = ends.map(|vm: usize| &world.vms[vm]);
            Pair::between(vms, Options::default(), Options::default())
        });
        thread::scope(|scope| {
            for pair in pairs {
                scope.spawn(move || {
                    for id in 0..MESSAGES {
                        pair.write_and_wait(id);
                        // Pauses of up to half a millisecond, most of them far shorter.
                        thread::sleep(Duration::from_nanos(1 << (id % 20)));
                    }
                });
            }
        });
    }
}
