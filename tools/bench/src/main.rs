// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Measures the device, the driver and the provider, and for comparison rxe, TCP and the machine's
//! memory.
//!
//! Each subcommand is one module. Its options are a `clap::Args`; its result is a [`Report`], which
//! is printed as a table or, with `--json`, as JSON. Documentation/performance.md describes how
//! each figure is measured.
#![deny(unsafe_code)]

mod device;
mod event;
mod figure;
mod host;
mod kept;
mod loopback;
mod machine;
mod memory;
mod program;
mod report;
mod run;
mod scale;
mod vm;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use figure::Report;

/// Measures virtio-rdma, and rxe, TCP and the machine itself for comparison
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Options {
    /// Write the figures as JSON to a file, or to standard output ("-") instead of the table
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
    /// Write a page with plots to a file
    #[arg(long, value_name = "FILE", global = true)]
    html: Option<PathBuf>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Measure the cost of the device's work, without a VM
    Device(device::Options),
    /// Measure the engine with many guests, QPs and workers, without a VM
    Scale(scale::Options),
    /// Measure copies, threads and TCP of this machine, for comparison with other figures
    Host(host::Options),
    /// Measure virtio-rdma, rxe and TCP between two virtual machines (on VM 1 of `testbed run
    /// --rxe-beside`)
    Vm(vm::Options),
    /// Count the instructions of a post and a poll by the kernel (on VM 1 of `testbed run --vms 1
    /// --smp 1 --accel counted`)
    Kernel(vm::instructions::Options),
    /// Run all measurements, and start virtual machines for them
    Run(run::Options),
    /// Show figures that were written with --json, of one run or several parts
    Show {
        /// Files with figures
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Keep the figures of a run for the comparison with later runs
    Keep(kept::Options),
    /// Start the passive sides (on VM 2, by `bench vm`)
    #[command(hide = true)]
    Peer,
}

fn main() -> ExitCode {
    match measure(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Measures and prints the report. Returns whether all measurements have succeeded.
fn measure(options: &Options) -> Result<bool> {
    let report = match &options.action {
        Action::Device(options) => device::run(options)?,
        Action::Scale(options) => scale::run(options)?,
        Action::Host(options) => host::run(options)?,
        Action::Vm(options) => vm::run(options)?,
        Action::Kernel(options) => vm::instructions::run(options)?,
        Action::Run(options) => run::run(options)?,
        Action::Show { files } => saved(files)?,
        Action::Keep(options) => return kept::keep(options).map(|()| true),
        Action::Peer => return vm::peer::serve().map(|()| true),
    };
    print(&report, options)?;
    Ok(report.failures.is_empty())
}

/// The combined reports of files, with the goals evaluated again.
fn saved(files: &[PathBuf]) -> Result<Report> {
    let mut all = Report::default();
    for file in files {
        all.extend(Report::read(file)?);
    }
    all.goals = report::goals(&all);
    Ok(all)
}

fn print(report: &Report, options: &Options) -> Result<()> {
    if let Some(file) = &options.html {
        write(file, &report::html(report)?)?;
    }
    let Some(file) = &options.json else {
        print!("{}", report::table(report));
        return Ok(());
    };
    let text = serde_json::to_string_pretty(report)? + "\n";
    if file.as_os_str() == "-" {
        print!("{text}");
        return Ok(());
    }
    print!("{}", report::table(report));
    write(file, &text)
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("can't write {}", file.display()))
}
