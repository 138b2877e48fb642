// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Checks all interleavings of workers with threads that make work ready for them, or stand in for
//! them. The only lock that such a thread shares with a worker is the worker's own, which the
//! worker's thread does not hold while it sleeps. The crate is compiled with the synchronization
//! primitives of the model checker loom.
#![cfg(loom)]

mod parts;
mod workers;
