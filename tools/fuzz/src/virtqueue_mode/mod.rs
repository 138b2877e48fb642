// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Simulated drivers in virtqueue mode: queues are virtqueues.

// The targets use only a part of the harness.
#[allow(dead_code, unused_imports)]
#[path = "../../../rdmad/verbs/tests/verbs/harness/mod.rs"]
pub mod harness;
#[allow(dead_code)]
#[path = "../stage.rs"]
pub mod stage;

/// The mode of the drivers.
pub const MODE: harness::Mode = harness::Mode::Virtqueues;
