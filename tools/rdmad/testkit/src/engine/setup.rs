// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Setups of a test: the data path between QPs, and the location of queues.

use verbs::PathPolicy;

/// Both data paths: direct copies between VMs, and packets.
pub const PATHS: [PathPolicy; 2] = [PathPolicy::Direct, PathPolicy::Wire];

/// Location of the queues of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Rings in memory that the driver allocates.
    OwnRings,
    /// Virtqueues of the transport, as in the RFC.
    Virtqueues,
}

/// Both locations of queues.
pub const MODES: [Mode; 2] = [Mode::OwnRings, Mode::Virtqueues];

/// The data path between QPs, and the location of queues.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub path: PathPolicy,
    pub mode: Mode,
}

/// A data path with own rings.
impl From<PathPolicy> for Setup {
    fn from(path: PathPolicy) -> Self {
        let mode = Mode::OwnRings;
        Self { path, mode }
    }
}

/// Runs `test` on this data path, with own rings and in virtqueue mode.
pub fn in_both_modes(path: PathPolicy, test: impl Fn(Setup)) {
    for mode in MODES {
        let setup = Setup { path, mode };
        eprintln!("{setup:?}");
        test(setup);
    }
}

/// Runs `test` on both data paths, with own rings and in virtqueue mode.
pub fn in_all_setups(test: impl Fn(Setup)) {
    for path in PATHS {
        in_both_modes(path, &test);
    }
}

/// Runs `test` on both data paths, with own rings.
pub fn on_both_paths(test: impl Fn(PathPolicy)) {
    for path in PATHS {
        eprintln!("path: {path:?}");
        test(path);
    }
}
