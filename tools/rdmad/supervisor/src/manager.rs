// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The service manager that has started the process, such as systemd: messages to it
//! (sd_notify(3)), and descriptors that it has kept from a process before this one
//! (sd_listen_fds(3)).

use std::env;
use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::net::{sendmsg, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::getpid;

/// The environment variable with the address of the service manager's socket (sd_notify(3)).
pub const NOTIFY_SOCKET: &str = "NOTIFY_SOCKET";
/// The environment variable with the number of descriptors that the service manager keeps at most.
const STORE: &str = "FDSTORE";
/// The environment variables with the process to which the service manager passes descriptors,
/// their number, and their names, which are separated by colons.
const PASSED: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];
/// The first descriptor that a service manager passes.
const FIRST_PASSED: RawFd = 3;

/// A connection to the service manager.
#[derive(Debug)]
pub struct Manager(UnixDatagram);

impl Manager {
    /// Connects to the service manager that [`NOTIFY_SOCKET`] names. Returns `None` if it names
    /// none.
    ///
    /// # Errors
    ///
    /// The manager can't be reached. The variable may be inherited from a process whose service
    /// manager does not manage this one.
    pub fn connect() -> io::Result<Option<Self>> {
        let Some(name) = env::var_os(NOTIFY_SOCKET).filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let address = address(&name)?;
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        // No thread waits for a service manager.
        socket.set_nonblocking(true)?;
        Ok(Some(Self(socket)))
    }

    /// Tells the manager something, such as `READY=1`.
    ///
    /// # Errors
    ///
    /// The manager does not receive the message: with [`io::ErrorKind::WouldBlock`], not yet.
    pub fn tell(&self, message: &str) -> io::Result<()> {
        self.0.send(message.as_bytes()).map(drop)
    }

    /// Gives the manager a file to keep, with a name that none of its files has. The manager
    /// ignores a file that it keeps already. It closes a connection whose peer is gone.
    ///
    /// # Errors
    ///
    /// As those of [`tell`](Self::tell).
    pub(crate) fn keep(&self, name: &str, file: BorrowedFd<'_>) -> io::Result<()> {
        let message = format!("FDSTORE=1\nFDNAME={name}");
        let files = [file];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        let message = [IoSlice::new(message.as_bytes())];
        sendmsg(&self.0, &message, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Makes the manager close the files that it keeps with this name.
    ///
    /// # Errors
    ///
    /// As those of [`tell`](Self::tell).
    pub(crate) fn forget(&self, name: &str) -> io::Result<()> {
        self.tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}"))
    }
}

#[cfg(test)]
impl From<UnixDatagram> for Manager {
    fn from(socket: UnixDatagram) -> Self {
        Self(socket)
    }
}

impl AsFd for Manager {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
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

/// The number of descriptors that the service manager keeps at most; 0 if it keeps none.
/// Managers before systemd 254 do not tell it, so the unit sets the variable too.
pub(crate) fn capacity() -> u32 {
    let most = env::var(STORE).ok().and_then(|most| most.parse().ok());
    most.unwrap_or(0)
}

/// The names and numbers of the descriptors that the service manager has passed to this process.
/// Programs that it starts are not told of them.
pub(crate) fn passed() -> Vec<(String, RawFd)> {
    let [process, count, names] = PASSED.map(|variable| {
        let value = env::var(variable).ok();
        env::remove_var(variable);
        value.unwrap_or_default()
    });
    if process != getpid().as_raw_nonzero().to_string() {
        return Vec::new();
    }
    let count = count.parse().unwrap_or(0);
    let names = names.split(':').map(str::to_owned);
    names.zip(FIRST_PASSED..).take(count).collect()
}
