// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Threads, time and synchronization primitives for `scheduler`. `tests/loom` has the counterparts
//! for the model checker.

use std::io;
use std::time::Instant;

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::atomic::{fence, AtomicBool, AtomicU32, Ordering};
pub(super) use std::thread::JoinHandle;
#[cfg(feature = "testing")]
pub(super) use std::thread::{sleep, yield_now};
pub(super) use std::thread_local;

pub(super) use parking_lot::Condvar;
use sandbox::Kind;

pub(super) use crate::shared::{AtomicU64, AtomicU8, Mutex};

/// Starts a worker's thread, in the sandbox for workers.
pub(super) fn spawn(
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    sandbox::spawn(Kind::Worker, name, work)
}

/// The system's time.
#[inline]
pub(super) fn now() -> Instant {
    Instant::now()
}
