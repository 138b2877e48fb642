// SPDX-License-Identifier: GPL-2.0

//! Completions with timeout, and periodic work.

pub mod periodic;
#[cfg(abstractions_test)]
pub(crate) mod tests;
pub mod timed_completion;
