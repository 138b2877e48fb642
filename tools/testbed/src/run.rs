// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `testbed run` and `testbed shell`: one command on VM 1, with the user's input and output.

use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::bed::{Bed, BedOptions, Limits};
use crate::proto::CHUNK;
use crate::router::{Command, Event};
use crate::terminal::{self, Raw};
use crate::vm::Accel;

/// The status where the command passed and something else did not: a guest's kernel, the daemon.
const UNCLEAN: u8 = 99;
/// The status where the guests could not be started or the command not be finished.
const FAILED: u8 = 125;

/// Options of `run`.
#[derive(Args, Clone, Debug)]
pub struct RunOptions {
    #[command(flatten)]
    pub bed: BedOptions,
    /// Write a summary as JSON to a file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
}

/// The report that `--json` writes.
#[derive(Debug, Serialize)]
struct Summary {
    command: Vec<String>,
    /// The command's own status; none if it was not started or did not end.
    status: Option<u8>,
    /// The exit status of this program.
    exit: u8,
    error: Option<String>,
    /// Complaints of the guests' kernels, guests or a daemon that ended badly.
    wrong: Vec<String>,
    vms: u8,
    accel: Option<String>,
    boot_seconds: f64,
    total_seconds: f64,
    logs: Option<PathBuf>,
}

/// Runs a command in a set of guests; returns its status, or what came between.
pub fn run(options: &RunOptions) -> Result<u8> {
    let began = Instant::now();
    let signal = catch_signals()?;
    let limits = Limits {
        signal: Arc::clone(&signal),
        until: options
            .bed
            .timeout
            .map(|seconds| began + Duration::from_secs(seconds)),
    };
    let mut summary = Summary {
        command: options.command.clone(),
        status: None,
        exit: FAILED,
        error: None,
        wrong: Vec::new(),
        vms: options.bed.vms,
        accel: None,
        boot_seconds: 0.0,
        total_seconds: 0.0,
        logs: None,
    };

    match Bed::start(&options.bed, limits) {
        Err(error) => summary.error = Some(format!("{error:#}")),
        Ok(bed) => {
            announce(&bed);
            summary.accel = Some(format!("{:?}", bed.shape.accel).to_lowercase());
            summary.boot_seconds = bed.boot_time.as_secs_f64();
            summary.logs = Some(bed.places.logs.clone());
            match stream(&bed, &bed.exec(1, options.command.clone())) {
                Ok(status) => summary.status = Some(status),
                Err(error) => summary.error = Some(format!("{error:#}")),
            }
            summary.wrong = bed.end();
        }
    }

    summary.exit = verdict(&summary, signal.load(Ordering::Relaxed));
    summary.total_seconds = began.elapsed().as_secs_f64();
    report(options, &summary)?;
    Ok(summary.exit)
}

/// Gives an interactive shell in VM 1.
pub fn shell(options: &BedOptions) -> Result<u8> {
    let signal = catch_signals()?;
    let bed = Bed::start(
        options,
        Limits {
            signal,
            until: None,
        },
    )?;
    announce(&bed);
    eprintln!("testbed: `on 2 COMMAND` runs a command in VM 2; `exit` ends the VMs");
    let (rows, columns) = terminal::size();
    let shell = if io::stdin().is_terminal() {
        // The terminal's other end, and job control with it, is made by script.
        format!("exec script -qec 'stty rows {rows} cols {columns}; exec bash -l' /dev/null")
    } else {
        "exec bash -l".to_owned()
    };
    let raw = Raw::enter();
    let status = stream(&bed, &bed.exec(1, vec!["sh".into(), "-c".into(), shell]));
    drop(raw);
    for line in bed.end() {
        eprintln!("testbed: {line}");
    }
    status
}

/// Notes a signal that asks this program to end, instead of ending at once.
pub fn catch_signals() -> Result<Arc<AtomicUsize>> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGINT, SIGTERM, SIGHUP] {
        let value = usize::try_from(number)?;
        signal_hook::flag::register_usize(number, Arc::clone(&signal), value)
            .context("can't handle signals")?;
    }
    Ok(signal)
}

fn announce(bed: &Bed) {
    let accel = match bed.shape.accel {
        Accel::Kvm => "KVM",
        Accel::Counted => "TCG, which counts instructions",
        Accel::Tcg => "TCG (this host can't run a guest with KVM: everything is slower)",
    };
    eprintln!(
        "testbed: {} VMs up after {:.0} s under {accel}",
        bed.shape.vms,
        bed.boot_time.as_secs_f64()
    );
}

/// Passes bytes between the user and a command until it ends.
fn stream(bed: &Bed, command: &Command) -> Result<u8> {
    let handle = command.handle.clone();
    // Never joined: it may be in a read that nothing ends.
    thread::spawn(move || {
        let mut chunk = vec![0; CHUNK];
        loop {
            let length = io::stdin().read(&mut chunk).unwrap_or(0);
            if !handle.input(&chunk[..length]) || length == 0 {
                break;
            }
        }
    });
    loop {
        match bed.next(&command.events) {
            Ok(Event::Stdout(bytes)) => {
                let mut out = io::stdout();
                out.write_all(&bytes)?;
                out.flush()?;
            }
            Ok(Event::Stderr(bytes)) => io::stderr().write_all(&bytes)?,
            Ok(Event::Exit(status)) => return Ok(status),
            Ok(Event::Lost) => anyhow::bail!("VM 1 ended before the command did"),
            Ok(Event::Up) => {}
            Err(error) => {
                command.handle.kill();
                return Err(error);
            }
        }
    }
}

/// The exit status of the program: the command's status, unless something hides behind its success.
fn verdict(summary: &Summary, signal: usize) -> u8 {
    let unclean = !summary.wrong.is_empty();
    match summary.status {
        _ if signal != 0 => u8::try_from(128 + signal).unwrap_or(FAILED),
        None => FAILED,
        Some(0) if unclean => UNCLEAN,
        Some(status) => status,
    }
}

fn report(options: &RunOptions, summary: &Summary) -> Result<()> {
    for line in &summary.wrong {
        eprintln!("testbed: {line}");
    }
    if let Some(error) = &summary.error {
        eprintln!("testbed: {error}");
    }
    if let Some(logs) = summary.logs.as_ref().filter(|_| summary.exit != 0) {
        eprintln!("testbed: logs are in {}", logs.display());
    }
    if let Some(file) = &options.json {
        let text = serde_json::to_string_pretty(summary)?;
        fs::write(file, text + "\n").with_context(|| format!("can't write {}", file.display()))?;
    }
    Ok(())
}
