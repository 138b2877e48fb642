// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Measures the device, the driver and the provider, beside rxe, TCP and what memory allows.
//!
//! Each subcommand is one module: its options are a `clap::Args`, and what it measures is a [`Report`], which is
//! printed as a table or, with `--json`, in the form that all of them share. Documentation/performance.md says how each
//! figure comes about.
#![deny(unsafe_code)]

mod device;
mod figure;
mod host;
mod report;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use figure::Report;

/// Measures virtio-rdma, and what there is to compare it with
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Options {
    /// Write the figures as JSON to a file, or to standard output ("-") instead of the table
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// What the device takes for its work, without a VM
    Device(device::Options),
    /// What memory and two threads of this machine allow: the floors that other figures are held against
    Host(host::Options),
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Measures and prints; whether all that was to be measured was.
fn run(options: &Options) -> Result<bool> {
    let report = match &options.action {
        Action::Device(options) => device::run(options)?,
        Action::Host(options) => host::run(options)?,
    };
    print(&report, options.json.as_deref())?;
    Ok(report.failures.is_empty())
}

fn print(report: &Report, json: Option<&std::path::Path>) -> Result<()> {
    let Some(file) = json else {
        print!("{}", report::table(report));
        return Ok(());
    };
    let text = serde_json::to_string_pretty(report)? + "\n";
    if file.as_os_str() == "-" {
        print!("{text}");
        return Ok(());
    }
    print!("{}", report::table(report));
    fs::write(file, text).with_context(|| format!("can't write {}", file.display()))
}
