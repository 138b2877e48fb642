// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Kernel modules of this checkout.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{ensure, Context, Result};

/// The file of module `name` in the folder `folder` of the checkout's build directory. This program
/// is in the checkout's build/target/release.
pub fn built(name: &str, folder: &str) -> Result<PathBuf> {
    let program = env::current_exe()?;
    let build = program
        .ancestors()
        .nth(3)
        .context("not in a build folder")?;
    Ok(build.join(folder).join(name).with_extension("ko"))
}

/// Runs insmod or rmmod.
pub fn command(program: &str, arguments: &[String]) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("can't start {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {}", said.trim());
    Ok(())
}
