// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Virtqueues in place of own rings: their numbers, descriptors, interrupts and resets. Tests of
//! data, errors, events and QP types run in both modes.

mod hostile;
mod notify;
mod numbers;
mod reset;

use testkit::engine::*;
use verbs::PathPolicy;

/// Virtqueues on this data path.
fn on(path: PathPolicy) -> Setup {
    let mode = Mode::Virtqueues;
    Setup { path, mode }
}

/// Runs `test` with virtqueues on both data paths.
fn on_both_paths(test: impl Fn(Setup)) {
    testkit::engine::on_both_paths(|path| test(on(path)));
}
