// SPDX-License-Identifier: GPL-2.0

//! Completions with timeout, deferred and periodic work, and slots for objects that are called.

pub mod call_slot;
pub mod deferred;
pub mod periodic;
#[cfg(CONFIG_RUST_RDMA_KUNIT_TEST)]
pub(crate) mod tests;
pub mod timed_completion;
pub mod workqueue;
