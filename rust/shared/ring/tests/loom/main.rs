// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Explores all interleavings and weak-memory outcomes of the two sides of a ring, at the smallest
//! sizes that matter.
//!
//! Each model runs with positions that start at 0 and just below the wrap.
#![cfg(loom)]

mod arming;
mod common;
mod completing;
mod moving;
mod posting;
