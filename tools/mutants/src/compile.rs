// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Compiles the copy, without the changes that do not compile.

use crate::draw::Mutant;
use crate::plant::Number;
use crate::tree::Tree;
use anyhow::{bail, Context, Result};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A program of tests.
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

#[derive(Deserialize)]
struct Diagnostic {
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
}

/// Compiles the tests of all packages with changes. Returns them, and adds the changes that do not
/// compile to `dropped`.
pub fn compile(
    tree: &Tree,
    mutants: &[Mutant],
    dropped: &mut BTreeSet<Number>,
) -> Result<Vec<TestProgram>> {
    loop {
        tree.plant(mutants, dropped)?;
        let before = dropped.len();
        let programs = attempt(tree, mutants, dropped)?;
        if let Some(programs) = programs {
            return Ok(programs);
        }
        println!("{} changes do not compile", dropped.len());
        if dropped.len() == before {
            bail!("no change is to blame for the errors of the compiler");
        }
    }
}

/// One call of cargo. Returns nothing if it failed.
fn attempt(
    tree: &Tree,
    mutants: &[Mutant],
    dropped: &mut BTreeSet<Number>,
) -> Result<Option<Vec<TestProgram>>> {
    let packages: BTreeSet<_> = mutants.iter().map(|m| m.package.as_str()).collect();
    let mut command = Command::new("cargo");
    command
        .args(["test", "--no-run", "--keep-going", "--message-format=json"])
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
            Ok(Message::Diagnosed { message })
                if message.level == "error" && !message.spans.is_empty() =>
            {
                let mut is_explained = false;
                for place in message.places() {
                    let blamed = tree.blamed(&place.file_name, place.line_start, mutants)?;
                    if !blamed.is_empty() {
                        dropped.extend(blamed);
                        is_explained = true;
                        break;
                    }
                }
                if !is_explained {
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
