// SPDX-License-Identifier: GPL-2.0

//! Completions with timeout, and deferred and periodic work.

pub mod deferred;
pub mod periodic;
pub mod reclaim_queue;
#[cfg(abstractions_test)]
pub(crate) mod tests;
pub mod timed_completion;
