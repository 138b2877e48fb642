// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Draws a sample of the changes that cargo-mutants knows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::areas;

/// A position in a file: both numbers start at 1, columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    pub start: Position,
    pub end: Position,
}

/// Kinds of changes, as `cargo mutants --list --json` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Genre {
    /// The function returns a constant at once.
    FnValue,
    /// Another operator between the same operands.
    BinaryOperator,
    /// The operator is left out.
    UnaryOperator,
}

#[derive(Clone, Debug, Deserialize)]
struct Function {
    function_name: String,
}

/// One change of one place.
#[derive(Clone, Debug, Deserialize)]
pub struct Mutant {
    pub file: String,
    pub package: String,
    pub genre: Genre,
    pub replacement: String,
    pub span: Range,
    function: Option<Function>,
}

impl Mutant {
    /// The change, counted in a package.
    pub fn in_package(self, package: String) -> Self {
        Self { package, ..self }
    }

    /// The name of the change in lists: unique, and the same in every run.
    pub fn name(&self) -> String {
        let Position { line, column } = self.span.start;
        let function = self.function.as_ref().map_or("", |f| &f.function_name);
        let change = match self.genre {
            Genre::FnValue => format!("returns {}", self.replacement),
            Genre::BinaryOperator => format!("operator becomes {}", self.replacement),
            Genre::UnaryOperator => "operator is left out".to_owned(),
        };
        format!("{}:{line}:{column}: {function}: {change}", self.file)
    }
}

/// All changes of the sources of some packages below `top`.
pub fn all(cargo_mutants: &Path, top: &Path, globs: &[String]) -> Result<Vec<Mutant>> {
    let mut command = Command::new(cargo_mutants);
    command
        .args(["mutants", "--list", "--json"])
        .current_dir(top);
    for glob in globs {
        command.args(["--file", glob]);
    }
    let output = command.output().context("can't run cargo-mutants")?;
    anyhow::ensure!(
        output.status.success(),
        "cargo-mutants failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).context("cargo-mutants printed no list")
}

/// Files of the module that are not measured: tests, shims for other kernels, the device's side of
/// the rings, what only a sample has, and the root of the crate.
const UNMEASURED: &[&str] = &[
    "/tests",
    "/main.rs",
    "rust/kernel/dma_buf/pages.rs",
    "rust/kernel/peer_memory/",
    "rust/shared/ring/device_",
    "rust/kbuild/shims/",
];

/// Divides the changes of the module among its parts, which are reported as packages are.
pub fn of_module(mutants: Vec<Mutant>) -> Vec<Mutant> {
    // cargo-mutants lists a file again for each path to it.
    let mut names = BTreeSet::new();
    mutants
        .into_iter()
        .filter(|mutant| !UNMEASURED.iter().any(|part| mutant.file.contains(part)))
        .filter(|mutant| names.insert(mutant.name()))
        .map(|mutant| {
            let part = areas::of(&mutant.file).part;
            mutant.in_package(part.to_owned())
        })
        .collect()
}

/// Draws `count` changes, at least `least` of each package that has this many. A seed draws the
/// same changes from the same sources.
pub fn draw(mutants: Vec<Mutant>, seed: u64, count: usize, least: usize) -> Vec<Mutant> {
    let total = mutants.len();
    let mut packages = BTreeMap::<String, Vec<(u64, Mutant)>>::new();
    for mutant in mutants {
        let rank = mixed(seed ^ hash(&mutant.name()));
        packages
            .entry(mutant.package.clone())
            .or_default()
            .push((rank, mutant));
    }
    let mut drawn = Vec::new();
    for (_, mut ranked) in packages {
        ranked.sort_by_key(|&(rank, _)| rank);
        let share = (count * ranked.len()).div_ceil(total.max(1));
        ranked.truncate(share.max(least));
        drawn.extend(ranked.into_iter().map(|(_, mutant)| mutant));
    }
    drawn
}

/// FNV-1a, whose result does not depend on the version of the standard library.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The finalizer of SplitMix64.
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutants(package: &str, count: usize) -> Vec<Mutant> {
        (0..count)
            .map(|line| Mutant {
                file: format!("{package}/lib.rs"),
                package: package.to_owned(),
                genre: Genre::UnaryOperator,
                replacement: String::new(),
                span: Range {
                    start: Position { line, column: 1 },
                    end: Position { line, column: 2 },
                },
                function: None,
            })
            .collect()
    }

    fn names(seed: u64) -> Vec<String> {
        let all = [mutants("large", 900), mutants("small", 100)].concat();
        let drawn = draw(all, seed, 100, 40);
        drawn.iter().map(Mutant::name).collect()
    }

    #[test]
    fn packages_have_their_share_and_small_ones_the_least_number() {
        let drawn = names(1);
        assert_eq!(drawn.iter().filter(|n| n.starts_with("large")).count(), 90);
        assert_eq!(drawn.iter().filter(|n| n.starts_with("small")).count(), 40);
    }

    #[test]
    fn a_seed_draws_the_same_changes_again_and_another_seed_others() {
        assert_eq!(names(7), names(7));
        assert_ne!(names(7), names(8));
    }
}
