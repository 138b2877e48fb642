// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Child processes with their output in a file and with a time limit.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{anyhow, bail, Context, Result};
use rustix::process::{kill_process, Pid, Signal};

/// A running program.
pub struct Process {
    pid: Pid,
    log: PathBuf,
    ended: Receiver<std::io::Result<ExitStatus>>,
}

impl Process {
    /// Starts a program. `log` is overwritten with its output.
    pub fn start(argv: &[String], log: &Path) -> Result<Self> {
        let (program, arguments) = argv.split_first().context("no program")?;
        let file = File::create(log).with_context(|| format!("can't create {}", log.display()))?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("can't start {program}"))?;
        let pid = Pid::from_child(&child);
        Ok(Self {
            pid,
            log: log.to_path_buf(),
            ended: watch(child),
        })
    }

    /// Waits for the program's end, and kills it after `limit`. Returns its status and output.
    pub fn finish(&self, limit: Duration) -> Result<(ExitStatus, String)> {
        let status = match self.ended.recv_timeout(limit) {
            Ok(status) => status?,
            Err(_) => {
                self.kill();
                bail!("not finished after {} s", limit.as_secs())
            }
        };
        Ok((status, self.printed()))
    }

    /// An error if the program has ended.
    pub fn check(&self) -> Result<()> {
        match self.ended.try_recv() {
            Ok(status) => Err(anyhow!("ended at once: {}", status?)),
            Err(_) => Ok(()),
        }
    }

    /// Kills the program.
    pub fn kill(&self) {
        // The program may have ended already.
        let _ = kill_process(self.pid, Signal::KILL);
    }

    /// The program's output so far.
    pub fn printed(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Waits for a child in a thread: checking repeatedly would take processor time from the measured
/// programs.
fn watch(mut child: Child) -> Receiver<std::io::Result<ExitStatus>> {
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || {
        // The receiver may be gone.
        let _ = sender.send(child.wait());
    });
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, log: &Path) -> Process {
        let argv = ["sh", "-c", script].map(str::to_owned);
        Process::start(&argv, log).unwrap()
    }

    #[test]
    fn output_and_status_are_those_of_the_program() {
        let dir = tempfile::tempdir().unwrap();
        let process = sh("echo out; echo err >&2; exit 3", &dir.path().join("log"));
        let (status, text) = process.finish(Duration::from_secs(60)).unwrap();
        assert_eq!((status.code(), text.as_str()), (Some(3), "out\nerr\n"));
    }

    #[test]
    fn what_takes_too_long_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let process = sh("echo begun; exec sleep 600", &dir.path().join("log"));
        let error = process.finish(Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("not finished"));
        // A killed program has no exit code.
        let (status, _) = process.finish(Duration::from_secs(60)).unwrap();
        assert_eq!(status.code(), None);
    }
}
