// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Checks all interleavings of workers with threads that make work ready for them, or stand in for
//! them. The only lock that such a thread shares with a worker is the worker's own, which the
//! worker's thread does not hold while it sleeps.
//!
//! The engine's module `runtime/scheduler` is compiled here unchanged, with the synchronization
//! primitives of the model checker loom.
#![cfg(loom)]
// The models use only a part of each module.
#![allow(dead_code, unused_imports)]

#[path = "../../src/runtime/scheduler/mod.rs"]
mod scheduler;
mod sync;

mod parts;
mod workers;
