// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Measures how many small changes of the code the tests notice. A sample of the changes that
//! cargo-mutants knows is compiled into one copy of the programs, and each run of the tests turns
//! one of them on. `tools/testbed/mutants` calls it.

#![forbid(unsafe_code)]

mod compile;
mod draw;
mod plant;
mod run;
mod tree;

use anyhow::{Context, Result};
use clap::Parser;
use draw::Mutant;
use run::Outcome;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use tree::Tree;

/// Measures how many small changes of the code the tests notice.
#[derive(Parser)]
struct Arguments {
    /// The program cargo-mutants, which lists the changes.
    #[arg(long)]
    cargo_mutants: PathBuf,
    /// The file that lists the files of the checkout, one a line.
    #[arg(long)]
    list: PathBuf,
    /// The directory for the copy of the sources and the results.
    #[arg(long)]
    work: PathBuf,
    /// Draw other changes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many changes to draw.
    #[arg(long, default_value_t = 400)]
    count: usize,
    /// How many changes to draw of each package at least.
    #[arg(long, default_value_t = 40)]
    least: usize,
    /// Judge each N-th change from the K-th on, which counts from 0.
    #[arg(long, value_name = "K/N", default_value = "0/1")]
    shard: Shard,
    /// Print the results so far.
    #[arg(long)]
    report: bool,
    /// The files to change.
    #[arg(required = true)]
    files: Vec<String>,
}

#[derive(Clone, Copy)]
struct Shard {
    first: usize,
    step: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text
            .split_once('/')
            .and_then(|(first, step)| Some((first.parse().ok()?, step.parse().ok()?)));
        match numbers {
            Some((first, step)) if first < step => Ok(Self { first, step }),
            _ => Err("is not K/N with K below N".to_owned()),
        }
    }
}

/// A line of the file of results.
#[derive(Serialize, Deserialize)]
struct Judged {
    name: String,
    outcome: Outcome,
}

fn main() -> ExitCode {
    match measure(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mutants: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<()> {
    let top = std::env::current_dir()?;
    fs::create_dir_all(&arguments.work)?;
    let all = draw::all(&arguments.cargo_mutants, &top, &arguments.files)?;
    let count = all.len();
    let mutants = draw::draw(all, arguments.seed, arguments.count, arguments.least);
    println!(
        "seed {}: {} of {count} changes",
        arguments.seed,
        mutants.len()
    );

    let results = arguments.work.join(format!("seed-{}.json", arguments.seed));
    let mut judged = read(&results)?;
    if !arguments.report {
        let root = arguments.work.join("tree");
        let tree = Tree::copy(&top, &arguments.list, root, &mutants)?;
        let mut dropped = BTreeSet::new();
        let programs = compile::compile(&tree, &mutants, &mut dropped)?;
        let programs = run::measure(&programs, &arguments.work)?;
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&results)?;
        let Shard { first, step } = arguments.shard;
        for (number, mutant) in mutants.iter().enumerate().skip(first).step_by(step) {
            let name = mutant.name();
            if judged.contains_key(&name) {
                continue;
            }
            let outcome = if dropped.contains(&number) {
                Outcome::Uncompiled
            } else {
                run::judge(number, mutant, &programs)?
            };
            println!("{name}: {outcome:?}");
            let line = Judged {
                name: name.clone(),
                outcome: outcome.clone(),
            };
            writeln!(file, "{}", serde_json::to_string(&line)?)?;
            judged.insert(name, outcome);
        }
    }
    print!("{}", table(&mutants, &judged));
    Ok(())
}

/// The changes that were judged before, so that an interrupted run goes on where it stopped.
fn read(results: &PathBuf) -> Result<BTreeMap<String, Outcome>> {
    let text = match fs::read_to_string(results) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        text => text?,
    };
    text.lines()
        .map(|line| {
            let result: Judged = serde_json::from_str(line)
                .with_context(|| format!("{} has a bad line", results.display()))?;
            Ok((result.name, result.outcome))
        })
        .collect()
}

/// A line for each package, and a line for each change that no test noticed.
fn table(mutants: &[Mutant], judged: &BTreeMap<String, Outcome>) -> String {
    #[derive(Default)]
    struct Row {
        drawn: usize,
        judged: usize,
        compiled: usize,
        noticed: usize,
    }
    let mut rows = BTreeMap::<&str, Row>::new();
    let mut survivors = Vec::new();
    for mutant in mutants {
        let row = rows.entry(&mutant.package).or_default();
        row.drawn += 1;
        let name = mutant.name();
        let outcome = judged.get(&name);
        row.judged += usize::from(outcome.is_some());
        match outcome {
            Some(Outcome::Noticed(_) | Outcome::Hung(_)) => {
                row.compiled += 1;
                row.noticed += 1;
            }
            Some(Outcome::Missed) => {
                row.compiled += 1;
                survivors.push(format!("missed: {name}"));
            }
            Some(Outcome::Unreached) => {
                row.compiled += 1;
                survivors.push(format!("no test reaches: {name}"));
            }
            Some(Outcome::Uncompiled) | None => {}
        }
    }
    let mut table = String::from("| Package | Drawn | Judged | Compile | Noticed |\n");
    table.push_str("|---|---|---|---|---|\n");
    for (package, row) in rows {
        let Row {
            drawn,
            judged,
            compiled,
            noticed,
        } = row;
        table.push_str(&format!(
            "| `{package}` | {drawn} | {judged} | {compiled} | {noticed} |\n"
        ));
    }
    for survivor in survivors {
        table.push_str(&survivor);
        table.push('\n');
    }
    table
}
