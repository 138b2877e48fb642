// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Locks, atomics and references that several threads use. With feature `counting`, each thread
//! counts its read-modify-writes of words that other threads may write too.

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

/// Takes another reference to `object`, whose reference count other threads change too.
#[inline]
pub(crate) fn share<T>(object: &Arc<T>) -> Arc<T> {
    note_reference();
    object.clone()
}

/// Counts the two read-modify-writes by which a reference to a shared object is taken and dropped.
#[inline]
pub(crate) fn note_reference() {
    #[cfg(feature = "counting")]
    counted::note(2);
}
