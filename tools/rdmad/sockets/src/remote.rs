// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A datagram socket and the path of its peer, which comes and goes.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::keeper::Errand;

/// How long a peer is not looked for again that was not there: asking the keeper takes two switches
/// of threads, which would slow down who sends frames to nobody.
const PAUSE: Duration = Duration::from_millis(10);

/// A socket that can be connected to a path at any time.
#[derive(Debug)]
pub struct Remote {
    socket: UnixDatagram,
    path: PathBuf,
    /// Connecting, where the process itself may not.
    errand: Option<Errand>,
    /// The last attempt that failed, and with what.
    failed: Option<(Instant, io::ErrorKind)>,
}

impl Remote {
    /// A socket and the path of its peer, which need not be there.
    ///
    /// # Errors
    ///
    /// The keeper does not take it.
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

    /// Connects the socket to the present owner of the path.
    ///
    /// # Errors
    ///
    /// Nobody is there.
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
