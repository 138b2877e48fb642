// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Processor time of threads of this process.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::time::{clock_gettime, ClockId};

/// How the device's threads are called: workers, and the switch.
const DEVICE: [&str; 2] = ["worker-", "vswitch"];

/// Processor time that the device's threads have consumed so far. It is exact for threads that
/// sleep.
pub fn device_time() -> Duration {
    let threads = fs::read_dir("/proc/self/task").expect("procfs");
    threads
        .flatten()
        .filter_map(|thread| consumed(&thread.path()))
        .sum()
}

/// Processor time that this thread has consumed so far.
pub fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("a time since the thread began")
}

/// Processor time of a sample of [`rate`].
const SPAN: Duration = Duration::from_millis(60);
/// Bytes between two looks at the clock, at least.
const STRIDE: u64 = 4 << 20;

/// MB/s of this thread's processor time at which `pass` treats `bytes`.
pub fn rate(bytes: u64, mut pass: impl FnMut()) -> f64 {
    // Memory comes with the first access.
    pass();
    let began = own_time();
    let mut done = 0;
    loop {
        for _ in 0..STRIDE.div_ceil(bytes) {
            pass();
            done += bytes;
        }
        let time = own_time() - began;
        if time >= SPAN {
            return done as f64 / time.as_secs_f64() / 1e6;
        }
    }
}

/// Processor time that a thread has consumed, if it is one of the device's. It may be gone.
fn consumed(thread: &Path) -> Option<Duration> {
    let name = fs::read_to_string(thread.join("comm")).ok()?;
    if !DEVICE.iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    // The first number is the time on a processor in nanoseconds.
    let schedstat = fs::read_to_string(thread.join("schedstat")).ok()?;
    let nanos = schedstat.split(' ').next()?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}
