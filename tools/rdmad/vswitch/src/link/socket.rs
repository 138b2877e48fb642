// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The sockets and tap interfaces of links, and the configuration of uplinks.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use roce::Frame;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::sockopt;
use sockets::{Access, SocketPath};

use crate::net_stream::NetStream;
use crate::tap::Tap;
use crate::udp::Udp;
use crate::unix_uplink::UnixUplink;

/// Requested size of a socket's receive buffer in bytes. The kernel may grant less.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Requested size of a socket's send buffer in bytes: enough for the windows of a few connections.
/// In a larger buffer a retransmitted packet would wait behind its original.
const SEND_BUFFER: usize = 1 << 20;

/// The paths of two Unix datagram sockets. Each datagram is a raw frame, or a greeting or a batch
/// between switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramPath {
    /// The socket that the switch binds.
    pub local: PathBuf,
    /// The socket that the switch sends frames to. It may disappear and return.
    pub remote: PathBuf,
}

/// An uplink to another switch or to a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// Unix datagrams from and to one remote end: raw frames, or greetings and batches between
    /// switches.
    Unix(DatagramPath),
    /// UDP datagrams, each a raw frame, from and to one remote end.
    Udp {
        /// Address that the switch binds.
        bind: SocketAddr,
        /// Address of the remote end.
        remote: SocketAddr,
    },
    /// A tap interface, by its name.
    Tap(String),
}

#[derive(Debug)]
pub(super) enum Socket {
    /// The network interface of a VM.
    Net(NetStream),
    Unix(UnixUplink),
    Udp(Udp),
    Tap(Tap),
}

impl Socket {
    /// Sends the first of `frames`, and the following frames as far as the socket can send several
    /// by one call. `frames` must not be empty. Returns the number of frames sent.
    pub(super) fn send_first(&mut self, frames: &mut VecDeque<Frame>) -> Result<usize, Errno> {
        match self {
            Self::Udp(socket) => socket.send(frames),
            Self::Unix(uplink) => uplink.send_first(frames),
            Self::Net(stream) => stream.send_first(frames),
            Self::Tap(_) => self.send(&frames[0]).map(|()| 1),
        }
    }

    /// Sends one frame. A frame on a [stream](Self::is_stream) waits in the backlog instead: a part
    /// of it may be sent before the rest.
    pub(super) fn send(&mut self, frame: &[u8]) -> Result<(), Errno> {
        match self {
            Self::Net(_) => Err(Errno::AGAIN),
            Self::Unix(uplink) => uplink.send(frame),
            Self::Udp(socket) => socket.send_one(frame),
            Self::Tap(tap) => tap.send(frame),
        }
    }

    /// Whether a send may end within a frame.
    pub(super) const fn is_stream(&self) -> bool {
        matches!(self, Self::Net(_))
    }

    /// Whether a frame can be sent at all. Only a network interface tells.
    pub(super) const fn is_connected(&self) -> bool {
        match self {
            Self::Net(stream) => stream.is_connected(),
            Self::Unix(_) | Self::Udp(_) | Self::Tap(_) => true,
        }
    }
}

/// Binds a socket that receives frames.
pub(super) fn bind(path: &DatagramPath, access: &Access) -> io::Result<(UnixDatagram, SocketPath)> {
    let (socket, at) = sockets::datagram(&path.local, access).map_err(io::Error::other)?;
    socket.set_nonblocking(true)?;
    enlarge(socket.as_fd());
    Ok((socket, at))
}

/// The error number of a failed operation on a socket.
pub(crate) fn errno(error: impl Into<io::Error>) -> Errno {
    Errno::from_io_error(&error.into()).unwrap_or(Errno::IO)
}

/// Requests large buffers, larger than the host's limit if the daemon has the privilege. Ignores
/// errors.
pub(super) fn enlarge(socket: BorrowedFd<'_>) {
    let _ = sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BUFFER));
    let _ = sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER);
}
