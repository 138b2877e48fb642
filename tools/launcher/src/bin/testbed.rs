// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The test bed of a checkout. Runs in the sysroot: see tools/dev/enter.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    launcher::testbed()
}
