// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Processor time of this process's threads.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::time::{clock_gettime, ClockId};

/// Prefixes of the names of the device's threads: workers, and the switch.
const DEVICE: [&str; 2] = ["worker-", "vswitch"];

/// Processor time that the device's threads have consumed so far. The time of a sleeping thread is
/// exact.
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

/// Minimum processor time of a sample of [`rate`].
const SPAN: Duration = Duration::from_millis(60);
/// Minimum number of bytes between two readings of the clock.
const STRIDE: u64 = 4 << 20;

/// The rate at which `pass`, which processes `bytes` bytes per call, works: MB per second of this
/// thread's processor time.
pub fn rate(bytes: u64, mut pass: impl FnMut()) -> f64 {
    // The first pass is not measured: it allocates the memory.
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

/// Processor time that a thread has consumed. `None` if it is not a thread of the device, or has
/// ended.
fn consumed(thread: &Path) -> Option<Duration> {
    let name = fs::read_to_string(thread.join("comm")).ok()?;
    if !DEVICE.iter().any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    on_processor(thread)
}

/// Processor time of a thread, given the thread's directory in /proc. `None` if the thread has
/// ended, or if the kernel does not measure this time.
pub fn on_processor(thread: &Path) -> Option<Duration> {
    let schedstat = fs::read_to_string(thread.join("schedstat")).ok()?;
    // The first number is the time on a processor in nanoseconds.
    let nanos = schedstat.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_account_is_read() {
        let thread = tempfile::tempdir().unwrap();
        let account = thread.path().join("schedstat");
        fs::write(&account, "944746 3868529 54\n").unwrap();
        let time = Duration::from_nanos(944_746);
        assert_eq!(on_processor(thread.path()), Some(time));
        fs::write(&account, "").unwrap();
        assert_eq!(on_processor(thread.path()), None);
    }
}
