// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Kernel modules of this checkout.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::program::output;

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
    output(Command::new(program).args(arguments)).map(drop)
}
