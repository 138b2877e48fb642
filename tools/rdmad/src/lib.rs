// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The program `virtio-rdmad` as a library, so that fuzz targets reach its parsers.

#![forbid(unsafe_code)]

mod added;
mod cli;
mod confinement;
mod control;
mod cpus;
mod ctl;
mod daemon;
mod device;
mod events;
mod host;
mod in_use;
mod kept_captures;
mod kept_events;
mod kept_text;
mod limits;
mod line_server;
mod log;
mod long_commands;
mod metrics;
mod objects;
mod octal;
#[cfg(test)]
mod panics;
mod ports;
mod qemu_args;
mod qps;
mod rates;
mod ready;
mod report;
mod size;
mod state;
mod state_document;
mod status;
#[cfg(feature = "testing")]
pub mod testing;
mod watchdog;
mod workers;

use std::io::{self, IsTerminal};
use std::mem;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use supervisor::{Start, Supervision, HANDED_OVER, HAND_OVER};
use tracing_subscriber::EnvFilter;
use vdev::{Records, Saved};
use verbs::{Hca, MAX_PORTS};

use crate::cli::{Args, Command, Sandbox};
use crate::confinement::Signals;
use crate::daemon::{Daemon, Former};
use crate::kept_captures::KeptCaptures;
use crate::kept_events::KeptEvents;
use crate::kept_text::KeptText;
use crate::log::{Level, Log};
use crate::ready::Listeners;
use crate::state::{Restored, State};
use crate::watchdog::Watchdog;

/// Context of errors of the sandbox, with a hint how to run without a sandbox.
const NO_SANDBOX: &str = "no sandbox (--sandbox none goes without)";

// Places in the memory of engines: records of ports come first, then changes by `ctl`.
const CHANGES: usize = Records::len(MAX_PORTS as usize);
const EVENTS: usize = CHANGES + kept_text::LEN;
const CAPTURES: usize = EVENTS + kept_events::LEN;

/// How long VMs wait at most for lines of the log that an engine has yet to write at its end.
const LAST_LINES: Duration = Duration::from_millis(50);

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    let args = Args::parse();
    match &args.command {
        Some(Command::Status(ask)) => {
            return end(status::show(&ask.socket, ask.form(), &mut io::stdout()));
        }
        Some(Command::Ctl(args)) => return end(ctl::run(args, &mut io::stdout())),
        Some(Command::QemuArgs(args)) => {
            return end(qemu_args::show(args, &mut io::stdout()));
        }
        Some(Command::Broker { bound }) => return end(confinement::run_broker(*bound)),
        None => {}
    }
    if let Err(error) = confinement::forbid_dumps() {
        return end(Err(error));
    }
    if let Err(error) = args.check() {
        Args::command()
            .error(ErrorKind::ValueValidation, format!("{error:#}"))
            .exit();
    }
    let memory = CAPTURES + kept_captures::LEN;
    if let Some(format) = args.takes_over {
        return end(takes_over(&format, memory));
    }
    if let Err(error) = limits::raise() {
        return end(Err(error));
    }
    let supervised = supervisor::supervise(memory, &format(), |start| engine(args, start));
    supervised.unwrap_or_else(|error| end(Err(error).context("can't start the daemon's engine")))
}

/// The versions of all that one engine leaves to the next: records, and the states of functions and
/// of their devices.
fn format() -> String {
    format!("{}.{}.{}", Records::FORMAT, Saved::FORMAT, Hca::FORMAT)
}

/// Whether this program can take over from one with memory of this format. Its own has `len` bytes.
fn takes_over(left: &str, len: usize) -> Result<()> {
    let own = supervisor::format(&format(), len);
    ensure!(
        left == own,
        "the running daemon has state of format {left}, and {} takes over that of {own}: \
         stop and start the daemon, while no VM uses it",
        env!("CARGO_PKG_VERSION"),
    );
    Ok(())
}

/// Runs the engine: all of the daemon but its supervisor.
fn engine(mut args: Args, start: Start) -> ExitCode {
    let mut inherited = start.inherited;
    // The first engine of a supervisor tells that QEMU may be started.
    let is_first = !start.supervision.was_ready();
    let is_any = !is_first || inherited.were_stored();
    let changes = KeptText::new(start.memory.clone(), CHANGES);
    let events = KeptEvents::new(start.memory.clone(), EVENTS);
    let captures = KeptCaptures::new(
        start.memory.clone(),
        CAPTURES,
        &mut inherited,
        start.store.clone(),
    );
    let records = Arc::new(Records::new(
        start.memory,
        MAX_PORTS as usize,
        &mut inherited,
        start.store.clone(),
    ));
    start.supervision.tell_recorded();
    if let Some(state) = start.state {
        match Saved::from_bytes(&state) {
            Ok(saved) => records.hand_over(saved),
            Err(error) => eprintln!("virtio-rdmad: the handed-over state is damaged: {error}"),
        }
    }
    sockets::inherit(inherited.take_all());
    let (mut state, restored) = match State::restore(&mut args, changes) {
        Ok(restored) => restored,
        Err(error) => return end(Err(error)),
    };
    // CPUs are reserved first, since threads and the broker inherit the affinity.
    let dedicated = match cpus::dedicate(args.dedicate.map_or(0, usize::from)) {
        Ok(cpus) => cpus,
        Err(error) => return end(Err(error)),
    };
    // The sandbox forbids the system call.
    let counted = dma::count_filled_pages();
    if args.sandbox == Sandbox::On {
        let manager = start.store.manager();
        if let Err(error) = confinement::begin(&args, state.file(), manager).context(NO_SANDBOX) {
            return end(Err(error));
        }
    }
    let signals = match Signals::block() {
        Ok(signals) => signals,
        Err(error) => return end(Err(error)),
    };
    let log = match Log::start(io::stderr()) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("virtio-rdmad: can't start a thread for the log: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (of_panics, of_events) = (log.clone(), log.clone());
    sandbox::end_process_on_panic(move || of_panics.clone());
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || of_events.clone())
        .with_ansi(io::stderr().is_terminal())
        .with_filter_reloading();
    let filter = subscriber.reload_handle();
    subscriber.init();
    let level = Level::new(move |level| filter.reload(EnvFilter::from(level.to_string())));
    let prepared = Prepared {
        former: Former {
            is_any,
            records,
            events,
            captures,
            deaths: start.deaths,
            store: start.store,
        },
        is_first,
        supervision: start.supervision,
        state,
        restored,
        dedicated,
        counted,
    };
    let status = match run(&args, prepared, &signals, level, &log) {
        Ok(status) => status,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    };
    log.flush_within(log::PATIENCE);
    status
}

/// All that an engine needs before it starts threads.
struct Prepared {
    former: Former,
    /// Whether the supervisor had no other engine that was ready.
    is_first: bool,
    supervision: Supervision,
    state: State,
    restored: Restored,
    /// The CPUs of workers of their own.
    dedicated: Vec<usize>,
    /// Whether the kernel counts the pages that the engine fills.
    counted: io::Result<()>,
}

fn run(
    args: &Args,
    prepared: Prepared,
    signals: &Signals,
    level: Level,
    log: &Log,
) -> Result<ExitCode> {
    let Prepared {
        former,
        is_first,
        supervision,
        state,
        restored,
        dedicated,
        counted,
    } = prepared;
    if let Some(restored) = restored.level {
        level.set(restored)?;
    }
    for message in restored.superseded.iter().chain(&restored.left_out) {
        tracing::warn!("{message}");
    }
    if let Err(error) = counted {
        tracing::warn!(
            "the kernel does not count the memory that the daemon allocates for VMs (userfaultfd: \
             {error}): limit it by MemoryMax= or a control group"
        );
    }
    limits::check_files(args.most_ports());
    let daemon = Daemon::start(
        args,
        state,
        restored.added,
        dedicated,
        level,
        &former,
        &supervision,
    )?;
    sockets::close_left();
    sandbox::read_symbols();
    let ready_fd = args.ready_fd.filter(|_| is_first);
    let listeners = Listeners::open(ready_fd)?;
    if args.sandbox == Sandbox::On {
        confinement::complete(args).context(NO_SANDBOX)?;
    }
    tracing::info!("ready");
    supervision.tell_ready();
    listeners.ready()?;
    let mut watchdog = Watchdog::default();
    let mut looked = Instant::now();
    let mut is_told = false;
    let signal = loop {
        if let Some(error) = former.store.write().err().filter(|_| !is_told) {
            // Once: a client could cause it again and again.
            is_told = true;
            tracing::warn!("the service manager does not keep all descriptors: {error}");
        }
        match signals.wait(watchdog::INTERVAL, former.store.changed())? {
            Some(signal) if signal == HAND_OVER as u32 => {
                match hand_over(&daemon, &supervision, log) {
                    Ok(()) => {
                        // Its threads are held, and its clients are to notice nothing.
                        mem::forget(daemon);
                        return Ok(ExitCode::from(HANDED_OVER));
                    }
                    Err(error) => {
                        tracing::warn!("no upgrade: {error:#}");
                        supervision.refuse(&format!("{error:#}"));
                    }
                }
            }
            Some(signal) => break signal,
            // Clients cause changes of the store.
            None if looked.elapsed() < watchdog::INTERVAL => continue,
            None => looked = Instant::now(),
        }
        if let Some(stuck) = daemon.stuck(&mut watchdog) {
            // The thread would not let the daemon end in an orderly way.
            panic!("a thread that serves all ports runs without end: {stuck}");
        }
        listeners.alive();
    };
    tracing::info!("ends by signal {signal}");
    listeners.stopping();
    drop(daemon);
    Ok(ExitCode::SUCCESS)
}

/// Stops all work and leaves the state of all devices to the engine of the new program.
fn hand_over(daemon: &Daemon, supervision: &Supervision, log: &Log) -> Result<()> {
    let began = Instant::now();
    daemon.hand_over(|saved| {
        let state = saved.to_bytes().context("the state of devices")?;
        tracing::info!(
            "hands over to another program: {} bytes of state, {:.1?}",
            state.len(),
            began.elapsed()
        );
        // The process ends at once then.
        log.flush_within(LAST_LINES);
        let written = supervision.hand_over(&state);
        written.context("can't write the state of devices")
    })
}

/// Exit status of a command that has no log. Prints the error to standard error.
fn end(done: Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("virtio-rdmad: {error:#}");
            ExitCode::FAILURE
        }
    }
}
