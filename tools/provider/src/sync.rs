// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Synchronization primitives of std. `tests/loom.rs` replaces them by loom's.

pub use std::hint::spin_loop;
pub use std::sync::atomic::AtomicPtr;
pub use std::sync::atomic::AtomicU8;
pub use std::sync::atomic::AtomicUsize;
pub use std::sync::atomic::Ordering;
pub use std::sync::Mutex;
pub use std::thread::yield_now;
