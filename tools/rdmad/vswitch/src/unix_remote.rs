// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A Unix datagram socket that is connected to one remote end.
//!
//! The socket is connected to the remote end, which may restart. If the remote end is connected to
//! this socket too, like another switch, the kernel queues as many bytes as the sender's buffer
//! holds. Otherwise it queues only `net.unix.max_dgram_qlen` datagrams, 10 by default, so both
//! sides wake up for every 10 datagrams. In both cases epoll reports when there is room again.
//!
//! While the socket is connected, the kernel refuses datagrams of all others. Until then, every
//! process that may write to the socket's file can send, so nothing that arrived before counts.

use std::io::{self, IoSlice};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use sockets::RemoteSocket;

use crate::link::errno;

/// Maximum number of datagrams that wait in a socket: `net.unix.max_dgram_qlen`, 10 to 512 by
/// default, unless the sender is connected.
const MAX_WAITING: usize = 1 << 16;

/// The socket, and the path of the remote end.
#[derive(Debug)]
pub(crate) struct UnixRemote {
    remote: RemoteSocket,
    connected: bool,
    /// Number of times that the socket was connected after it had none.
    connections: u64,
}

impl UnixRemote {
    /// Combines a socket with the path of the remote end. Connects the socket if the remote end
    /// exists.
    pub(crate) fn new(socket: UnixDatagram, path: PathBuf) -> io::Result<Self> {
        Ok(Self::of(RemoteSocket::new(socket, path)?))
    }

    /// Connects the socket of `remote` if the remote end exists.
    pub(crate) fn of(remote: RemoteSocket) -> Self {
        let mut remote = Self {
            remote,
            connected: false,
            connections: 0,
        };
        remote.reconnect();
        remote
    }

    /// Connects to the present socket at the remote end's path. Must be called periodically: a
    /// restarted remote end can't send to this socket before the call, so nothing else reports the
    /// restart.
    pub(crate) fn reconnect(&mut self) {
        let _ = self.connect();
    }

    fn connect(&mut self) -> Result<(), Errno> {
        let connected = self.remote.connect().map_err(errno);
        // After a failed connect the socket is still connected to the old remote end. If that one
        // has ended, sending fails.
        if connected.is_ok() && !self.connected {
            self.connected = true;
            self.connections += 1;
            self.discard_waiting();
        }
        connected
    }

    /// Discards the datagrams that arrived before the connection. Any process may have sent them.
    fn discard_waiting(&self) {
        let is_there = || rustix::net::recv(self, &mut [0; 1][..], RecvFlags::empty()).is_ok();
        let _ = (0..MAX_WAITING).take_while(|_| is_there()).count();
    }

    /// Number of the connection, or `None` once the remote end was found gone. If
    /// [`reconnect`](Self::reconnect) finds a successor before that, the number does not change.
    pub(crate) fn connection(&self) -> Option<u64> {
        self.connected.then_some(self.connections)
    }

    /// Sends a datagram in parts to the present remote end, never to a successor.
    pub(crate) fn send_connected(&mut self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        if !self.connected {
            return Err(Errno::NOTCONN);
        }
        let sent = rustix::io::writev(self.remote.socket(), parts).map(drop);
        self.note(sent)
    }

    /// Sends a datagram. If the remote end is gone, connects to its successor first.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        if self.connected {
            match self.try_send(bytes) {
                Err(error) if is_gone(error) => {}
                sent => return sent,
            }
        }
        self.connect()?;
        self.try_send(bytes)
    }

    fn try_send(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let sent = rustix::net::send(self.remote.socket(), bytes, SendFlags::NOSIGNAL).map(drop);
        self.note(sent)
    }

    /// Notes that the remote end is gone: with this error, the kernel has disconnected the socket.
    fn note(&mut self, sent: Result<(), Errno>) -> Result<(), Errno> {
        if let Err(error) = sent {
            self.connected &= !is_gone(error);
        }
        sent
    }
}

/// Whether an error of a send means that the remote end is gone.
pub(crate) fn is_gone(error: Errno) -> bool {
    matches!(
        error,
        Errno::CONNREFUSED | Errno::CONNRESET | Errno::NOTCONN
    )
}

impl AsFd for UnixRemote {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.remote.socket().as_fd()
    }
}
