// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Measures the device, the driver and the provider, beside rxe, TCP and what memory allows.
//!
//! Each subcommand is one module: its options are a `clap::Args`, and what it measures is a
//! [`Report`], which is printed as a table or, with `--json`, in the form that all of them share.
//! Documentation/performance.md says how each figure comes about.
#![deny(unsafe_code)]

mod device;
mod event;
mod figure;
mod host;
mod kept;
mod loopback;
mod machine;
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

/// Measures virtio-rdma, and what there is to compare it with
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
    /// Measure the device's work, without a VM
    Device(device::Options),
    /// Measure the engine under more guests, QPs and workers, without a VM
    Scale(scale::Options),
    /// Measure memory and two threads of this machine: the floors that other figures are held
    /// against
    Host(host::Options),
    /// Virtio-rdma, rxe and TCP between two virtual machines (on VM 1 of `testbed run
    /// --rxe-beside`)
    Vm(vm::Options),
    /// Instructions of a post and a poll by the kernel (on VM 1 of `testbed run --vms 1 --smp 1
    /// --accel counted`)
    Kernel(vm::instructions::Options),
    /// All of it, in virtual machines that are started for it
    Run(run::Options),
    /// Figures that were written with --json, of one run or several parts
    Show {
        /// Files with figures
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Keep the figures of a run, to compare later runs with
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

/// Measures and prints; whether all that was to be measured was.
fn measure(options: &Options) -> Result<bool> {
    let report = match &options.action {
        Action::Device(options) => device::run(options)?,
        Action::Scale(options) => scale::run(options)?,
        Action::Host(options) => host::run(options)?,
        Action::Vm(options) => {
            let report = vm::run(options)?;
            if options.stream {
                return Ok(true);
            }
            report
        }
        Action::Kernel(options) => {
            let report = vm::instructions::run(options)?;
            if options.stream {
                return Ok(true);
            }
            report
        }
        Action::Run(options) => run::run(options)?,
        Action::Show { files } => saved(files)?,
        Action::Keep(options) => return kept::keep(options).map(|()| true),
        Action::Peer => return vm::peer::serve().map(|()| true),
    };
    print(&report, options)?;
    Ok(report.failures.is_empty())
}

/// The reports in files, held against the targets again.
fn saved(files: &[PathBuf]) -> Result<Report> {
    let mut all = Report::default();
    for file in files {
        let text =
            fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
        let report: Report = serde_json::from_str(&text)
            .with_context(|| format!("no figures in {}", file.display()))?;
        all.extend(report);
    }
    all.targets = report::targets(&all);
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
