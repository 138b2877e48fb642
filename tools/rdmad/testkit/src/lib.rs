// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Helpers that the tests of the daemon's crates share.
//!
//! | Module | Provides |
//! |---|---|
//! | [`engine`] | simulated VMs that drive the engine, and networks between them |
//! | [`mod@wait`] | waits for the effect of another thread or process |
//! | [`mod@skipped`] | the note of a test that the host can't run |
//! | [`netdev`] | QEMU's end of a network interface |
//! | [`vfio`] | a vfio-user client, and a virtio driver that uses it |
//! | [`waiters`] | a monitor that makes the wake-ups of its descriptors expensive |
//!
//! Features choose modules that need further crates.
//!
//! The crate's dependents are tests, fuzz targets and benchmarks. The crates under test depend on
//! it in turn, as a development dependency.

#[cfg(feature = "engine")]
pub mod engine;
pub mod netdev;
pub mod skipped;
#[cfg(feature = "vfio")]
pub mod vfio;
pub mod wait;
pub mod waiters;

pub use netdev::Netdev;
pub use skipped::skipped;
pub use wait::{spin_until, wait, wait_until};
pub use waiters::Waiters;
