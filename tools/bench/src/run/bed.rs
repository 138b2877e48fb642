// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A set of virtual machines in which a part of the benchmark runs. The host turns the part's
//! events into figures.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{bail, Context, Result};

use super::progress::Progress;
use super::usage;
use crate::event::Event;
use crate::figure::{Failure, Key, Report};
use crate::program::output;

/// Suffix of the name of a figure per processor time of the daemon.
pub const PER_PROCESSOR_SECOND: &str = ", per CPU-second of the daemon";

/// The virtual machines, and the program in them.
pub struct Bed<'a> {
    /// The name of this part of the benchmark, for the progress line.
    pub name: &'a str,
    /// Options of `testbed run`.
    pub machines: Vec<String>,
    /// Arguments of this program in VM 1.
    pub arguments: Vec<String>,
}

/// The path of the testbed program.
pub fn testbed() -> Result<PathBuf> {
    Ok(env::current_exe()?.with_file_name("testbed"))
}

/// Whether virtual machines run on KVM, according to testbed: `/dev/kvm` may exist on a host whose
/// processor has no virtualization.
pub fn uses_kvm() -> Result<bool> {
    let arguments = output(Command::new(testbed()?).arg("processor"))?;
    Ok(arguments.contains("-accel kvm"))
}

/// The directory for logs of failed measurements.
pub struct Logs {
    dir: PathBuf,
    count: usize,
}

impl Logs {
    /// Creates the directory, or empties it.
    pub fn new(dir: &Path) -> Result<Self> {
        if dir.exists() {
            fs::remove_dir_all(dir).with_context(|| format!("can't empty {}", dir.display()))?;
        }
        fs::create_dir_all(dir).with_context(|| format!("can't make {}", dir.display()))?;
        Ok(Self {
            dir: dir.to_path_buf(),
            count: 0,
        })
    }

    /// Stores a text in a file. Returns the file's path.
    fn keep(&mut self, text: &str) -> Result<String> {
        self.count += 1;
        let file = self.dir.join(format!("{}.log", self.count));
        fs::write(&file, text).with_context(|| format!("can't write {}", file.display()))?;
        Ok(file.display().to_string())
    }
}

impl Bed<'_> {
    /// Boots the machines, and adds their figures to the report.
    pub fn run(&self, report: &mut Report, progress: &mut Progress, logs: &mut Logs) -> Result<()> {
        progress.part(self.name);
        let program = env::current_exe()?;
        let testbed = testbed()?;
        let mut child = Command::new(&testbed)
            .arg("run")
            .args(&self.machines)
            .arg("--")
            .arg(&program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("can't start {}", testbed.display()))?;
        let said = child.stderr.take().context("no pipe")?;
        let said = std::thread::spawn(move || std::io::read_to_string(said));
        let events = BufReader::new(child.stdout.take().context("no pipe")?);
        let mut taken = self.take(events, report, progress, logs);
        if taken.is_err() {
            // If its events can't be handled, the program would produce no figures.
            let _ = child.kill();
        }
        let status = child.wait()?;
        let said = said.join().ok().and_then(Result::ok).unwrap_or_default();
        if let Some(line) = said.lines().find(|line| line.contains(" VMs up after ")) {
            // The note omits the program's name, with which the line begins.
            let line = line.trim_start_matches("testbed: ");
            report.notes.push(format!("{}: {line}.", self.name));
        }
        if taken.is_ok() && !status.success() {
            taken = Err(anyhow::anyhow!("{status}"));
        }
        if let Err(error) = taken {
            report.failures.push(Failure {
                what: self.name.to_owned(),
                error: format!("{error:#}"),
                log: Some(logs.keep(&said)?),
            });
        }
        Ok(())
    }

    fn take(
        &self,
        events: impl BufRead,
        report: &mut Report,
        progress: &mut Progress,
        logs: &mut Logs,
    ) -> Result<()> {
        let mut used = 0.0;
        for line in events.lines() {
            let line = line?;
            let event: Event =
                serde_json::from_str(&line).with_context(|| format!("not an event: {line}"))?;
            match event {
                Event::Plan(steps) => progress.plan(steps),
                Event::Step(what) => progress.step(&what),
                Event::Note(text) => progress.note(&text),
                Event::Value(key, value) => report.add(key, value),
                Event::Memory(key) => report.add(key, usage::own_memory()? / 1e6),
                Event::Begin => used = usage::processor_seconds()?,
                Event::End(traffic) => {
                    let seconds = usage::processor_seconds()? - used;
                    if seconds <= 0.0 {
                        bail!("no daemon ran during {}", traffic.key.name);
                    }
                    let name = format!("{}{PER_PROCESSOR_SECOND}", traffic.key.name);
                    let key = Key {
                        name,
                        unit: "MB/CPU-s".into(),
                        ..traffic.key
                    };
                    report.add(key, traffic.bytes / 1e6 / seconds);
                }
                Event::Failure { what, error, log } => {
                    let log = logs.keep(&log)?;
                    progress.note(&format!("{what}: {error} (see {log})"));
                    report.failures.push(Failure {
                        what,
                        error,
                        log: Some(log),
                    });
                }
            }
        }
        Ok(())
    }
}
