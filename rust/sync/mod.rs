// SPDX-License-Identifier: GPL-2.0

//! What the kernel crate does not have for waiting and for doing things later.

mod completion;
mod periodic;

pub use self::{
    completion::Completion,
    periodic::{
        Periodic,
        Tick, //
    },
};
