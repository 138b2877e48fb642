// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Processor time and memory of the daemons of a test bed, from /proc.
//!
//! This program has its own PID namespace (tools/dev/enter), so /proc has only the daemons of
//! its bed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::device::on_processor;

/// The daemon's name in /proc/PID/comm.
const DAEMON: &str = "virtio-rdmad";

/// The directories in /proc of the running daemons.
fn daemons() -> Result<Vec<PathBuf>> {
    let found = fs::read_dir("/proc")
        .context("can't read /proc")?
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

/// Memory of all daemons without their guests' memory, in bytes.
pub fn own_memory() -> Result<f64> {
    daemons()?
        .iter()
        .map(|dir| {
            let status = fs::read_to_string(dir.join("status"))?;
            anonymous(&status).context("no RssAnon in /proc/PID/status")
        })
        .sum()
}

/// Processor time of a process in seconds: the sum of its threads' times in schedstat, which are in
/// nanoseconds. utime and stime are too coarse, with hundredths of a second.
fn seconds_of(process: &Path) -> Result<f64> {
    // Threads may end meanwhile.
    let threads = fs::read_dir(process.join("task"))?.flatten();
    threads
        .filter_map(|thread| on_processor(&thread.path()))
        .reduce(|one, other| one + other)
        .map(|time| time.as_secs_f64())
        .context("can't read schedstat: the kernel needs CONFIG_SCHED_INFO")
}

fn anonymous(status: &str) -> Option<f64> {
    let line = status.lines().find(|line| line.starts_with("RssAnon:"))?;
    let kibibytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read() {
        let status = "Name:\tx\nVmRSS:\t 900 kB\nRssAnon:\t     100 kB\n";
        assert_eq!(anonymous(status), Some(102_400.0));
        assert_eq!(anonymous("Name:\tx\n"), None);
    }

    #[test]
    fn what_runs_has_used_time() {
        let own = Path::new("/proc/self");
        if own.join("schedstat").exists() {
            assert!(seconds_of(own).unwrap() > 0.0);
        } else {
            assert!(seconds_of(own).is_err());
        }
    }
}
