// SPDX-License-Identifier: GPL-2.0

//! Completions with timeout, and periodic work.

mod completion;
mod periodic;
#[cfg(abstractions_test)]
pub(crate) mod tests;

pub use self::{
    completion::Completion,
    periodic::{
        Periodic,
        Tick, //
    },
};
