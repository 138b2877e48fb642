// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Threads, time and synchronisation, as `scheduler` uses them. `tests/loom` has the model
//! checker's counterparts.

use std::io;
use std::time::Instant;

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, AtomicU8, Ordering};
pub(super) use std::thread::JoinHandle;
#[cfg(feature = "testing")]
pub(super) use std::thread::{sleep, yield_now};
pub(super) use std::thread_local;

pub(super) use parking_lot::{Condvar, Mutex};
use sandbox::Kind;

/// Starts a worker's thread, which may do what workers may.
pub(super) fn spawn(
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    sandbox::spawn(Kind::Worker, name, work)
}

/// The time of the system.
#[inline]
pub(super) fn now() -> Instant {
    Instant::now()
}
