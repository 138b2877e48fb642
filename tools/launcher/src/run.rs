// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One command or a shell on VM 1, with the user's input, output, signals and terminal.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use clap::Args;
use guest::feed::{feed, has_input};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::accel::Accel;
use crate::bed::{Bed, BedOptions, Ground, Limits};
use crate::host_check::Unmet;
use crate::junit::Recorder;
use crate::phases::Phase;
use crate::router::{Event, GuestCommand};
use crate::terminal::{self, Raw};
use crate::untrusted::create;
use crate::FAILED;

/// The exit status if the command succeeded, but a guest's kernel complained or a daemon failed.
const UNCLEAN: u8 = 99;
/// Interval at which signals and the terminal's size are checked.
const POLL: Duration = Duration::from_millis(50);
/// Time limit for a command's end after a terminating signal.
const GRACE: Duration = Duration::from_secs(10);

/// A command, and the reports on it.
#[derive(Args, Clone, Debug)]
pub struct Job {
    /// Write a summary as JSON to a file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the result as JUnit's XML to a file
    ///
    /// A test case for each KTAP result in the output, or one for the command, and one for each
    /// rule of a scenario.
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true)]
    pub command: Vec<String>,
}

/// The report that `--json` writes.
#[derive(Debug, Serialize)]
struct Summary {
    command: Vec<String>,
    /// The command's own status; `None` if it was not started or did not end.
    status: Option<u8>,
    /// The exit status of this program.
    exit: u8,
    error: Option<String>,
    /// Complaints of the guests' kernels, and failures of guests and daemons.
    wrong: Vec<String>,
    /// Requirements that the machine does not meet, as `virtio-rdma check` names them: nothing was
    /// started.
    missing: Vec<&'static str>,
    /// If the command did not end: the QPs whose work stood still, each with the reason.
    stalled: Vec<String>,
    /// The rules of scenarios, each with how often it has applied.
    rules: Vec<String>,
    vms: u8,
    accel: Option<String>,
    boot_seconds: f64,
    /// The phases until the command's end, with those of VM 1.
    phases: Vec<Phase>,
    /// Processor time of all QEMUs until the command's end.
    qemu_seconds: f64,
    total_seconds: f64,
    logs: Option<PathBuf>,
}

/// Runs a command in a set of guests. Returns the exit status.
pub fn run(options: &BedOptions, ground: Ground, job: &Job) -> Result<u8> {
    let began = Instant::now();
    let name = ground.name;
    let logs_stay = ground.logs_stay();
    let signals = catch_signals()?;
    let limits = Limits {
        signal: Arc::clone(&signals.end),
        until: options
            .timeout
            .map(|seconds| began + Duration::from_secs(seconds)),
    };
    let mut summary = Summary {
        command: job.command.clone(),
        status: None,
        exit: FAILED,
        error: None,
        wrong: Vec::new(),
        missing: Vec::new(),
        stalled: Vec::new(),
        rules: Vec::new(),
        vms: options.vms,
        accel: None,
        boot_seconds: 0.0,
        phases: Vec::new(),
        qemu_seconds: 0.0,
        total_seconds: 0.0,
        logs: None,
    };
    let mut recorder = job.junit.as_ref().map(|_| Recorder::default());

    match Bed::start(options, ground, limits.clone()) {
        Err(error) => {
            summary.missing = error.downcast_ref().map_or_else(Vec::new, Unmet::names);
            summary.error = Some(format!("{error:#}"));
        }
        Ok(mut bed) => {
            announce(name, &bed);
            summary.accel = Some(format!("{:?}", bed.shape.accel).to_lowercase());
            summary.boot_seconds = bed.boot_time.as_secs_f64();
            summary.logs = logs_stay.then(|| bed.dirs.logs.clone());
            let stalled = &mut summary.stalled;
            match pass(
                &bed,
                job.command.clone(),
                &signals,
                recorder.as_mut(),
                stalled,
            ) {
                Ok(status) => summary.status = Some(status),
                Err(error) => summary.error = Some(format!("{error:#}")),
            }
            bed.phases.end("command");
            summary.phases = bed.phases.all().to_vec();
            summary.qemu_seconds = bed.processor_time().as_secs_f64();
            if options.device.chaos.is_some() {
                summary.rules = bed.rules();
            }
            summary.wrong = bed.end();
            if limits.is_over() {
                eprint!("{}", bed.log_tails());
            }
        }
    }

    summary.exit = verdict(&summary, signals.end.load(Ordering::Relaxed));
    summary.total_seconds = began.elapsed().as_secs_f64();
    report(name, job, &summary)?;
    if let (Some(file), Some(recorder)) = (&job.junit, recorder) {
        let (status, seconds) = (summary.status, summary.total_seconds);
        let Summary { wrong, rules, .. } = &summary;
        let text = recorder.finish(&job.command.join(" "), status, wrong, rules, seconds);
        write(file, &text).with_context(|| format!("can't write {}", file.display()))?;
    }
    Ok(summary.exit)
}

/// Runs an interactive shell in VM 1.
pub fn shell(options: &BedOptions, ground: Ground, shell: &[&str]) -> Result<u8> {
    let name = ground.name;
    let signals = catch_signals()?;
    let limits = Limits {
        signal: Arc::clone(&signals.end),
        until: None,
    };
    let mut bed = Bed::start(options, ground, limits)?;
    announce(name, &bed);
    eprintln!("{name}: `on 2 COMMAND` runs a command in VM 2; `exit` ends the VMs");
    let shell = shell.iter().map(|word| (*word).to_owned()).collect();
    let mut stalled = Vec::new();
    let status = pass(&bed, shell, &signals, None, &mut stalled);
    for line in bed.end().into_iter().chain(stalled) {
        eprintln!("{name}: {line}");
    }
    status
}

/// Received signals. They do not end this program at once.
pub struct Signals {
    /// The last terminating signal, or 0.
    pub end: Arc<AtomicUsize>,
    /// The last signal that was not sent to the command yet, or 0.
    new: Arc<AtomicUsize>,
}

/// Records signals from now on.
pub fn catch_signals() -> Result<Signals> {
    let (end, new) = (Arc::default(), Arc::default());
    let note = |number, all: &[&Arc<AtomicUsize>]| -> Result<()> {
        for one in all {
            let value = usize::try_from(number)?;
            signal_hook::flag::register_usize(number, Arc::clone(one), value)
                .context("can't handle signals")?;
        }
        Ok(())
    };
    for number in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        note(number, &[&end, &new])?;
    }
    for number in [SIGUSR1, SIGUSR2] {
        note(number, &[&new])?;
    }
    Ok(Signals { end, new })
}

fn announce(name: &str, bed: &Bed) {
    let accel = match bed.shape.accel {
        Accel::Kvm => "KVM",
        Accel::Counted => "TCG, which counts instructions",
        Accel::Tcg => "TCG (this host can't run a guest with KVM: everything is slower)",
    };
    let vms = match bed.shape.vms {
        1 => "1 VM".to_owned(),
        vms => format!("{vms} VMs"),
    };
    let seconds = bed.boot_time.as_secs_f64();
    eprintln!("{name}: {vms} up after {seconds:.0} s under {accel}");
}

/// Runs a command on VM 1. Passes bytes, signals and the terminal's size between the user and the
/// command until the command ends. If it does not end in time, adds the QPs whose work stands still
/// to `stalled` before it is killed, since its QPs go with it.
fn pass(
    bed: &Bed,
    argv: Vec<String>,
    signals: &Signals,
    mut recorder: Option<&mut Recorder>,
    stalled: &mut Vec<String>,
) -> Result<u8> {
    let in_terminal = io::stdin().is_terminal() && io::stdout().is_terminal() && has_input();
    let mut size = terminal::size();
    let command = bed.exec(1, argv, in_terminal.then_some(size));
    let taken = send_input(&command);
    let raw = in_terminal.then(Raw::enter);
    let mut stop: Option<Instant> = None;
    loop {
        let event = bed.next_within(&command.events, POLL);
        let fed = match &event {
            Some(Event::Stdout(bytes)) => put(io::stdout(), bytes),
            Some(Event::Stderr(bytes)) => put(io::stderr(), bytes),
            _ => Ok(()),
        };
        if let Err(error) = fed {
            command.handle.kill();
            let closed = error.kind() == io::ErrorKind::BrokenPipe;
            // A shell reports this status for a command that writes to a closed pipe.
            return if closed {
                signal_status(SIGPIPE as usize)
            } else {
                Err(error.into())
            };
        }
        match event {
            Some(Event::Stdout(bytes) | Event::Stderr(bytes)) => {
                if let Some(recorder) = &mut recorder {
                    recorder.feed(&bytes);
                }
            }
            Some(Event::Taken(length)) => {
                let _ = taken.send(length);
            }
            Some(Event::Exit(status)) => return Ok(status),
            Some(Event::Lost) => bail!("VM 1 ended before the command did"),
            Some(Event::Up) => {}
            None if in_terminal && terminal::size() != size => {
                size = terminal::size();
                command.handle.resize(size);
            }
            None => {}
        }
        let new = signals.new.swap(0, Ordering::Relaxed);
        if new != 0 {
            command.handle.signal(u32::try_from(new)?);
            let ends = signals.end.load(Ordering::Relaxed) == new;
            // A second signal ends the command at once.
            match stop {
                Some(_) if ends => stop = Some(Instant::now()),
                None if ends => stop = Some(Instant::now() + GRACE),
                _ => {}
            }
        }
        let over = match stop {
            Some(stop) if Instant::now() >= stop => Err(anyhow::anyhow!("interrupted")),
            Some(_) => Ok(()),
            None => bed.limits.check(),
        };
        // A signal that has just arrived is passed on to the command before the command is killed.
        if over.is_err() && signals.new.load(Ordering::Relaxed) == 0 {
            *stalled = bed.stalled();
            command.handle.kill();
            drop(raw);
            return over.map(|()| FAILED);
        }
    }
}

/// Sends standard input in a thread. The thread is never joined, since its read may never return.
fn send_input(command: &GuestCommand) -> mpsc::Sender<usize> {
    let handle = command.handle.clone();
    let (taken, lengths) = mpsc::channel();
    if has_input() {
        thread::spawn(move || feed(|bytes| handle.input(bytes), &mut io::stdin(), &lengths));
    } else {
        handle.input(&[]);
    }
    taken
}

fn put(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

fn write(file: &Path, text: &str) -> io::Result<()> {
    create(file)?.write_all(text.as_bytes())
}

fn signal_status(signal: usize) -> Result<u8> {
    Ok(u8::try_from(128 + signal)?)
}

/// The exit status of this program: the command's status, or [`UNCLEAN`] for a success with
/// failures elsewhere.
fn verdict(summary: &Summary, signal: usize) -> u8 {
    match summary.status {
        Some(0) if !summary.wrong.is_empty() => UNCLEAN,
        Some(status) => status,
        None if signal != 0 => signal_status(signal).unwrap_or(FAILED),
        None => FAILED,
    }
}

fn report(name: &str, job: &Job, summary: &Summary) -> Result<()> {
    let lines = [&summary.rules, &summary.wrong, &summary.stalled];
    for line in lines.into_iter().flatten() {
        eprintln!("{name}: {line}");
    }
    if let Some(error) = &summary.error {
        eprintln!("{name}: {error}");
    }
    if let Some(logs) = summary.logs.as_ref().filter(|_| summary.exit != 0) {
        eprintln!("{name}: logs are in {}", logs.display());
    }
    if let Some(file) = &job.json {
        let text = serde_json::to_string_pretty(summary)?;
        write(file, &(text + "\n")).with_context(|| format!("can't write {}", file.display()))?;
    }
    Ok(())
}
