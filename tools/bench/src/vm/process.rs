// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Programs with what they print in a file, and an end to their time.

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
    /// Starts one; `log` is overwritten.
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

    /// Waits for its end; one that takes longer is killed. Returns its output, with its status.
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

    /// An error if it has ended.
    pub fn check(&self) -> Result<()> {
        match self.ended.try_recv() {
            Ok(status) => Err(anyhow!("ended at once: {}", status?)),
            Err(_) => Ok(()),
        }
    }

    /// Ends it.
    pub fn kill(&self) {
        // It may have ended already.
        let _ = kill_process(self.pid, Signal::KILL);
    }

    /// Its output so far.
    pub fn printed(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Waits in a thread of its own: a waiter that looks again and again would take the processor from
/// what is measured.
fn watch(mut child: Child) -> Receiver<std::io::Result<ExitStatus>> {
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || {
        // Nobody may care any more.
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
        // Its end is that of a killed program.
        let (status, _) = process.finish(Duration::from_secs(60)).unwrap();
        assert_eq!(status.code(), None);
    }
}
