// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Measures how many small changes of the code the tests notice. A sample of the changes that
//! cargo-mutants knows is compiled into one copy of the programs, and each run of the tests turns
//! one of them on. With --module, the tests are selftests in virtual machines, and the programs are
//! the kernel module. `tools/dev/mutants/run` calls it.

#![forbid(unsafe_code)]

mod areas;
mod compile;
mod draw;
mod module;
mod plant;
mod run;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result};
use clap::Parser;
use serde::{Deserialize, Serialize};

use draw::Mutant;
use module::Module;
use plant::Number;
use run::Outcome;
use tree::Tree;

/// Measures how many small changes of the code the tests notice.
#[derive(Parser)]
struct Arguments {
    /// The program cargo-mutants, which lists the changes.
    #[arg(long)]
    cargo_mutants: PathBuf,
    /// The file that lists the files of the checkout, one per line.
    #[arg(long)]
    list: PathBuf,
    /// The directory for the copy of the sources and the results.
    #[arg(long)]
    work: PathBuf,
    /// Change the kernel module; the directory is a package of its sources.
    #[arg(long, value_name = "PACKAGE")]
    module: Option<PathBuf>,
    /// Judge the changes again that no test of their area has noticed, by selftests of other areas:
    /// all, or those named.
    #[arg(
        long,
        value_name = "TESTS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        requires = "module"
    )]
    survivors: Option<String>,
    /// Additional options for the virtual machines, as of `testbed run`.
    #[arg(
        long,
        value_name = "OPTIONS",
        default_value = "",
        allow_hyphen_values = true
    )]
    vm: String,
    /// Draw other changes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many changes to draw; of the module, how many that compile. 400, of the module 30.
    #[arg(long)]
    count: Option<usize>,
    /// How many changes to draw of each package at least, 40; of each part of the module, 1.
    #[arg(long)]
    least: Option<usize>,
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

impl Shard {
    /// The changes to judge, with their numbers.
    fn of(self, mutants: &[Mutant]) -> impl Iterator<Item = (Number, &Mutant)> {
        let all = mutants.iter().enumerate();
        all.skip(self.first).step_by(self.step)
    }
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
    let mut results = Results::read(arguments.work.join(format!("seed-{}.json", arguments.seed)))?;
    let mutants = match &arguments.module {
        Some(package) => of_module(arguments, &top, package, &mut results)?,
        None => of_packages(arguments, &top, &mut results)?,
    };
    print!("{}", table(&mutants, &results.judged));
    Ok(())
}

/// Measures the packages of the workspace. Returns the changes.
fn of_packages(arguments: &Arguments, top: &Path, results: &mut Results) -> Result<Vec<Mutant>> {
    let all = draw::all(&arguments.cargo_mutants, top, &arguments.files)?;
    let total = all.len();
    let count = arguments.count.unwrap_or(400);
    let mutants = draw::draw(all, arguments.seed, count, arguments.least.unwrap_or(40));
    announce(arguments, mutants.len(), total);
    if arguments.report {
        return Ok(mutants);
    }
    let root = arguments.work.join("tree");
    let tree = Tree::workspace(top, &arguments.list, root, &mutants)?;
    judge_on_host(arguments, &tree, &mutants, arguments.shard, results)?;
    Ok(mutants)
}

/// Measures the kernel module. Returns the changes.
fn of_module(
    arguments: &Arguments,
    top: &Path,
    package: &Path,
    results: &mut Results,
) -> Result<Vec<Mutant>> {
    let all = draw::all(&arguments.cargo_mutants, package, &arguments.files)?;
    let all = draw::of_module(all);
    let (least, wanted) = (arguments.least.unwrap_or(1), arguments.count.unwrap_or(30));
    let mut count = wanted;
    let (mutants, module) = loop {
        let mutants = draw::draw(all.clone(), arguments.seed, count, least);
        let missing = |dropped: &BTreeSet<_>| {
            let compiled = mutants.len() - dropped.len();
            wanted.min(all.len()).saturating_sub(compiled)
        };
        // Earlier runs have found most of the changes that do not compile.
        let mut dropped = results.uncompiled(&mutants);
        if missing(&dropped) == 0 {
            let root = arguments.work.join("tree");
            let module = Module::copy(top, &arguments.list, root, &mutants)?;
            if arguments.report {
                break (mutants, module);
            }
            let known = dropped.clone();
            module.compile(&mutants, &mut dropped)?;
            for &number in dropped.difference(&known) {
                results.add(&mutants[number], Outcome::Uncompiled)?;
            }
            if missing(&dropped) == 0 {
                break (mutants, module);
            }
        }
        count += missing(&dropped);
    };
    announce(arguments, mutants.len(), all.len());
    if arguments.report {
        return Ok(mutants);
    }
    on_host(arguments, top, &mutants, results)?;
    let others = arguments.survivors.as_deref();
    for (number, mutant) in arguments.shard.of(&mutants) {
        let name = mutant.name();
        match (results.judged.get(&name), others) {
            (None, None) | (Some(Outcome::Missed | Outcome::Unreached), Some(_)) => {}
            _ => continue,
        }
        let scripts = module::scripts(mutant, others);
        if scripts.is_empty() {
            continue;
        }
        println!("{}/{}: {name}: {scripts}", number + 1, mutants.len());
        let outcome = match (module.judge(top, number, &arguments.vm, &scripts)?, others) {
            (Outcome::Noticed(test), Some(_)) => Outcome::Elsewhere(test),
            (Outcome::Unreached, Some(_)) => continue,
            (outcome, _) => outcome,
        };
        println!("    {outcome:?}");
        results.add(mutant, outcome)?;
    }
    Ok(mutants)
}

/// Judges the changes of crates whose tests run on the host.
fn on_host(
    arguments: &Arguments,
    top: &Path,
    mutants: &[Mutant],
    results: &mut Results,
) -> Result<()> {
    let mutants: Vec<_> = arguments
        .shard
        .of(mutants)
        .map(|(_, mutant)| mutant)
        .filter(|mutant| module::scripts(mutant, None).is_empty())
        .filter(|mutant| !results.judged.contains_key(&mutant.name()))
        .filter_map(|mutant| {
            let name = mutant.file.split('/').nth(1)?;
            let package = format!("virtio-rdma-{name}");
            Some(mutant.clone().in_package(package))
        })
        .collect();
    if mutants.is_empty() {
        return Ok(());
    }
    let files = arguments.list.with_file_name("workspace.files");
    let tree = Tree::workspace(top, &files, arguments.work.join("workspace"), &mutants)?;
    judge_on_host(
        arguments,
        &tree,
        &mutants,
        Shard { first: 0, step: 1 },
        results,
    )
}

/// Judges changes of packages by the tests of their packages.
fn judge_on_host(
    arguments: &Arguments,
    tree: &Tree,
    mutants: &[Mutant],
    shard: Shard,
    results: &mut Results,
) -> Result<()> {
    let mut dropped = BTreeSet::new();
    let programs = compile::compile(tree, mutants, &mut dropped, |dropped| {
        compile::tests(tree, mutants, dropped)
    })?;
    let programs = run::measure(&programs, &arguments.work)?;
    for (number, mutant) in shard.of(mutants) {
        if results.judged.contains_key(&mutant.name()) {
            continue;
        }
        let outcome = if dropped.contains(&number) {
            Outcome::Uncompiled
        } else {
            run::judge(number, mutant, &programs)?
        };
        println!("{}: {outcome:?}", mutant.name());
        results.add(mutant, outcome)?;
    }
    Ok(())
}

fn announce(arguments: &Arguments, drawn: usize, total: usize) {
    println!("seed {}: {drawn} of {total} changes", arguments.seed);
}

/// The judgements, which a file keeps, so that an interrupted run continues where it stopped.
struct Results {
    path: PathBuf,
    judged: BTreeMap<String, Outcome>,
}

impl Results {
    fn read(path: PathBuf) -> Result<Self> {
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            text => text?,
        };
        let judged = text
            .lines()
            .map(|line| {
                let result: Judged = serde_json::from_str(line)
                    .with_context(|| format!("{} has a bad line", path.display()))?;
                Ok((result.name, result.outcome))
            })
            .collect::<Result<_>>()?;
        Ok(Self { path, judged })
    }

    /// The changes that do not compile, as far as they are known.
    fn uncompiled(&self, mutants: &[Mutant]) -> BTreeSet<Number> {
        let outcome = |mutant: &Mutant| self.judged.get(&mutant.name());
        (0..mutants.len())
            .filter(|&number| outcome(&mutants[number]) == Some(&Outcome::Uncompiled))
            .collect()
    }

    /// A later judgement of a change replaces an earlier one.
    fn add(&mut self, mutant: &Mutant, outcome: Outcome) -> Result<()> {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.path)?;
        let judged = Judged {
            name: mutant.name(),
            outcome,
        };
        writeln!(file, "{}", serde_json::to_string(&judged)?)?;
        self.judged.insert(judged.name, judged.outcome);
        Ok(())
    }
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
            Some(Outcome::Elsewhere(test)) => {
                row.compiled += 1;
                row.noticed += 1;
                survivors.push(format!("noticed by {test} alone: {name}"));
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
