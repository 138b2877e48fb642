// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Played drivers. Queues lie in memory of the driver.

// Not all that the harness has is of use here.
#[allow(dead_code, unused_imports)]
#[path = "../../../rdmad/verbs/tests/verbs/harness/mod.rs"]
pub mod harness;
#[allow(dead_code)]
#[path = "../stage.rs"]
pub mod stage;

/// The mode of the drivers.
pub const MODE: harness::Mode = harness::Mode::OwnRings;
