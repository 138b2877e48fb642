// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Runs the tests with one change after the other.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use serde::{Deserialize, Serialize};

use crate::compile::TestProgram;
use crate::draw::Mutant;
use crate::plant::Number;

/// The judgement of the tests on a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A test failed: its name, or the end of its program.
    Noticed(String),
    /// No test of the change's area failed, but another one: its name.
    Elsewhere(String),
    /// A program of tests took several times its usual time.
    Hung(String),
    /// All tests that reach the change passed.
    Missed,
    /// No test reaches the change.
    Unreached,
    /// The program with the change does not compile.
    Uncompiled,
}

/// A program of tests, and what it did without changes.
pub struct Measured<'a> {
    program: &'a TestProgram,
    reached: BTreeSet<Number>,
    duration: Duration,
}

/// How the tests of a program ended.
enum End {
    Passed,
    Failed(String),
    TimedOut,
}

/// Runs each program without changes. All must pass.
pub fn measure<'a>(programs: &'a [TestProgram], scratch: &Path) -> Result<Vec<Measured<'a>>> {
    let mut measured = Vec::new();
    for program in programs {
        let reached = scratch.join("reached");
        fs::write(&reached, "")?;
        let began = Instant::now();
        let mut command = command(program);
        command.env("MUTANT_REACHED", &reached);
        match end(command, Duration::from_secs(1800))? {
            End::Passed => {}
            End::Failed(test) => bail!("{} fails without changes: {test}", program.path.display()),
            End::TimedOut => bail!("{} does not end", program.path.display()),
        }
        let reached = fs::read_to_string(&reached)?
            .lines()
            .map(|line| {
                line.parse()
                    .context("a line of MUTANT_REACHED is not a number")
            })
            .collect::<Result<_>>()?;
        measured.push(Measured {
            program,
            reached,
            duration: began.elapsed(),
        });
    }
    measured.sort_by_key(|program| program.duration);
    Ok(measured)
}

/// Runs the programs of the change's package that reach it, the shortest first.
pub fn judge(number: Number, mutant: &Mutant, programs: &[Measured]) -> Result<Outcome> {
    let mut outcome = Outcome::Unreached;
    for measured in programs {
        // A package has the name of its directory, in some cases after a prefix.
        let directory = measured.program.directory.file_name().unwrap_or_default();
        let is_of_package = mutant.package.ends_with(&*directory.to_string_lossy());
        if !is_of_package || !measured.reached.contains(&number) {
            continue;
        }
        let mut command = command(measured.program);
        command.env("MUTANT", number.to_string());
        // Other work may slow the machine down: a change that is said to hang must hang.
        let patience = measured.duration * 4 + Duration::from_secs(60);
        outcome = match end(command, patience)? {
            End::Passed => Outcome::Missed,
            End::Failed(test) => return Ok(Outcome::Noticed(test)),
            End::TimedOut => return Ok(Outcome::Hung(name(measured.program))),
        };
    }
    Ok(outcome)
}

fn name(program: &TestProgram) -> String {
    let name = program.path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn command(program: &TestProgram) -> Command {
    let mut command = Command::new(&program.path);
    command
        .current_dir(&program.directory)
        .env("CARGO_MANIFEST_DIR", &program.directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0);
    command
}

/// Waits for the first failed test, the end of the program, or the end of the patience.
fn end(mut command: Command, patience: Duration) -> Result<End> {
    let mut child = command.spawn().context("can't start a program of tests")?;
    let out = child.stdout.take().context("standard output is piped")?;
    let (sender, failures) = mpsc::channel();
    // The thread ends with the program, whose process group holds the other end of the pipe.
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            let test = line
                .strip_prefix("test ")
                .and_then(|rest| rest.strip_suffix(" ... FAILED"));
            if let Some(test) = test {
                let _ = sender.send(test.to_owned());
            }
        }
    });
    let end = match failures.recv_timeout(patience) {
        Ok(test) => End::Failed(test),
        Err(RecvTimeoutError::Timeout) => End::TimedOut,
        Err(RecvTimeoutError::Disconnected) => match child.wait()? {
            status if status.success() => End::Passed,
            status => End::Failed(status.to_string()),
        },
    };
    kill(&mut child)?;
    Ok(end)
}

/// Kills a program and the processes that it started.
fn kill(child: &mut Child) -> Result<()> {
    Command::new("kill")
        .args(["-KILL", "--", &format!("-{}", child.id())])
        .stderr(Stdio::null())
        .status()
        .context("can't run kill")?;
    child.wait()?;
    Ok(())
}
