// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! `virtio-rdmad`: a software virtio-rdma device for stock QEMU. See Documentation/man/virtio-rdmad.1.

#![forbid(unsafe_code)]

mod cli;
mod device;
mod limits;
mod log;
mod machine;
#[cfg(test)]
mod panics;
mod report;
mod size;
mod status;

use std::fs::File;
use std::io::IsTerminal;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use anyhow::Result;
use clap::error::ErrorKind;
use clap::CommandFactory;
use clap::Parser;
use signal_hook::consts::SIGINT;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;
use tracing_subscriber::EnvFilter;

use crate::cli::Args;
use crate::cli::Command;
use crate::log::Log;
use crate::machine::Machine;

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(Command::Status(ask)) = &args.command {
        return match status::show(&ask.socket, ask.form(), &mut std::io::stdout()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("virtio-rdmad: {error:#}");
                ExitCode::FAILURE
            }
        };
    }
    if let Err(error) = args.check() {
        Args::command()
            .error(ErrorKind::ValueValidation, format!("{error:#}"))
            .exit();
    }
    let mut log = match Log::start(std::io::stderr()) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("virtio-rdmad: can't start a thread for the log: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (of_panics, of_events) = (log.clone(), log.clone());
    contain::end_process_on_panic(move || of_panics.clone());
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || of_events.clone())
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let status = match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    };
    // A reader that takes nothing does not keep the process.
    let _ = log.flush();
    status
}

fn run(args: &Args) -> Result<()> {
    // From here on a signal is kept until there is something to end.
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("can't handle signals")?;
    limits::raise(args.ports.len());
    let machine = Machine::start(args)?;
    tracing::info!("ready");
    if let Some(fd) = args.ready_fd {
        // By its name, since the number alone proves nothing about who owns it.
        File::options()
            .write(true)
            .open(format!("/proc/self/fd/{fd}"))
            .and_then(|mut pipe| pipe.write_all(b"ready\n"))
            .with_context(|| format!("can't write to file descriptor {fd}"))?;
    }
    if let Some(signal) = signals.forever().next() {
        tracing::info!("ends by signal {signal}");
    }
    drop(machine);
    Ok(())
}
