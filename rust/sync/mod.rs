// SPDX-License-Identifier: GPL-2.0

//! Synchronization primitives that the kernel crate does not have.

mod completion;

pub use self::completion::Completion;
