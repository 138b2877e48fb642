// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The kernel module with all changes, and selftests of which each run turns one change on.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use crate::areas;
use crate::compile::{self, Diagnostic};
use crate::draw::Mutant;
use crate::plant::Number;
use crate::run::Outcome;
use crate::tree::Tree;

/// The roots of the crates in which the changes are compiled.
const ROOTS: &[&str] = &[
    "drivers/infiniband/hw/virtio_rdma/main.rs",
    "rust/kernel/tests/main.rs",
    "samples/virtio_rng.rs",
];
/// Added to each root: the function that the changes call as `::mutant::is_on`.
const SWITCH: &str = "
#[allow(unused_extern_crates)]
extern crate self as mutant;

#[allow(dead_code, unreachable_pub, unsafe_code)]
pub fn is_on(number: usize) -> bool {
    extern \"C\" {
        fn virtio_rdma_mutant(number: usize) -> bool;
    }
    // SAFETY: The function can be called with any number, in any context.
    unsafe { virtio_rdma_mutant(number) }
}
";
/// A file that is linked into every module. It gets the number of the change that is on.
const LINKED: &str = "rust/kbuild/shims/shims.c";
/// The message of the change that is on when it is reached. It is a warning, since the guests'
/// consoles have no lesser messages.
const REACHED: &str = "mutants: reached";
/// Longest time without a line of a test that goes on.
const PATIENCE: Duration = Duration::from_secs(180);

fn linked(number: Option<Number>) -> String {
    // No change has the greatest number.
    let number = number.map_or_else(|| "-1".to_owned(), |number| number.to_string());
    format!(
        "
#include <linux/printk.h>

bool virtio_rdma_mutant(unsigned long number);

bool virtio_rdma_mutant(unsigned long number)
{{
	if (number != {number}UL)
		return false;
	printk_once(KERN_WARNING \"{REACHED}\\n\");
	return true;
}}
"
    )
}

/// The modules of a copy of the sources.
pub struct Module {
    pub tree: Tree,
    /// The text of the file that gets the number.
    shims: String,
}

impl Module {
    /// Brings a copy of the sources up to date, without changes.
    pub fn copy(top: &Path, list: &Path, root: PathBuf, mutants: &[Mutant]) -> Result<Self> {
        let shims = fs::read_to_string(top.join(LINKED))?;
        let tree = Tree::copy(top, list, root.clone(), mutants, |name| {
            let text = || fs::read_to_string(top.join(name));
            Ok(match name {
                // The number of the last run stays: it makes no difference to what compiles.
                LINKED => match fs::read_to_string(root.join(name)) {
                    Ok(last) if last.starts_with(&shims) => Some(last),
                    _ => Some(shims.clone() + &linked(None)),
                },
                _ if ROOTS.contains(&name) => Some(text()? + SWITCH),
                _ => None,
            })
        })?;
        Ok(Self { tree, shims })
    }

    /// Builds the modules, without the changes that do not compile.
    pub fn compile(&self, mutants: &[Mutant], dropped: &mut BTreeSet<Number>) -> Result<()> {
        compile::compile(&self.tree, mutants, dropped, |dropped| {
            self.attempt(mutants, dropped)
        })
    }

    /// One call of make. Returns nothing if it failed.
    fn attempt(&self, mutants: &[Mutant], dropped: &mut BTreeSet<Number>) -> Result<Option<()>> {
        let output = self.make().output().context("can't run make")?;
        if output.status.success() {
            return Ok(Some(()));
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let before = dropped.len();
        for line in text.lines() {
            if let Ok(message) = serde_json::from_str::<Diagnostic>(line) {
                message.blame(&self.tree, mutants, dropped)?;
            }
        }
        if dropped.len() == before {
            eprintln!("{text}");
        }
        Ok(None)
    }

    fn make(&self) -> Command {
        // The sysroot and the files of setup exist. The output is not mixed, so that each message
        // of the compiler is a line.
        let mut command = Command::new("make");
        command
            .args(["-k", "-Otarget", "-o", "setup", "enter=", "module"])
            .arg("KRUSTFLAGS=-Awarnings --error-format=json")
            .current_dir(&self.tree.root);
        command
    }

    /// Runs scripts in virtual machines whose modules have a change turned on.
    pub fn judge(&self, top: &Path, number: Number, vm: &str, scripts: &str) -> Result<Outcome> {
        fs::write(
            self.tree.root.join(LINKED),
            self.shims.clone() + &linked(Some(number)),
        )?;
        let built = self.make().output().context("can't run make")?;
        ensure!(
            built.status.success(),
            "make failed: {}",
            String::from_utf8_lossy(&built.stderr)
        );
        let scripts: Vec<_> = scripts.split_whitespace().collect();
        let failure = run(top, &self.tree.root.join("build"), vm, &scripts)?;
        let is_reached = (1..=2).any(|vm| {
            let console = top.join(format!("build/logs/latest/vm{vm}.console"));
            let text = fs::read(console).unwrap_or_default();
            String::from_utf8_lossy(&text).contains(REACHED)
        });
        match failure {
            Some(test) => {
                ensure!(is_reached, "{test} fails without reaching the change");
                Ok(Outcome::Noticed(test))
            }
            None if is_reached => Ok(Outcome::Missed),
            None => Ok(Outcome::Unreached),
        }
    }
}

/// Runs scripts in one set of virtual machines, until the first failure. Returns it. `vm` are
/// options of the machines.
fn run(top: &Path, modules: &Path, vm: &str, scripts: &[&str]) -> Result<Option<String>> {
    let mut child = Command::new(top.join("build/target/release/testbed"))
        .args(["run", "--rng", "--path", "direct", "--kernel"])
        .arg(modules)
        .args(vm.split_whitespace())
        .args(["--", "selftests/run"])
        .args(scripts)
        .current_dir(top)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("can't start the test bed")?;
    let out = child.stdout.take().context("standard output is piped")?;
    let (sender, lines) = mpsc::channel();
    // The thread ends with the test bed, which holds the other end of the pipe.
    std::thread::spawn(move || {
        for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
            let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
        }
    });
    let mut report = Report::default();
    let failure = loop {
        match lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                if let Some(test) = report.failure(&line) {
                    break Some(test);
                }
            }
            Err(RecvTimeoutError::Timeout) => break Some(format!("{}: hangs", report.script)),
            Err(RecvTimeoutError::Disconnected) => break None,
        }
    };
    if failure.is_some() {
        // The test bed ends its machines.
        Command::new("kill").arg(child.id().to_string()).status()?;
    }
    let status = child.wait()?;
    Ok(failure.or_else(|| (!status.success()).then(|| format!("the test bed: {status}"))))
}

/// A report of scripts in KTAP.
#[derive(Default)]
struct Report {
    /// The script of the last line.
    script: String,
}

impl Report {
    /// The script and the test, if the next line is a failure.
    fn failure(&mut self, line: &str) -> Option<String> {
        if let Some(name) = line.strip_prefix("# Subtest: ") {
            self.script = name.to_owned();
        }
        let test = line.trim_start().strip_prefix("not ok ")?;
        let test = test.split(" # ").next().unwrap_or_default();
        let name = test.split_once(' ').map_or(test, |(_, name)| name);
        Some(format!("{}: {name}", self.script))
    }
}

/// The scripts that judge a change: those of its area, or `others` for a survivor of these.
pub fn scripts(mutant: &Mutant, others: Option<&str>) -> String {
    match others {
        Some("") => areas::others(areas::of(&mutant.file).scripts),
        Some(scripts) => scripts.to_owned(),
        None => areas::of(&mutant.file).scripts.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_has_the_name_of_its_script() {
        let mut report = Report::default();
        let mut lines = [
            "KTAP version 1",
            "# Subtest: link",
            "    ok 1 link_active # 1 s",
            "ok 1 link",
            "# Subtest: kernel",
            "    # not ok in a remark",
            "    not ok 2 lies # 3 s",
        ]
        .iter();
        let failure = lines.find_map(|line| report.failure(line));
        assert_eq!(failure.as_deref(), Some("kernel: lies"));
    }
}
