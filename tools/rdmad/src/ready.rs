// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Reports the readiness of the daemon to a pipe and to a service manager.

use std::env;
use std::fs::File;
use std::io::{self, Write};

use anyhow::{Context, Result};
use rustix::process::getppid;
use supervisor::{Manager, NOTIFY_SOCKET};

/// The environment variable of a service manager that waits for reports (sd_watchdog_enabled(3)).
const WATCHDOG: &str = "WATCHDOG_USEC";
/// The environment variable with the number of the process that reports, which is the supervisor.
const WATCHED: &str = "WATCHDOG_PID";

/// The pipe and the service manager to notify, if there are any. The pipe and the manager's socket
/// are opened before the threads are confined, because the sandbox denies opening files.
#[derive(Debug)]
pub struct Listeners {
    pipe: Option<Pipe>,
    manager: Option<Manager>,
    is_watched: bool,
}

impl Listeners {
    /// Opens the pipe of the descriptor `ready_fd`, and connects to the service manager. Its
    /// failures are only logged.
    ///
    /// # Errors
    ///
    /// The pipe can't be opened.
    pub fn open(ready_fd: Option<u32>) -> Result<Self> {
        let pipe = ready_fd.map(Pipe::open).transpose()?;
        let manager = Manager::connect().unwrap_or_else(|error| {
            warn(&error);
            None
        });
        Ok(Self {
            pipe,
            manager,
            is_watched: is_watched(),
        })
    }

    /// Reports that QEMU may be started.
    ///
    /// # Errors
    ///
    /// Writing to the pipe fails.
    pub fn ready(&self) -> Result<()> {
        self.tell("READY=1");
        self.pipe.as_ref().map_or(Ok(()), Pipe::tell)
    }

    /// Reports that the daemon works, if the service manager ends daemons that do not.
    pub fn alive(&self) {
        if self.is_watched {
            self.tell("WATCHDOG=1");
        }
    }

    /// Reports that the daemon ends.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    fn tell(&self, message: &str) {
        if let Some(Err(error)) = self.manager.as_ref().map(|manager| manager.tell(message)) {
            warn(&error);
        }
    }
}

/// Whether the service manager waits for reports of this daemon.
fn is_watched() -> bool {
    let process = env::var(WATCHED).ok();
    let supervisor = getppid().map(|it| it.as_raw_nonzero().to_string());
    env::var_os(WATCHDOG).is_some() && (process.is_none() || process == supervisor)
}

/// The file descriptor of `--ready-fd`.
#[derive(Debug)]
struct Pipe {
    fd: u32,
    file: File,
}

impl Pipe {
    fn open(fd: u32) -> Result<Self> {
        // Opened again by its path in /proc: other code may own the descriptor with this number.
        let file = File::options()
            .write(true)
            .open(format!("/proc/self/fd/{fd}"))
            .with_context(|| Self::failure(fd))?;
        Ok(Self { fd, file })
    }

    fn tell(&self) -> Result<()> {
        let written = (&self.file).write_all(b"ready\n");
        written.with_context(|| Self::failure(self.fd))
    }

    fn failure(fd: u32) -> String {
        format!("can't write to file descriptor {fd}")
    }
}

fn warn(error: &io::Error) {
    let name = env::var_os(NOTIFY_SOCKET).unwrap_or_default();
    let name = name.to_string_lossy();
    tracing::warn!("can't notify the service manager ({NOTIFY_SOCKET}={name}): {error}");
}
