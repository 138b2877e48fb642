// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A datagram socket and the path of its peer, which may restart at any time.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::keeper::Errand;

/// Pause after a failed connect before the next attempt. Each attempt is a request to the keeper,
/// which costs two context switches: without the pause, sending to an absent peer would be slow.
const PAUSE: Duration = Duration::from_millis(10);

/// A socket that can be connected to a path at any time.
#[derive(Debug)]
pub struct RemoteSocket {
    socket: UnixDatagram,
    path: PathBuf,
    /// The keeper's errand to connect the socket. `None` without a keeper.
    errand: Option<Errand>,
    /// Time and error of the last attempt, if it failed.
    failed: Option<(Instant, io::ErrorKind)>,
}

impl RemoteSocket {
    /// Combines a socket with the path of its peer. The path need not exist yet.
    ///
    /// # Errors
    ///
    /// The keeper refuses the errand.
    pub fn new(socket: UnixDatagram, path: PathBuf) -> io::Result<Self> {
        Ok(Self {
            errand: Errand::connect(&socket, &path)?,
            socket,
            path,
            failed: None,
        })
    }

    /// The socket.
    pub fn socket(&self) -> &UnixDatagram {
        &self.socket
    }

    /// Connects the socket to the socket that is at the peer's path now.
    ///
    /// # Errors
    ///
    /// No process has a socket at this path.
    pub fn connect(&mut self) -> io::Result<()> {
        let Some(errand) = &self.errand else {
            return self.socket.connect(&self.path);
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
