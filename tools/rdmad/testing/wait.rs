// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Waiting for the effect of another thread or process, of all tests of the daemon's crates.
//!
//! Another thread counts an act after the act can be seen. So a test awaits a counter; a counter
//! that is read once may be too low on a busy machine.
// Each test program uses a part of it.
#![allow(dead_code)]

use std::thread::sleep;
use std::time::Duration;
use std::time::Instant;

/// No step of a test takes so long, however busy the machine is: a longer wait is in vain.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `ready` returns something. A test that waits in vain fails with `what`.
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

/// Waits until `condition` holds.
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    wait(what, || condition().then_some(()));
}
