// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A datagram socket and the path of the remote end, which may restart at any time.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{fstat, openat, FileType, Mode, OFlags, CWD};
use rustix::io::Errno;

use crate::broker::Errand;
use crate::is_trusted;

/// Pause after a failed connect before the next attempt. Each attempt is a request to the broker,
/// which costs two context switches: without the pause, sending to an absent remote end would be
/// slow.
const PAUSE: Duration = Duration::from_millis(10);

/// A socket that can be connected to a path at any time.
#[derive(Debug)]
pub struct RemoteSocket {
    socket: UnixDatagram,
    path: PathBuf,
    /// The broker's errand to connect the socket. `None` without a broker.
    errand: Option<Errand>,
    /// Time and error of the last attempt, if it failed.
    failed: Option<(Instant, io::ErrorKind)>,
}

impl RemoteSocket {
    /// Combines a socket with the path of the remote end. The path need not exist yet.
    ///
    /// # Errors
    ///
    /// The broker refuses the errand.
    pub fn new(socket: UnixDatagram, path: PathBuf) -> io::Result<Self> {
        Ok(Self {
            errand: Errand::connect(&socket, &path)?,
            socket,
            path,
            failed: None,
        })
    }

    pub fn socket(&self) -> &UnixDatagram {
        &self.socket
    }

    /// Connects the socket to the socket that is at the remote end's path now.
    ///
    /// # Errors
    ///
    /// No process has a socket at this path, or the socket belongs to another user.
    pub fn connect(&mut self) -> io::Result<()> {
        let Some(errand) = &self.errand else {
            return connect(&self.socket, &self.path);
        };
        if let Some((at, kind)) = self.failed {
            if at.elapsed() < PAUSE {
                return Err(kind.into());
            }
        }
        let connected = errand.run();
        let failure = connected.as_ref().err();
        self.failed = failure.map(|error| (Instant::now(), error.kind()));
        connected
    }
}

/// Connects `socket` to the socket at `path`, if the latter belongs to root or to the user of this
/// process: in a directory that others may write to, another program could own the socket.
pub(crate) fn connect(socket: &UnixDatagram, path: &Path) -> io::Result<()> {
    let file = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(Errno::CONNREFUSED.into());
    }
    if !is_trusted(stat.st_uid) {
        return Err(Errno::PERM.into());
    }
    // The descriptor names the file that was checked, even if `path` names another one by now.
    socket.connect(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    /// This test must run as root, or by tools/dev/enter, because it changes the owner of
    /// files.
    #[test]
    fn the_socket_of_another_user_is_no_peer() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let refusal = |name: &str| {
            let socket = UnixDatagram::unbound().unwrap();
            let mut remote = RemoteSocket::new(socket, at(name)).unwrap();
            remote.connect().map_err(|error| error.kind())
        };
        assert_eq!(refusal("remote"), Err(io::ErrorKind::NotFound));
        let _remote = UnixDatagram::bind(at("remote")).unwrap();
        symlink("remote", at("link")).unwrap();
        for name in ["remote", "link"] {
            refusal(name).unwrap();
        }
        chown(at("remote"), Some(1), None).unwrap();
        for name in ["remote", "link"] {
            assert_eq!(refusal(name), Err(io::ErrorKind::PermissionDenied));
        }
        std::fs::write(at("file"), "").unwrap();
        assert_eq!(refusal("file"), Err(io::ErrorKind::ConnectionRefused));
    }
}
