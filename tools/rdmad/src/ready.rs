// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Reports the readiness of the daemon to a pipe and to a service manager.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use anyhow::{Context, Result};
use rustix::process::getppid;

/// The environment variable with the address of the service manager's socket (sd_notify(3)).
const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
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
    /// Opens the pipe of the descriptor `ready_fd`, and connects to the service manager that
    /// [`NOTIFY_SOCKET`] names.
    ///
    /// # Errors
    ///
    /// The pipe can't be opened.
    pub fn open(ready_fd: Option<u32>) -> Result<Self> {
        let pipe = ready_fd.map(Pipe::open).transpose()?;
        let manager = env::var_os(NOTIFY_SOCKET).filter(|name| !name.is_empty());
        let manager = manager.and_then(|name| Manager::connect(&name));
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
        if let Some(manager) = &self.manager {
            manager.tell("READY=1");
        }
        self.pipe.as_ref().map_or(Ok(()), Pipe::tell)
    }

    /// Reports that the daemon works, if the service manager ends daemons that do not.
    pub fn alive(&self) {
        if let Some(manager) = self.manager.as_ref().filter(|_| self.is_watched) {
            manager.tell("WATCHDOG=1");
        }
    }

    /// Reports that the daemon ends.
    pub fn stopping(&self) {
        if let Some(manager) = &self.manager {
            manager.tell("STOPPING=1");
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

/// A service manager.
///
/// Failures are only logged: the environment variable may be inherited from a process whose service
/// manager does not manage this daemon.
#[derive(Debug)]
struct Manager {
    name: String,
    socket: UnixDatagram,
}

impl Manager {
    fn connect(name: &OsStr) -> Option<Self> {
        let shown = name.to_string_lossy().into_owned();
        let connected = address(name).and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            socket.connect_addr(&address)?;
            // The thread has other work than to wait for a service manager.
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        match connected {
            Ok(socket) => Some(Self {
                name: shown,
                socket,
            }),
            Err(error) => {
                warn(&shown, &error);
                None
            }
        }
    }

    fn tell(&self, message: &str) {
        if let Err(error) = self.socket.send(message.as_bytes()) {
            warn(&self.name, &error);
        }
    }
}

fn warn(name: &str, error: &io::Error) {
    tracing::warn!("can't notify the service manager ({NOTIFY_SOCKET}={name}): {error}");
}

/// The address of a Unix socket in the file system or, after an `@`, in the abstract name space.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        [b'/', ..] => SocketAddr::from_pathname(name),
        _ => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "neither a path nor an abstract socket",
        )),
    }
}
