// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Waits for the effect of another thread or process.
//!
//! A thread may increment a counter after the counted effect is visible. So a test must wait until
//! a counter has its value: on a busy machine, a single read may return a lower one.

use std::hint::spin_loop;
use std::thread::sleep;
use std::time::Duration;
use std::time::Instant;

/// Time after which a wait fails. No step of a test takes this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `ready` returns `Some`. After [`PATIENCE`] the test fails with `what`.
pub fn wait<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(began.elapsed() < PATIENCE, "{what} does not happen");
        sleep(Duration::from_micros(20));
    }
}

/// Waits until `condition` holds without sleeping, so that the time of the return is exact.
pub fn spin_until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "{what} does not happen");
        spin_loop();
    }
}

/// Waits until `condition` holds.
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    wait(what, || condition().then_some(()));
}
