// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The other virtual machine: one process there starts the passive sides of all measurements.
//!
//! Starting a program through the test bed takes a tenth of a second or more in an emulated
//! machine: for each measurement, that would take longer than the measurement itself.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use serde::{de::DeserializeOwned, Deserialize, Serialize};

use super::devices::Devices;
use super::folios;
use super::own_file;
use super::process::Process;
use crate::event::write_line;

/// Time limit until a program listens.
const READY: Duration = Duration::from_secs(30);
/// Time limit for a program's end after the end of its peer.
const END: Duration = Duration::from_secs(30);
/// The code of LISTEN in /proc/net/tcp.
const LISTEN: &str = "0A";

#[derive(Debug, Deserialize, Serialize)]
enum PeerCommand {
    /// Start a program and answer when it listens at a TCP port.
    Start { argv: Vec<String>, port: u16 },
    /// Answer when the program has ended. With `kill`, kill it, since its peer has failed.
    Finish { kill: bool },
    /// Find the devices.
    Devices,
    /// Allocate programs' memory in large folios, or in pages only.
    Folios { large: bool },
}

#[derive(Debug, Deserialize, Serialize)]
enum PeerAnswer {
    /// The program listens at its port.
    Listens,
    /// The devices of the other machine.
    Devices(Devices),
    /// The program has ended: whether its status was 0, and its output.
    Ended { good: bool, printed: String },
    /// The request is done.
    Done,
    /// The request has failed: the error, and the output of the program.
    Failed { error: String, printed: String },
}

/// The link to the other machine.
pub struct Peer {
    // Fields are dropped in this order: the process ends when `requests` is closed.
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    process: Child,
}

impl Peer {
    /// Starts the process on VM `vm`.
    pub fn connect(vm: &str) -> Result<Self> {
        let program = env::current_exe()?;
        let mut process = Command::new("on")
            .arg(vm)
            .arg(program)
            .arg("peer")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("can't start `on`: this works in a virtual machine of the test bed")?;
        let requests = process.stdin.take().context("no pipe")?;
        let answers = process.stdout.take().context("no pipe")?;
        Ok(Self {
            requests,
            answers: BufReader::new(answers),
            process,
        })
    }

    /// Starts a program that listens at a port.
    pub fn start(&mut self, argv: &[String], port: u16) -> Result<()> {
        match self.ask(&PeerCommand::Start {
            argv: argv.to_vec(),
            port,
        })? {
            PeerAnswer::Listens => Ok(()),
            PeerAnswer::Failed { error, printed } => {
                bail!("on the other machine: {error}\n{printed}")
            }
            other => bail!("out of turn on the other machine: {other:?}"),
        }
    }

    /// The devices of the other machine.
    pub fn devices(&mut self) -> Result<Devices> {
        match self.ask(&PeerCommand::Devices)? {
            PeerAnswer::Devices(devices) => Ok(devices),
            PeerAnswer::Failed { error, .. } => bail!("on the other machine: {error}"),
            other => bail!("out of turn on the other machine: {other:?}"),
        }
    }

    /// Sets whether programs on the other machine get large folios or pages only.
    pub fn folios(&mut self, large: bool) -> Result<()> {
        match self.ask(&PeerCommand::Folios { large })? {
            PeerAnswer::Done => Ok(()),
            PeerAnswer::Failed { error, .. } => bail!("on the other machine: {error}"),
            other => bail!("out of turn on the other machine: {other:?}"),
        }
    }

    /// Waits until the command ends. Returns its output, and whether it succeeded.
    pub fn finish(&mut self, kill: bool) -> Result<(bool, String)> {
        match self.ask(&PeerCommand::Finish { kill })? {
            PeerAnswer::Ended { good, printed } => Ok((good, printed)),
            PeerAnswer::Failed { error, printed } => Ok((false, format!("{printed}\n{error}"))),
            other => bail!("out of turn on the other machine: {other:?}"),
        }
    }

    fn ask(&mut self, request: &PeerCommand) -> Result<PeerAnswer> {
        write_line(&mut self.requests, request)?;
        read_line(&mut self.answers)?.context("the process on the other machine has ended")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The process on the other machine: executes requests from standard input until its end.
pub fn serve() -> Result<()> {
    let mut requests = io::stdin().lock();
    let log = own_file("peer");
    let mut running: Option<Process> = None;
    while let Some(request) = read_line(&mut requests)? {
        let answer = match request {
            PeerCommand::Start { argv, port } => start(&argv, port, &log, &mut running),
            PeerCommand::Finish { kill } => finish(kill, &mut running),
            PeerCommand::Devices => Devices::find().map_or_else(failed, PeerAnswer::Devices),
            PeerCommand::Folios { large } => {
                folios::set(large).map_or_else(failed, |()| PeerAnswer::Done)
            }
        };
        write_line(&mut io::stdout().lock(), &answer)?;
    }
    if let Some(process) = running {
        process.kill();
    }
    Ok(())
}

/// The answer to a request that has failed before a program was started.
fn failed(error: anyhow::Error) -> PeerAnswer {
    PeerAnswer::Failed {
        error: format!("{error:#}"),
        printed: String::new(),
    }
}

fn start(argv: &[String], port: u16, log: &Path, running: &mut Option<Process>) -> PeerAnswer {
    let process = match Process::start(argv, log) {
        Ok(process) => process,
        Err(error) => return failed(error),
    };
    let process = running.insert(process);
    let until = Instant::now() + READY;
    while !listens(port) {
        let late = Instant::now() > until;
        let state = process.check();
        if late || state.is_err() {
            process.kill();
            return PeerAnswer::Failed {
                error: match state {
                    Err(error) => format!("{error:#}"),
                    Ok(()) => format!("does not listen after {} s", READY.as_secs()),
                },
                printed: process.printed(),
            };
        }
        thread::sleep(Duration::from_millis(10));
    }
    PeerAnswer::Listens
}

fn finish(kill: bool, running: &mut Option<Process>) -> PeerAnswer {
    let Some(process) = running.take() else {
        return PeerAnswer::Failed {
            error: "nothing was started".into(),
            printed: String::new(),
        };
    };
    if kill {
        process.kill();
    }
    match process.finish(END) {
        Ok((status, printed)) => PeerAnswer::Ended {
            good: status.success(),
            printed,
        },
        Err(error) => PeerAnswer::Failed {
            error: format!("{error:#}"),
            printed: process.printed(),
        },
    }
}

/// Whether a socket listens at a TCP port.
fn listens(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .any(|table| lists_listener(&table, port))
}

fn lists_listener(table: &str, port: u16) -> bool {
    let end = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&end)) && fields.nth(1) == Some(LISTEN)
    })
}

/// The value in the next line, or `None` at the end of the input.
fn read_line<T: DeserializeOwned>(input: &mut impl BufRead) -> Result<Option<T>> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(
        serde_json::from_str(&line).with_context(|| format!("not understood: {line}"))?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_found_by_port_and_state() {
        let table = "  sl  local_address rem_address   st\n   \
            0: 00000000:4853 00000000:0000 0A 00000000:00000000\n   \
            1: 0100007F:4854 0100007F:9999 01 00000000:00000000\n";
        assert!(lists_listener(table, 0x4853));
        // A connected socket's port, and a port of the peer.
        assert!(!lists_listener(table, 0x4854));
        assert!(!lists_listener(table, 0x9999));
    }

    #[test]
    fn a_program_that_ends_at_once_is_no_listener() {
        let dir = tempfile::tempdir().unwrap();
        let argv = ["sh", "-c", "echo no; exit 1"].map(str::to_owned);
        let mut running = None;
        // Nothing listens at port 0.
        let answer = start(&argv, 0, &dir.path().join("log"), &mut running);
        let PeerAnswer::Failed { error, printed } = answer else {
            panic!("{answer:?}");
        };
        assert!(error.contains("ended at once"), "{error}");
        assert_eq!(printed, "no\n");
    }
}
