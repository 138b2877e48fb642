// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The worker that the current thread is or stands in for.

use std::cell::Cell;

use crate::sync::thread_local;

thread_local! {
    /// 1 + the number of the worker that this thread is or stands in for, or 0 if there is none.
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

/// The number of the worker that the current thread is, from 0; `None` if it is not a worker.
#[inline]
pub(crate) fn current() -> Option<usize> {
    shard().checked_sub(1)
}

/// Index of the current thread's counters: 1 + the worker's number, or 0 for all other threads. So
/// no two workers of a runtime share an index.
#[inline]
pub fn shard() -> usize {
    WORKER.with(Cell::get)
}

/// Sets the current thread's worker number to `worker`.
pub(crate) fn become_worker(worker: usize) {
    WORKER.with(|current| current.set(worker + 1));
}

/// Executes `step` while the current thread has worker number `worker`.
pub(crate) fn as_worker<T>(worker: usize, step: impl FnOnce() -> T) -> T {
    let before = WORKER.with(|current| current.replace(worker + 1));
    let result = step();
    WORKER.with(|current| current.set(before));
    result
}
