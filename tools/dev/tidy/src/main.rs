// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Checks that keep the sources readable: prose, imports and references to files. Counts lines.

#![forbid(unsafe_code)]

mod comments;
mod commits;
mod cycles;
mod imports;
mod loc;
mod paths;
mod prose;
mod same;
mod sources;
mod tokens;
mod wrap;

use anyhow::{bail, Result};
use clap::{Parser, Subcommand};
use sources::Tree;
use std::path::PathBuf;
use std::process::ExitCode;

/// Checks that keep the sources readable. `tools/dev/tidy/run` calls it with the list of files.
#[derive(Parser)]
struct Arguments {
    /// The file that lists the files of the checkout, one a line.
    #[arg(long, default_value = "build/tidy/files")]
    list: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List breaches of style that a program can detect.
    Prose {
        /// Files or folders to check instead of all.
        files: Vec<PathBuf>,
    },
    /// Check the form of commit messages.
    Commits {
        /// The file with the commits: each one's hash, a space, its message, and a null character.
        log: PathBuf,
    },
    /// Wrap paragraphs of comments and documents that have a line of more than 100 columns.
    Wrap {
        /// Files or folders to wrap instead of all.
        files: Vec<PathBuf>,
    },
    /// Check that a change affects only comments and documents.
    Same {
        /// The directory with all files before the change.
        old: PathBuf,
        /// The directory with all files after the change, instead of the checkout.
        new: Option<PathBuf>,
    },
    /// Check that the files and functions in documents and comments exist.
    Paths,
    /// Check that imports have no cycles, except those in the allow list.
    Cycles,
    /// Count lines by part.
    Loc,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(complaints) => {
            for complaint in &complaints {
                println!("{complaint}");
            }
            if complaints.is_empty() {
                ExitCode::SUCCESS
            } else {
                println!("{} complaints", complaints.len());
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("tidy: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: Arguments) -> Result<Vec<String>> {
    let tree = Tree::open(std::env::current_dir()?, &arguments.list)?;
    match arguments.command {
        Command::Prose { files } => prose::check(&tree, &files),
        Command::Commits { log } => Ok(commits::check(&std::fs::read_to_string(log)?)),
        Command::Wrap { files } => {
            for file in wrap::wrap(&tree, &files)? {
                println!("{file}: wrapped");
            }
            Ok(Vec::new())
        }
        Command::Same { old, new: None } => same::check(&tree, &Tree::walk(old)?),
        Command::Same {
            old,
            new: Some(new),
        } => same::check(&Tree::walk(new)?, &Tree::walk(old)?),
        Command::Paths => paths::check(&tree),
        Command::Cycles => cycles::check(&tree),
        Command::Loc => {
            let table = loc::table(&tree)?;
            if table.is_empty() {
                bail!("no sources in {}", tree.top().display());
            }
            print!("{table}");
            Ok(Vec::new())
        }
    }
}
