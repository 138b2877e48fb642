// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The command line of `testbed`.

use std::ffi::OsString;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::accel::{command_line, Accel};
use crate::bed::{BedOptions, Ground};
use crate::demo::demo;
use crate::install::{Install, DEMO};
use crate::run::{self, Job};
use crate::selftest::{self, TestOptions};
use crate::tsc::Measurement;

/// Boots virtual machines joined by an RDMA device and runs commands in them
#[derive(Parser)]
#[command(name = "testbed", version, max_term_width = 100)]
struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run a command on VM 1 and end with its status
    ///
    /// The command reaches the other VMs by `on N COMMAND`. All VMs see the sysroot and this
    /// checkout; what a VM writes is visible only to that VM. Status 125: the VMs could not be
    /// started or the command did not finish; 99: it passed, but a guest's kernel complained.
    Run {
        #[command(flatten)]
        bed: BedOptions,
        #[command(flatten)]
        job: Job,
    },
    /// Run test programs that report in KTAP
    ///
    /// Each program runs on VM 1; several share a set of VMs. A comment line "testbed: OPTIONS" in
    /// a program specifies its VMs, with the options of `run`. A program runs once for each such
    /// line. A complaint of a guest's kernel fails the program that is running.
    Test(TestOptions),
    /// Open a shell on VM 1
    Shell(BedOptions),
    /// Print QEMU's arguments for the processor, and in a second line the kernel's parameters
    Processor,
    /// Run a demo on two VMs
    Demo {
        /// Options of `run`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<OsString>,
    },
}

/// Executes the command line. Returns the exit status.
pub fn main() -> Result<u8> {
    match Options::parse().action {
        Action::Run { bed, job } => {
            let ground = Ground::checkout(&bed)?;
            run::run(&bed, ground, &job)
        }
        Action::Test(options) => {
            run::catch_signals().and_then(|signals| selftest::run(&options, signals.end))
        }
        Action::Shell(options) => {
            let ground = Ground::checkout(&options)?;
            run::shell(&options, ground, &["bash", "-l"])
        }
        Action::Processor => {
            let accel = Accel::detect();
            println!("{}", accel.arguments().join(" "));
            println!(
                "{}",
                command_line(accel.tsc_khz(&Measurement::start())).trim()
            );
            Ok(0)
        }
        Action::Demo { options } => {
            let install = Install::checkout(None)?;
            let top = install.checkout.context("no checkout")?;
            demo(&top.join(DEMO), &options)
        }
    }
}
