// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Boots virtual machines that are joined by a network and an RDMA device, and runs commands in
//! them. Runs in the sysroot: see tools/testbed/enter.
#![deny(unsafe_code)]

mod agent;
mod bed;
mod joint;
mod kernel_log;
mod ktap;
mod on;
mod places;
mod proto;
mod rdmad;
mod router;
mod run;
mod selftest;
mod terminal;
mod tsc;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Boots virtual machines joined by an RDMA device and runs commands in them
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Run a command on VM 1 and end with its status
    ///
    /// The command reaches the other VMs by `on N COMMAND`. All VMs see the sysroot and this
    /// checkout, and keep what they write to themselves. Status 125: the VMs could not be started
    /// or the command was not finished; 99: it passed, but a guest's kernel complained.
    Run(run::RunOptions),
    /// Run test programs that report in KTAP
    ///
    /// Each runs on VM 1, several in one set of VMs. A program says what VMs it wants by comment
    /// lines "testbed: OPTIONS" with the options of `run`, and runs once for each such line. A
    /// complaint of a guest's kernel fails the program that ran at that time.
    Test(selftest::TestOptions),
    /// Give a shell on VM 1
    Shell(bed::BedOptions),
    /// Run a command on another VM, or ask the host for something (in a VM)
    ///
    /// Standard input, output, error and the status are the command's own. `on 0 daemon kill VM`
    /// kills the daemon that has a VM's device.
    On {
        /// Give the command no standard input, and leave this one's unread
        #[arg(short = 'n', long)]
        no_input: bool,
        /// The number of the VM, or 0 for the host
        vm: usize,
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Run commands for the host (in a VM, started by its first process)
    #[command(hide = true)]
    Agent,
}

fn main() -> ExitCode {
    let result = match Options::parse().action {
        Action::Run(options) => run::run(&options),
        Action::Test(options) => {
            run::catch_signals().and_then(|signal| selftest::run(&options, signal))
        }
        Action::Shell(options) => run::shell(&options),
        Action::On {
            no_input,
            vm,
            command,
        } => on::run(vm, command, !no_input),
        Action::Agent => agent::run().map(|()| 0),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("testbed: {error:#}");
            ExitCode::from(125)
        }
    }
}
