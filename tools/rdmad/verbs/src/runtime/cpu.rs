// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! CPU affinity of workers.

use std::io;

use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

/// Calls `start` while the current thread is bound to `cpu`. Threads that `start` creates inherit
/// this affinity, so their sandbox need not permit them to set it.
pub(super) fn with_affinity<T>(cpu: usize, start: impl FnOnce() -> T) -> io::Result<T> {
    let before = sched_getaffinity(None)?;
    let mut only = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    only.set(cpu);
    sched_setaffinity(None, &only)?;
    let result = start();
    sched_setaffinity(None, &before)?;
    Ok(result)
}
