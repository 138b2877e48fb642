// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Builds the fuzzing engine, runs targets in it, and replays inputs.

mod driver;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use clap::{Parser, Subcommand};
use fuzz::{Target, TARGETS};

use driver::coverage::coverage;
use driver::run::{add, merge, run};

/// Fuzzes the device, the provider and the driver's parsers.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the targets
    List,
    /// Run targets in the engine and print a table; fails if one has a finding
    Run {
        /// Seconds for each target
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// CPU seconds for all targets together, in place of --seconds
        #[arg(long)]
        total: Option<u64>,
        /// Targets that run at the same time; by default one for each CPU
        #[arg(long)]
        jobs: Option<usize>,
        /// Seed of the engine
        #[arg(long, default_value_t = 1)]
        seed: u32,
        /// Targets to run; all by default
        targets: Vec<String>,
    },
    /// Run a target on files, without instrumentation
    Replay {
        /// Name of the target
        target: String,
        /// Inputs to run the target on
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Print the line coverage of each parser by the corpora; fails if it is too low
    Coverage {
        /// List the lines that are not reached
        #[arg(long)]
        lines: bool,
    },
    /// Add files to the corpus of a target, each with the name of its file
    Add {
        /// Name of the target
        target: String,
        /// Inputs to add
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Add found inputs to the corpora of the tree: the fewest that reach the same code
    Merge {
        /// Targets to merge; all by default
        targets: Vec<String>,
    },
}

fn named(names: &[String]) -> Result<Vec<&'static Target>> {
    if names.is_empty() {
        return Ok(TARGETS.iter().collect());
    }
    let of_name = |name: &String| {
        fuzz::target(name).with_context(|| format!("{name}: no such target (see `fuzz list`)"))
    };
    names.iter().map(of_name).collect()
}

fn replay(target: &str, files: &[PathBuf]) -> Result<()> {
    let target = named(&[target.to_owned()])?[0];
    let mut failed = 0;
    for file in files {
        let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
        match target.check(&bytes) {
            Ok(()) => println!("{}: ok", file.display()),
            Err(_) => {
                println!("{}: FAILED", file.display());
                failed += 1;
            }
        }
    }
    if failed > 0 {
        bail!("{failed} of {} files failed", files.len());
    }
    Ok(())
}

fn main() -> Result<ExitCode> {
    match Args::parse().command {
        Command::List => {
            for target in TARGETS {
                println!("{:12} {}", target.name, target.about);
            }
        }
        Command::Run {
            seconds,
            total,
            jobs,
            seed,
            targets,
        } => {
            let targets = named(&targets)?;
            let processors = std::thread::available_parallelism().map_or(1, usize::from);
            let jobs = jobs.unwrap_or(processors).clamp(1, targets.len());
            let time = match total {
                Some(total) => Duration::from_secs(total) / targets.len() as u32,
                None => Duration::from_secs(seconds),
            };
            if !run(&targets, time, jobs, seed)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Replay { target, files } => replay(&target, &files)?,
        Command::Coverage { lines } => {
            if !coverage(lines)? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Add { target, files } => add(named(&[target])?[0], &files)?,
        Command::Merge { targets } => merge(&named(&targets)?)?,
    }
    Ok(ExitCode::SUCCESS)
}
