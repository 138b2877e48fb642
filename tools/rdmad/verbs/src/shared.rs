// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Locks, atomics and references of the engine. With feature `counting`, each thread counts its
//! read-modify-writes of words that other threads write too.

use std::sync::Arc;

#[cfg(feature = "counting")]
mod counted;

#[cfg(feature = "counting")]
pub use self::counted::shared_writes;
#[cfg(feature = "counting")]
pub(crate) use self::counted::{AtomicU64, AtomicU8, Mutex, RwLock};
#[cfg(not(feature = "counting"))]
pub(crate) use parking_lot::{Mutex, RwLock};
#[cfg(not(feature = "counting"))]
pub(crate) use std::sync::atomic::{AtomicU64, AtomicU8};

pub(crate) use parking_lot::MutexGuard;

/// Another reference to `object`, which other threads refer to as well.
#[inline]
pub(crate) fn share<T>(object: &Arc<T>) -> Arc<T> {
    note_reference();
    object.clone()
}

/// Counts the beginning and the end of a reference to a shared object.
#[inline]
pub(crate) fn note_reference() {
    #[cfg(feature = "counting")]
    counted::note(2);
}
