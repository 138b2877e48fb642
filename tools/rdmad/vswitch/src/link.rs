// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Links, by which the process receives and sends frames: datagram sockets and tap interfaces.

mod send;
mod socket;
#[cfg(test)]
mod tests;

use std::io;
use std::mem;
use std::time::{Duration, Instant};

use roce::{Frame, FramePool};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use sockets::{Access, NetSockets, SocketPath};

use crate::backlog::Backlog;
use crate::tap::Tap;
use crate::udp::Udp;
use crate::unix_peer::UnixPeer;
use crate::unix_uplink::UnixUplink;

pub(crate) use send::{Delivery, Sender, Waits, BACKLOG};
pub(crate) use socket::errno;
pub use socket::{open_net, DatagramPath, Uplink};

use socket::{bind, enlarge, Socket};

/// Minimum interval between logged errors of one link.
const COMPLAINT: Duration = Duration::from_secs(60);

/// The result of reading from a link.
#[derive(Debug)]
pub(crate) enum Received {
    /// A frame of this length in bytes, in the caller's buffer. The length exceeds that of the
    /// buffer if the frame did not fit.
    Here(usize),
    /// A frame in another buffer.
    Frame(Frame),
    /// This number of frames was lost for lack of buffers.
    Lost(usize),
    /// A datagram was refused.
    Refused,
    /// A datagram without a frame was handled.
    Nothing,
}

/// Why a read from a link failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A transient error, or an error of an earlier send that is reported late, because the peer is
    /// absent or an ICMP message arrived.
    Passes(Errno),
    /// The interface was deleted. epoll would report it as readable for ever.
    Gone(Errno),
}

/// A socket or tap interface, and the frames that wait for room in it.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Socket,
    backlog: Backlog,
    /// Time when the socket last accepted a frame of the backlog, or when the first frame was added
    /// to the empty backlog.
    waiting: Instant,
    /// Whether the link is stalled: the socket has accepted no frame for [`STALL`], or the oldest
    /// frame has waited for [`AGE`].
    stalled: bool,
    /// Whether the tap interface was deleted.
    gone: bool,
    /// When an error was last logged.
    complained: Option<Instant>,
    /// The event that the frames in the backlog wait for.
    waits: Waits,
    /// Number of dropped frames that [`retry`](Self::retry) has yet to report.
    dropped: usize,
    /// Whether epoll watches the link for room.
    pub(crate) watched: bool,
    /// Path of a Unix socket, which is removed with the link.
    _path: Option<SocketPath>,
}

impl Link {
    /// A link to a network interface by these sockets.
    pub(crate) fn of_net(sockets: NetSockets) -> io::Result<Self> {
        let NetSockets {
            socket,
            path,
            remote,
        } = sockets;
        for socket in [&socket, remote.socket()] {
            socket.set_nonblocking(true)?;
        }
        let peer = UnixPeer::of(remote);
        Ok(Self::new(Socket::Net { socket, peer }, Some(path)))
    }

    pub(crate) fn open(uplink: Uplink, access: &Access) -> io::Result<Self> {
        Ok(match uplink {
            Uplink::Unix(path) => {
                let (socket, at) = bind(&path, access)?;
                let uplink = UnixUplink::new(socket, path.remote)?;
                Self::new(Socket::Unix(uplink), Some(at))
            }
            Uplink::Udp { bind, peer } => {
                let socket = Udp::open(bind, peer)?;
                enlarge(socket.as_fd());
                Self::new(Socket::Udp(socket), None)
            }
            Uplink::Tap(name) => Self::new(Socket::Tap(Tap::open(&name)?), None),
        })
    }

    fn new(socket: Socket, path: Option<SocketPath>) -> Self {
        Self {
            socket,
            backlog: Backlog::default(),
            waiting: Instant::now(),
            stalled: false,
            gone: false,
            complained: None,
            waits: Waits::No,
            dropped: 0,
            watched: false,
            _path: path,
        }
    }

    /// Searches for a restarted peer, if the link is a Unix socket.
    pub(crate) fn renew(&mut self) {
        match &mut self.socket {
            Socket::Net { peer, .. } => peer.renew(),
            Socket::Unix(uplink) => uplink.renew(),
            Socket::Udp(_) | Socket::Tap(_) => {}
        }
    }

    /// Whether the other end accepts frames without an ICRC.
    pub(crate) fn offloads_icrc(&self) -> bool {
        matches!(&self.socket, Socket::Unix(uplink) if uplink.takes_batches())
    }

    /// Reads the next frame, into `into` or a buffer of `pool`. `None` if there is no input.
    pub(crate) fn receive(
        &mut self,
        into: &mut [u8],
        pool: &FramePool,
    ) -> Result<Option<Received>, Trouble> {
        let received = match &mut self.socket {
            Socket::Tap(tap) => tap.receive(into).map(Received::Here),
            Socket::Udp(socket) => socket.receive(into).map(Received::Here),
            Socket::Net { socket, .. } => rustix::net::recv(socket, into, RecvFlags::TRUNC)
                .map(|(_, len)| Received::Here(len)),
            Socket::Unix(uplink) => uplink.receive(into, pool),
        };
        match received {
            Ok(received) => Ok(Some(received)),
            Err(Errno::AGAIN) => Ok(None),
            Err(error @ (Errno::INTR | Errno::NOMEM | Errno::NOBUFS)) => {
                Err(Trouble::Passes(error))
            }
            // A socket stays usable after an error. A tap interface that fails was deleted.
            Err(error) => Err(match self.socket {
                Socket::Tap(_) => Trouble::Gone(error),
                Socket::Net { .. } | Socket::Unix(_) | Socket::Udp(_) => Trouble::Passes(error),
            }),
        }
    }

    /// Whether to log an error at `now`. Returns true at most once in [`COMPLAINT`].
    pub(crate) fn may_complain(&mut self, now: Instant) -> bool {
        let long_ago = |at| now.saturating_duration_since(at) >= COMPLAINT;
        let may = self.complained.is_none_or(long_ago);
        if may {
            self.complained = Some(now);
        }
        may
    }

    /// Handles the deletion of the interface. Returns the number of waiting frames that are lost.
    pub(crate) fn lose(&mut self) -> usize {
        self.gone = true;
        self.watched = false;
        self.waits = Waits::No;
        self.backlog.clear() + mem::take(&mut self.dropped)
    }

    /// Attaches again to an interface that was deleted. Returns whether that succeeded.
    pub(crate) fn find_again(&mut self) -> bool {
        match &mut self.socket {
            Socket::Tap(tap) if self.gone => {
                self.gone = tap.attach_again().is_err();
                !self.gone
            }
            _ => false,
        }
    }

    /// Whether the other end of the link may disappear and return, so that the event loop has to
    /// search for it from time to time.
    pub(crate) fn comes_and_goes(&self) -> bool {
        !matches!(self.socket, Socket::Udp(_))
    }

    /// Whether frames were read from the socket that [`receive`](Self::receive) has yet to return.
    pub(crate) fn has_arrived(&self) -> bool {
        match &self.socket {
            Socket::Udp(socket) => socket.has_arrived(),
            Socket::Unix(uplink) => uplink.has_arrived(),
            Socket::Net { .. } | Socket::Tap(_) => false,
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Net { socket, .. } => socket.as_fd(),
            Socket::Unix(uplink) => uplink.as_fd(),
            Socket::Udp(socket) => socket.as_fd(),
            Socket::Tap(tap) => tap.as_fd(),
        }
    }
}
