// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Locks, atomics and references that several threads use. With feature `counting`, each thread
//! counts its read-modify-writes of words that other threads may write too.

use std::sync::Arc;

#[cfg(feature = "counting")]
pub use self::counted::{shared_writes, AtomicU64, AtomicU8, Mutex, RwLock};
#[cfg(not(feature = "counting"))]
pub use parking_lot::{Mutex, RwLock};
#[cfg(not(feature = "counting"))]
pub use std::sync::atomic::{AtomicU64, AtomicU8};

pub use parking_lot::MutexGuard;

/// Takes another reference to `object`, whose reference count other threads change too.
#[inline]
pub fn share<T>(object: &Arc<T>) -> Arc<T> {
    note_reference();
    object.clone()
}

/// Counts the two read-modify-writes by which a reference to a shared object is taken and dropped.
#[inline]
pub fn note_reference() {
    #[cfg(feature = "counting")]
    counted::note(2);
}

/// Locks and atomics that count read-modify-writes.
#[cfg(feature = "counting")]
mod counted {
    use std::cell::Cell;
    use std::sync::atomic::{self, Ordering};

    use parking_lot::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

    thread_local! {
        static WRITES: Cell<u64> = const { Cell::new(0) };
    }

    /// Number of read-modify-writes of shared words by this thread so far. A lock counts as two,
    /// and a reference counts as two. Loads and stores are not counted.
    pub fn shared_writes() -> u64 {
        WRITES.with(Cell::get)
    }

    /// Counts `count` read-modify-writes.
    pub(super) fn note(count: u64) {
        WRITES.with(|writes| writes.set(writes.get() + count));
    }

    #[derive(Debug, Default)]
    pub struct Mutex<T>(parking_lot::Mutex<T>);

    impl<T> Mutex<T> {
        pub const fn new(value: T) -> Self {
            Self(parking_lot::Mutex::new(value))
        }

        pub fn lock(&self) -> MutexGuard<'_, T> {
            note(2);
            self.0.lock()
        }

        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            note(2);
            self.0.try_lock()
        }
    }

    /// A lock for one writer or many readers.
    #[derive(Debug, Default)]
    pub struct RwLock<T>(parking_lot::RwLock<T>);

    impl<T> RwLock<T> {
        pub const fn new(value: T) -> Self {
            Self(parking_lot::RwLock::new(value))
        }

        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            note(2);
            self.0.read()
        }

        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            note(2);
            self.0.write()
        }
    }

    macro_rules! counted {
        ($name:ident of $value:ty: $($operation:ident)*) => {
            /// The type of this name in `std::sync::atomic`, with read-modify-writes counted.
            #[derive(Debug, Default)]
            pub struct $name(atomic::$name);

            impl $name {
                pub const fn new(value: $value) -> Self {
                    Self(atomic::$name::new(value))
                }

                pub fn load(&self, order: Ordering) -> $value {
                    self.0.load(order)
                }

                $(
                    pub fn $operation(&self, value: $value, order: Ordering) -> $value {
                        note(1);
                        self.0.$operation(value, order)
                    }
                )*
            }
        };
    }

    counted!(AtomicU8 of u8: fetch_and fetch_or);
    counted!(AtomicU64 of u64: swap fetch_add fetch_sub fetch_and fetch_or);

    impl AtomicU64 {
        pub fn store(&self, value: u64, order: Ordering) {
            self.0.store(value, order);
        }
    }

    impl AtomicU8 {
        pub fn fetch_update(
            &self,
            set: Ordering,
            fetch: Ordering,
            next: impl FnMut(u8) -> Option<u8>,
        ) -> Result<u8, u8> {
            note(1);
            self.0.fetch_update(set, fetch, next)
        }
    }
}
