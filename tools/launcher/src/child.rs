// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Child processes and directories that are removed when this process ends, even if it is killed.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::os::unix::process::{parent_id, CommandExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{bail, Context, Result};
use rustix::io::{fcntl_setfd, FdFlags};
use rustix::process::{set_parent_process_death_signal, setsid, Signal};

/// Subcommand of this program that executes another program, which is killed with its parent.
pub const CHILD: &str = "child";
/// Subcommand of this program that removes a directory when its parent has ended.
pub const CLEANER: &str = "cleaner";

/// A command to which the caller adds a program and its arguments. The process is killed when the
/// thread that has started it ends.
pub fn command() -> Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.arg(CHILD).arg(std::process::id().to_string());
    Ok(command)
}

/// Held while a process starts. Otherwise a process that another thread starts at this moment could
/// inherit the files too, and their far ends would not notice the end of the process.
static START: Mutex<()> = Mutex::new(());

/// Starts a process that inherits `files` under the same numbers. The caller closes its own files
/// afterwards. All processes that outlive a function of this program are started here.
pub fn spawn(command: &mut Command, files: &[BorrowedFd<'_>]) -> io::Result<Child> {
    let _start = START.lock().unwrap_or_else(PoisonError::into_inner);
    for file in files {
        fcntl_setfd(file, FdFlags::empty())?;
    }
    let child = command.spawn();
    for file in files {
        fcntl_setfd(file, FdFlags::CLOEXEC)?;
    }
    child
}

/// Executes a program that is killed with its parent. `words` has the parent's process id, the
/// program and its arguments.
pub fn become_program(words: &[OsString]) -> Result<u8> {
    let [parent, program, arguments @ ..] = words else {
        bail!("{CHILD} PARENT PROGRAM [ARGUMENT...]");
    };
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before the death signal was set.
    if parent.to_str() != Some(&parent_id().to_string()) {
        bail!("the parent has ended");
    }
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("can't start {}", Path::new(program).display()))
}

/// Waits for the end of standard input and removes a directory.
pub fn clean(words: &[OsString]) -> Result<u8> {
    let [dir] = words else {
        bail!("{CLEANER} DIRECTORY");
    };
    // A new session receives no signals of the terminal.
    setsid()?;
    let mut all = Vec::new();
    io::stdin().read_to_end(&mut all)?;
    fs::remove_dir_all(dir)?;
    Ok(0)
}

/// A directory that is removed on drop, or when this process is killed.
pub struct Kept {
    dir: PathBuf,
    cleaner: Child,
}

impl Kept {
    /// Takes ownership of a directory.
    pub fn new(dir: PathBuf) -> Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command
            .arg(CLEANER)
            .arg(&dir)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let cleaner = spawn(&mut command, &[]);
        let cleaner = cleaner.context("can't start the cleaner of the run's files")?;
        Ok(Self { dir, cleaner })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        drop(self.cleaner.stdin.take());
        let _ = self.cleaner.wait();
    }
}
