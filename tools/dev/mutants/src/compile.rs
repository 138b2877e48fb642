// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Compiles the copy, without the changes that do not compile.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{bail, Context, Result};
use serde::Deserialize;

use crate::draw::Mutant;
use crate::plant::Number;
use crate::tree::Tree;

pub struct TestProgram {
    pub path: PathBuf,
    /// The directory of its package, in which cargo would start it.
    pub directory: PathBuf,
}

#[derive(Deserialize)]
#[serde(tag = "reason")]
enum Message {
    #[serde(rename = "compiler-message")]
    Diagnosed { message: Diagnostic },
    #[serde(rename = "compiler-artifact")]
    Built {
        executable: Option<PathBuf>,
        manifest_path: PathBuf,
        profile: Profile,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// A message of the compiler.
#[derive(Deserialize)]
pub struct Diagnostic {
    level: String,
    rendered: Option<String>,
    spans: Vec<Place>,
    #[serde(default)]
    children: Vec<Diagnostic>,
}

#[derive(Deserialize)]
struct Place {
    file_name: String,
    line_start: usize,
    is_primary: bool,
}

impl Diagnostic {
    /// Places of the error, those first that it is about.
    fn places(&self) -> Vec<&Place> {
        let (mut places, others): (Vec<_>, Vec<_>) =
            self.spans.iter().partition(|place| place.is_primary);
        places.extend(others);
        places.extend(self.children.iter().flat_map(Diagnostic::places));
        places
    }

    /// Adds the changes that an error comes from to `dropped`. Returns whether the message is
    /// handled.
    pub fn blame(
        &self,
        tree: &Tree,
        mutants: &[Mutant],
        dropped: &mut BTreeSet<Number>,
    ) -> Result<bool> {
        if self.level != "error" || self.spans.is_empty() {
            return Ok(true);
        }
        for place in self.places() {
            let blamed = tree.blamed(&place.file_name, place.line_start, mutants)?;
            if !blamed.is_empty() {
                dropped.extend(blamed);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Compiles the copy and returns what was built. Adds the changes that do not compile to `dropped`:
/// each failed attempt finds some.
pub fn compile<T>(
    tree: &Tree,
    mutants: &[Mutant],
    dropped: &mut BTreeSet<Number>,
    attempt: impl Fn(&mut BTreeSet<Number>) -> Result<Option<T>>,
) -> Result<T> {
    loop {
        tree.plant(mutants, dropped)?;
        let before = dropped.len();
        if let Some(built) = attempt(dropped)? {
            return Ok(built);
        }
        println!("{} changes do not compile", dropped.len());
        if dropped.len() == before {
            bail!("no change is to blame for the errors of the compiler");
        }
    }
}

/// Builds the tests of all packages with changes by one call of cargo. Returns nothing if that
/// failed.
pub fn tests(
    tree: &Tree,
    mutants: &[Mutant],
    dropped: &mut BTreeSet<Number>,
) -> Result<Option<Vec<TestProgram>>> {
    let packages: BTreeSet<_> = mutants.iter().map(|m| m.package.as_str()).collect();
    let mut command = Command::new("cargo");
    command
        .args(["build", "--tests", "--keep-going", "--message-format=json"])
        .current_dir(&tree.root)
        .stderr(Stdio::null());
    for package in packages {
        command.args(["-p", package]);
    }
    let output = command.output().context("can't run cargo")?;
    let mut programs = Vec::new();
    let mut unexplained = None;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        match serde_json::from_str(line) {
            Ok(Message::Built {
                executable: Some(path),
                manifest_path,
                profile: Profile { test: true },
            }) => programs.push(TestProgram {
                path,
                directory: manifest_path
                    .parent()
                    .context("a manifest is in no directory")?
                    .to_owned(),
            }),
            Ok(Message::Diagnosed { message }) => {
                if !message.blame(tree, mutants, dropped)? {
                    unexplained = message.rendered;
                }
            }
            _ => {}
        }
    }
    if output.status.success() {
        return Ok(Some(programs));
    }
    if let Some(error) = unexplained {
        eprintln!("{error}");
    }
    Ok(None)
}
