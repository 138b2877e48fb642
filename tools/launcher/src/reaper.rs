// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Child processes that are killed and reaped on drop, and their logs.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::iter;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

use crate::child;
use crate::untrusted::create;

/// Interval at which a wait checks again.
const POLL: Duration = Duration::from_millis(20);

/// Maximum number of bytes of a log that are held in memory: a guest may write any number.
const MAX_NEW: u64 = 16 << 20;

/// A child process that is killed and reaped on drop.
pub struct ReapedChild(pub Child);

impl ReapedChild {
    /// Starts a command with its output in the file `log`. The terminal's Ctrl-C does not reach the
    /// process, so that this program can end the process in an orderly way.
    pub fn spawn(command: &mut Command, log: &Path) -> Result<Self> {
        Self::spawn_with(command, log, &[])
    }

    /// Like [`spawn`](Self::spawn). The process inherits `files` under the same numbers.
    pub fn spawn_with(command: &mut Command, log: &Path, files: &[BorrowedFd<'_>]) -> Result<Self> {
        let file = create(log).with_context(|| format!("can't create {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0);
        let child = child::spawn(command, files);
        let program = command.get_program().to_string_lossy();
        let child = child.with_context(|| format!("can't start {program}"))?;
        Ok(Self(child))
    }

    /// Whether the process is running.
    pub fn runs(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Processor time of the process's threads that are running.
    pub fn processor_time(&self) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0.id()));
        let nanoseconds = tasks.into_iter().flatten().flatten().filter_map(|task| {
            let times = fs::read_to_string(task.path().join("schedstat")).ok()?;
            times.split(' ').next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(nanoseconds.sum())
    }

    /// Waits until `ready` returns a value. Fails if the process ends before that, or if the wait
    /// takes longer than `limit`.
    pub fn until<T>(
        &mut self,
        limit: Duration,
        mut ready: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let until = Instant::now() + limit;
        loop {
            if let Some(value) = ready()? {
                return Ok(value);
            }
            if let Some(status) = self.0.try_wait()? {
                bail!("it has ended: {status}");
            }
            if Instant::now() > until {
                bail!("it is not ready after {} s", limit.as_secs());
            }
            thread::sleep(POLL);
        }
    }

    /// Waits for the end of the process. `None` if it still runs after `limit`.
    pub fn ends_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + limit;
        loop {
            match self.0.try_wait() {
                Ok(None) if Instant::now() < until => thread::sleep(POLL),
                status => return status.ok().flatten(),
            }
        }
    }
}

impl Drop for ReapedChild {
    fn drop(&mut self) {
        // The child may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A log that is read piece by piece.
pub struct Log {
    pub file: PathBuf,
    /// Number of bytes that were read.
    seen: u64,
    /// Maximum number of bytes that are read at a time.
    max: u64,
}

impl Log {
    /// A log of which nothing was read.
    pub fn new(file: PathBuf) -> Self {
        Self {
            file,
            seen: 0,
            max: MAX_NEW,
        }
    }

    /// The whole lines since the last call, up to the present end of the file, in pieces of at most
    /// [`MAX_NEW`] bytes.
    pub fn new_lines(&mut self) -> impl Iterator<Item = String> + '_ {
        let end = fs::metadata(&self.file).map_or(0, |file| file.len());
        iter::from_fn(move || Some(self.piece(end)).filter(|piece| !piece.is_empty()))
    }

    /// The next piece before the byte `limit`; empty at the end.
    fn piece(&mut self, limit: u64) -> String {
        let max = self.max.min(limit.saturating_sub(self.seen));
        let new = self.bytes(max).unwrap_or_default();
        // An incomplete last line is returned by a later call, unless it is too long.
        let end = new.iter().rposition(|byte| *byte == b'\n');
        let end = match end.map(|at| at + 1) {
            None if new.len() as u64 == self.max => new.len(),
            end => end.unwrap_or(0),
        };
        self.seen += end as u64;
        String::from_utf8_lossy(&new[..end]).into_owned()
    }

    fn bytes(&self, max: u64) -> io::Result<Vec<u8>> {
        let mut log = File::open(&self.file)?;
        log.seek(SeekFrom::Start(self.seen))?;
        let mut bytes = Vec::new();
        log.take(max).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_log_is_read_by_whole_lines() {
        let file = std::env::temp_dir().join(format!("log.{}", std::process::id()));
        let mut to = File::create(&file).unwrap();
        let mut log = Log {
            max: 8,
            ..Log::new(file.clone())
        };
        let mut expect = |lines: &[&str]| assert_eq!(Vec::from_iter(log.new_lines()), lines);
        to.write_all(b"one\ntwo\nthr").unwrap();
        expect(&["one\ntwo\n"]);
        expect(&[]);
        to.write_all(b"ee\n").unwrap();
        expect(&["three\n"]);
        // No line is left for a later call, however long the log is, or a line.
        to.write_all(b"four\nfive\nsix\nseventeen\nend\n").unwrap();
        expect(&["four\n", "five\n", "six\n", "seventee", "n\nend\n"]);
        fs::remove_file(&file).unwrap();
        expect(&[]);
    }

    #[test]
    fn what_ends_is_not_ready() {
        let file = std::env::temp_dir().join(format!("child.{}", std::process::id()));
        let limit = Duration::from_secs(60);
        let sh =
            |script| ReapedChild::spawn(Command::new("sh").args(["-c", script]), &file).unwrap();
        let error = sh("exit 3").until(limit, || Ok(None::<()>)).unwrap_err();
        assert!(error.to_string().contains("status: 3"), "{error}");
        assert_eq!(sh("sleep 600").until(limit, || Ok(Some(7))).unwrap(), 7);
        assert!(sh("sleep 600").ends_within(Duration::ZERO).is_none());
        assert!(sh("true").ends_within(limit).unwrap().success());
        fs::remove_file(file).unwrap();
    }
}
