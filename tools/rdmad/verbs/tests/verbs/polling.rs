// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Workers that go on looking at a queue: no doorbell is asked for meanwhile, and no message is
//! missed.

use std::thread;
use std::time::Duration;

use verbs::{Limits, PathPolicy, RuntimeConfig};

use crate::harness::*;

/// Time in which a worker that watches nothing has asked for a doorbell.
const REST: Duration = Duration::from_millis(2);

/// Calls `check` on either path with workers that poll for so long.
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
        // A worker that was kept from its processor watches nothing for a while.
        wait("a message without a doorbell", || {
            id += 1;
            thread::sleep(REST);
            (!pair.write_and_wait(id)).then_some(())
        });
    });
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
