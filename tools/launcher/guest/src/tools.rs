// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! RDMA programs for guests whose root has none. The programs have a C library of their own, so the
//! loader of this library starts them.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use guest::setup::Setup;
use guest::{HOME, PROGRAM, SETUP, TOOLS};

use crate::spawn;

/// Makes a link to this program for each tool, and links the tools' providers.
pub fn install(setup: &Setup) -> Result<()> {
    let Some(tools) = &setup.tools else {
        return Ok(());
    };
    let programs = setup.path(tools).join("exe");
    let names =
        fs::read_dir(&programs).with_context(|| format!("can't read {}", programs.display()))?;
    fs::create_dir_all(TOOLS)?;
    for name in names.flatten() {
        symlink(PROGRAM, Path::new(TOOLS).join(name.file_name()))?;
    }
    // The tools' libibverbs searches for providers in this directory. The tools include the
    // provider of rxe.
    let tools = setup.path(tools);
    let providers = Path::new("/usr/lib/x86_64-linux-gnu/libibverbs");
    for from in [setup.path(&setup.provider), tools.join("provider")] {
        link_missing(&from, providers)?;
    }
    link_missing(&tools.join("drivers"), Path::new("/etc/libibverbs.d"))
}

/// Makes a link in `to` to each file of `from` that `to` lacks.
fn link_missing(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("can't make {}", to.display()))?;
    let entries = fs::read_dir(from).with_context(|| format!("can't read {}", from.display()))?;
    for entry in entries.flatten() {
        let link = to.join(entry.file_name());
        if fs::symlink_metadata(&link).is_err() {
            symlink(entry.path(), &link)
                .with_context(|| format!("can't link {}", link.display()))?;
        }
    }
    Ok(())
}

/// Executes the tool `name` in place of this program.
pub fn run(name: &str, words: &[String]) -> Result<u8> {
    let setup = fs::read_to_string(SETUP).with_context(|| format!("{HOME} is not set up"))?;
    let setup: Setup = serde_json::from_str(&setup)?;
    let tools = setup.tools.as_ref().context("no tools in this guest")?;
    let tools = setup.path(tools);
    let lib = tools.join("lib");
    let error = Command::new(lib.join("ld-linux-x86-64.so.2"))
        .arg("--library-path")
        .arg(&lib)
        .args(["--argv0", name])
        .arg(tools.join("exe").join(name))
        .args(words)
        .exec();
    let (status, message) = spawn::cannot_run(name, None, error);
    eprintln!("{message}");
    Ok(status)
}
