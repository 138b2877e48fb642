// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Every interleaving of what workers and those who give them work do without a common lock.
//!
//! The engine's `runtime/scheduler` is compiled here as it is, over the model checker's primitives.
#![cfg(loom)]
// The models need a part of each module.
#![allow(dead_code, unused_imports)]

#[path = "../../src/runtime/scheduler/mod.rs"]
mod scheduler;
mod sync;

mod parts;
mod workers;
