// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! CPUs that are reserved for workers.

use anyhow::{ensure, Context, Result};
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

/// Reserves and returns the last `count` of the CPUs that the current thread may use, and restricts
/// the thread to the other CPUs. Threads that it starts later inherit this restriction. Does
/// nothing if `count` is 0.
///
/// # Errors
///
/// Fails if no CPU would be left.
pub fn dedicate(count: usize) -> Result<Vec<usize>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let mut usable = sched_getaffinity(None).context("can't read the CPU affinity")?;
    let cpus: Vec<_> = { 0..CpuSet::MAX_CPU }
        .filter(|cpu| usable.is_set(*cpu))
        .collect();
    ensure!(
        count < cpus.len(),
        "--dedicate {count} needs {} CPUs, one of them for all else, and the daemon may use {}",
        count + 1,
        cpus.len()
    );
    let dedicated = cpus[cpus.len() - count..].to_vec();
    for cpu in &dedicated {
        usable.unset(*cpu);
    }
    sched_setaffinity(None, &usable).context("can't set the CPU affinity")?;
    Ok(dedicated)
}
