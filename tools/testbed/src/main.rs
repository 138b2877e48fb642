// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Boots virtual machines that are joined by a network and an RDMA device, and runs commands in
//! them. Runs in the sysroot: see tools/testbed/enter.
#![forbid(unsafe_code)]

mod agent;
mod bed;
mod kernel_log;
mod on;
mod places;
mod proto;
mod rdmad;
mod router;
mod run;
mod terminal;
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
    /// checkout, and keep what they write to themselves. Status 125: the VMs could not be started or
    /// the command was not finished; 99: it passed, but a guest's kernel complained.
    Run(run::RunOptions),
    /// Give a shell on VM 1
    Shell(bed::BedOptions),
    /// Run a command on another VM (in a VM)
    On {
        /// Pass standard input on
        #[arg(short)]
        input: bool,
        /// The number of the VM
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
        Action::Shell(options) => run::shell(&options),
        Action::On { input, vm, command } => on::run(vm, command, input),
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
