// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The worker that the current thread is.

use std::cell::Cell;

use super::sync::thread_local;

thread_local! {
    /// Its number, counted from 1, or 0 if it is none.
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

/// The number of the current thread, counted from 0, if it is a worker.
#[inline]
pub(super) fn current() -> Option<usize> {
    shard().checked_sub(1)
}

/// Where the current thread counts, so that no two workers of a runtime meet: the number of the
/// worker counted from 1, or 0 for all other threads.
#[inline]
pub(crate) fn shard() -> usize {
    WORKER.with(Cell::get)
}

/// The current thread is `worker` from now on.
pub(super) fn become_worker(worker: usize) {
    WORKER.with(|current| current.set(worker + 1));
}

/// Does `step` as `worker`.
pub(super) fn as_worker<T>(worker: usize, step: impl FnOnce() -> T) -> T {
    let before = WORKER.with(|current| current.replace(worker + 1));
    let result = step();
    WORKER.with(|current| current.set(before));
    result
}
