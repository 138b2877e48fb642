// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The threads, time, locks and atomics of the scheduler, or those of the model checker loom.

#[cfg(loom)]
mod model;

#[cfg(loom)]
pub use self::model::*;
#[cfg(not(loom))]
pub(crate) use self::system::*;

#[cfg(not(loom))]
mod system {
    use std::io;
    use std::time::Instant;

    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic::{fence, AtomicBool, AtomicU32, Ordering};
    pub(crate) use std::thread::JoinHandle;
    #[cfg(feature = "testing")]
    pub(crate) use std::thread::{sleep, yield_now};
    pub(crate) use std::thread_local;

    pub(crate) use parking_lot::Condvar;
    use sandbox::Kind;

    pub(crate) use crate::shared::{AtomicU64, AtomicU8, Mutex};

    /// Starts a worker's thread, in the sandbox for workers.
    pub(crate) fn spawn(
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        sandbox::spawn(Kind::Worker, name, work)
    }

    /// The system's time.
    #[inline]
    pub(crate) fn now() -> Instant {
        Instant::now()
    }
}
