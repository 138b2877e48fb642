// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the daemons of a test bed use: processor time, as the kernel counts them.
//!
//! This program has a PID namespace of its own (tools/testbed/enter), so the daemons in /proc are those of its bed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The daemon's name as the kernel has it.
const DAEMON: &str = "virtio-rdmad";

/// The daemons that run.
fn daemons() -> Result<Vec<PathBuf>> {
    let found = fs::read_dir("/proc")
        .context("no /proc")?
        .flatten()
        .map(|entry| entry.path())
        .filter(|dir| fs::read_to_string(dir.join("comm")).is_ok_and(|name| name.trim() == DAEMON))
        .collect();
    Ok(found)
}

/// Processor time of all daemons so far, in seconds.
pub fn processor_seconds() -> Result<f64> {
    daemons()?.iter().map(|dir| seconds_of(dir)).sum()
}

/// The scheduler's account of each thread, in nanoseconds: utime and stime are in hundredths of a second.
fn seconds_of(process: &Path) -> Result<f64> {
    let mut nanoseconds = 0.0;
    for thread in fs::read_dir(process.join("task"))?.flatten() {
        // A thread may have ended since.
        let Ok(text) = fs::read_to_string(thread.path().join("schedstat")) else {
            continue;
        };
        nanoseconds += on_processor(&text).context("no time in /proc/PID/task/TID/schedstat")?;
    }
    Ok(nanoseconds / 1e9)
}

fn on_processor(schedstat: &str) -> Option<f64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read() {
        assert_eq!(on_processor("944746 3868529 54\n"), Some(944_746.0));
        assert_eq!(on_processor(""), None);
    }

    #[test]
    fn work_takes_time() {
        let own = PathBuf::from("/proc/self");
        let before = seconds_of(&own).unwrap();
        let mut sum = 0_u64;
        while seconds_of(&own).unwrap() <= before {
            sum = sum.wrapping_mul(31).wrapping_add(std::hint::black_box(7));
        }
        std::hint::black_box(sum);
    }
}
