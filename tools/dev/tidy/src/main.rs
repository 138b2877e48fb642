// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Checks that keep the sources readable: prose, imports and references to files.

#![forbid(unsafe_code)]

mod comments;
mod commits;
mod cycles;
mod imports;
mod paths;
mod prose;
mod sources;
mod tokens;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use sources::Tree;

/// Checks that keep the sources readable. `tools/dev/tidy/run` calls it with the list of files.
#[derive(Parser)]
struct Arguments {
    /// The file that lists the files of the checkout, one per line.
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
    /// Check that the files and functions in documents and comments exist.
    Paths,
    /// Check that imports have no cycles, except those in the allow list.
    Cycles,
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
        Command::Paths => paths::check(&tree),
        Command::Cycles => cycles::check(&tree),
    }
}
