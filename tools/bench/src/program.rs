// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Programs that are run to their end.

use std::process::Command;

use anyhow::{ensure, Context, Result};

/// Runs a program. Returns its standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output();
    let program = command.get_program().to_string_lossy();
    let output = output.with_context(|| format!("can't start {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let status = output.status;
    ensure!(status.success(), "{program}: {status}: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
