// SPDX-License-Identifier: GPL-2.0

//! Completions with timeout, and periodic work.

mod completion;
mod periodic;

pub use self::{
    completion::Completion,
    periodic::{
        Periodic,
        Tick, //
    },
};
