// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The replacement of the running program by the one that is at its path now.
//!
//! The new program is executed in the process of the supervisor, whose number the service manager
//! and the users know. Descriptors stay open, and the memory of the engines is a file.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStderr, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{fcntl_setfl, OFlags};

use crate::child;
use crate::inherited;

/// The environment variable with which the new program finds what the old one has left: the
/// descriptors of the memory, of the state, and those that the program had before it started an
/// engine.
const LEFT: &str = "VIRTIO_RDMAD_LEFT";
/// The option with which the new program is asked whether it understands the memory.
const OPTION: &str = "--takes-over";
/// How long the new program may take to answer. If the engine dies meanwhile, its VMs wait, and
/// QEMU does so for 5 s.
const PATIENCE: Duration = Duration::from_secs(3);
const INTERVAL: Duration = Duration::from_millis(5);

/// The program at the path of this one.
#[derive(Debug)]
pub(crate) struct Successor {
    path: PathBuf,
    arguments: Vec<OsString>,
    /// The version of the memory's content, and its size: what the new program must understand.
    format: String,
}

/// Things that the program before this one in this process has left.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) memory: File,
    /// The file of the state of the last engine.
    pub(crate) state: File,
    /// Descriptors that no engine has opened.
    pub(crate) own: BTreeSet<RawFd>,
}

impl Successor {
    pub(crate) fn new(format: &str, len: usize) -> io::Result<Self> {
        let mut arguments = env::args_os();
        // A link on the path may lead to another version later.
        let path = arguments.next().map(PathBuf::from);
        let path = path.filter(|path| path.is_absolute() && path.exists());
        Ok(Self {
            path: path.map_or_else(env::current_exe, Ok)?,
            arguments: arguments.collect(),
            format: super::format(format, len),
        })
    }

    /// Checks whether the program accepts the command line and understands the memory.
    ///
    /// # Errors
    ///
    /// It can't be started, or does not take over.
    pub(crate) fn check(&self) -> Result<(), String> {
        let told = |error| format!("{} can't be started: {error}", self.path.display());
        let mut program = Command::new(&self.path)
            .args(&self.arguments)
            .args([OPTION, &self.format])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(told)?;
        let until = Instant::now() + PATIENCE;
        loop {
            match program.try_wait().map_err(told)? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    let reason = program.stderr.as_mut().map(reason).unwrap_or_default();
                    let path = self.path.display();
                    return Err(format!("{path} does not take over: {status}{reason}"));
                }
                None if Instant::now() > until => {
                    // A child that was killed is waited for.
                    let _ = program.kill().and_then(|()| program.wait());
                    return Err(format!("{} does not answer", self.path.display()));
                }
                None => thread::sleep(INTERVAL),
            }
        }
    }

    /// Executes the program, with `left`, the descriptors of the last engine. Returns only if that
    /// fails.
    pub(crate) fn take_over(
        &self,
        memory: &File,
        state: &File,
        own: &BTreeSet<RawFd>,
        left: &BTreeSet<RawFd>,
    ) -> io::Error {
        let files = [memory, state].map(|file| file.as_raw_fd());
        let numbers = files.into_iter().chain(own.iter().copied());
        let numbers: Vec<_> = numbers.map(|number| number.to_string()).collect();
        let kept = left | &BTreeSet::from(files);
        let prepared = inherited::set_kept_over_exec(&kept, true);
        let error = match prepared {
            Ok(()) => Command::new(&self.path)
                .args(&self.arguments)
                .env(LEFT, numbers.join(" "))
                .exec(),
            Err(error) => error,
        };
        child::ignore_broken_pipes();
        // The next engine belongs to this program, and starts other programs.
        let _ = inherited::set_kept_over_exec(&kept, false);
        error
    }
}

/// The first lines that a program has written to `stderr`, after a colon.
fn reason(stderr: &mut ChildStderr) -> String {
    let mut text = [0; 512];
    // A child of the program may hold the pipe open, so the read must not wait.
    let read = fcntl_setfl(&*stderr, OFlags::NONBLOCK).map(|()| stderr.read(&mut text));
    let len = read.map_or(0, Result::unwrap_or_default);
    match String::from_utf8_lossy(&text[..len]).trim() {
        "" => String::new(),
        text => format!(": {text}"),
    }
}

impl Left {
    /// Takes what the program before this one has left. `None` if there was none.
    pub(crate) fn take() -> Option<Self> {
        let left = env::var(LEFT).ok()?;
        env::remove_var(LEFT);
        let numbers = left.split(' ').map(str::parse::<RawFd>);
        let numbers: Vec<_> = numbers.collect::<Result<_, _>>().ok()?;
        let [memory, state, own @ ..] = numbers.as_slice() else {
            return None;
        };
        Some(Self {
            memory: inherited::take_over(*memory)?.into(),
            state: inherited::take_over(*state)?.into(),
            own: own.iter().copied().collect(),
        })
    }
}
