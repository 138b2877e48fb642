// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Workers that poll a queue: they request no doorbell while they poll, and miss no message.

use std::thread;
use std::time::Duration;

use testkit::engine::*;
use verbs::{Limits, PathPolicy, RuntimeConfig};

/// Time within which a worker that does not poll requests a doorbell.
const REST: Duration = Duration::from_millis(2);

/// Calls `check` on both data paths, with workers that poll an idle queue for `poll`.
fn polling(poll: Duration, check: impl Fn(&Pair<'_>)) {
    for path in [PathPolicy::Direct, PathPolicy::Wire] {
        let config = RuntimeConfig {
            path,
            poll,
            ..RuntimeConfig::default()
        };
        let world = World::with_config(2, config, Limits::default());
        check(&Pair::new(&world));
    }
}

// abi: R-525
#[test]
fn a_queue_that_is_watched_asks_for_no_doorbell() {
    polling(Duration::from_secs(60), |pair| {
        let mut id = 0;
        // Several attempts: a worker that was kept from its CPU does not poll for a while.
        wait("a message without a doorbell", || {
            id += 1;
            thread::sleep(REST);
            (!pair.write_and_wait(id)).then_some(())
        });
    });
}

/// A CPU that the current thread may use.
fn usable_cpu() -> usize {
    let usable = rustix::thread::sched_getaffinity(None).unwrap();
    let mut cpus = 0..rustix::thread::CpuSet::MAX_CPU;
    cpus.find(|cpu| usable.is_set(*cpu)).unwrap()
}

// abi: R-525
#[test]
fn a_worker_that_owns_a_cpu_asks_for_no_doorbell() {
    for path in [PathPolicy::Direct, PathPolicy::Wire] {
        let config = RuntimeConfig {
            path,
            dedicated: vec![usable_cpu()],
            ..RuntimeConfig::default()
        };
        let world = World::with_config(2, config, Limits::default());
        // There are more queues than a worker polls at a time: the other queues request doorbells.
        let pairs = Vec::from_iter((0..20).map(|_| Pair::new(&world)));
        let mut id = 0;
        for _ in 0..3 {
            for pair in &pairs {
                id += 1;
                pair.write_and_wait(id);
            }
        }
        // Several attempts: a worker that was kept from its CPU does not poll for a while.
        wait("a message without a doorbell", || {
            id += 1;
            thread::sleep(3 * REST);
            (!pairs[0].write_and_wait(id)).then_some(())
        });
    }
}

// abi: R-524
#[test]
fn it_asks_for_one_when_it_is_not_watched_any_more() {
    polling(REST, |pair| {
        let mut id = 0;
        for asked in [false, true, false, true] {
            wait("a message of the other kind", || {
                id += 1;
                if asked {
                    thread::sleep(3 * REST);
                }
                (pair.write_and_wait(id) == asked).then_some(())
            });
        }
    });
}
