// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Links, by which the process receives and sends frames: sockets and tap interfaces.

mod send;
mod socket;
#[cfg(test)]
mod tests;

use std::io;
use std::mem;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use budget::{CallClock, LongCalls};
use roce::{Frame, FramePool};
use rustix::event::epoll::EventFlags;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use sockets::{Access, SocketPath};

use crate::backlog::Backlog;
use crate::index::PortIndex;
use crate::net_stream::NetStream;
use crate::tap::Tap;
use crate::udp::Udp;
use crate::unix_uplink::UnixUplink;

pub(crate) use send::{Delivery, Lost, Sender, BACKLOG, SLOW};
pub(crate) use socket::errno;
pub use socket::{DatagramPath, Uplink};

use send::Waits;
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
    /// A connection was accepted, which epoll must watch.
    Connected,
    /// A connection of a user who may not connect was closed.
    Stranger,
    /// The connection has ended, or is to be ended because of a malformed length of a frame.
    Closed(Option<u32>),
}

/// Why a read from a link failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A transient error, or an error of an earlier send that is reported late, because the remote
    /// end is absent or an ICMP message arrived.
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
    /// Whether the oldest frame of the backlog has waited for [`SLOW`], or the link has used up its
    /// share of the thread's time.
    slow: bool,
    /// The port whose network interface is to send frames of this one before more are read.
    pub(crate) held_for: Option<PortIndex>,
    /// Whether the tap interface was deleted.
    gone: bool,
    /// When an error was last logged.
    complained: Option<Instant>,
    /// The event that the frames in the backlog wait for.
    waits: Waits,
    /// Dropped frames that [`retry`](Self::retry) has yet to report.
    lost: Lost,
    /// The events that epoll reports of the link.
    pub(crate) watched: EventFlags,
    /// Path of a Unix socket, which is removed with the link.
    _path: Option<SocketPath>,
}

impl Link {
    /// A link to a network interface, whose QEMU connects to this socket. If `user` is given, only
    /// this user may connect. `clock` measures the system calls.
    pub(crate) fn of_net(
        (listener, path): (UnixListener, SocketPath),
        user: Option<u32>,
        clock: CallClock,
    ) -> io::Result<Self> {
        let stream = NetStream::new(listener, user, Arc::new(LongCalls::new(clock)))?;
        Ok(Self::new(Socket::Net(stream), Some(path)))
    }

    pub(crate) fn open(uplink: Uplink, access: &Access) -> io::Result<Self> {
        Ok(match uplink {
            Uplink::Unix(path) => {
                let (socket, at) = bind(&path, access)?;
                let uplink = UnixUplink::new(socket, path.remote)?;
                Self::new(Socket::Unix(uplink), Some(at))
            }
            Uplink::Udp { bind, remote } => {
                let socket = Udp::open(bind, remote)?;
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
            slow: false,
            held_for: None,
            gone: false,
            complained: None,
            waits: Waits::No,
            lost: Lost::default(),
            watched: EventFlags::IN,
            _path: path,
        }
    }

    /// Searches for a restarted remote end, if the link is a Unix uplink.
    pub(crate) fn reconnect(&mut self) {
        match &mut self.socket {
            Socket::Unix(uplink) => uplink.reconnect(),
            Socket::Net(_) | Socket::Udp(_) | Socket::Tap(_) => {}
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
            Socket::Net(stream) => stream.receive(into),
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
                Socket::Net(_) | Socket::Unix(_) | Socket::Udp(_) => Trouble::Passes(error),
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
        self.clear()
    }

    /// Ends the connection of a network interface. Returns the number of waiting frames that are
    /// lost.
    pub(crate) fn disconnect(&mut self) -> usize {
        if let Socket::Net(stream) = &mut self.socket {
            stream.disconnect();
        }
        self.clear()
    }

    fn clear(&mut self) -> usize {
        self.watched = EventFlags::IN;
        self.held_for = None;
        self.slow = false;
        self.waits = Waits::No;
        let lost = mem::take(&mut self.lost);
        self.backlog.clear() + lost.dropped + lost.over_share
    }

    /// The system calls for the other end, if that is an untrusted process.
    pub(crate) fn calls(&self) -> Option<&Arc<LongCalls>> {
        match &self.socket {
            Socket::Net(stream) => Some(stream.calls()),
            Socket::Unix(_) | Socket::Udp(_) | Socket::Tap(_) => None,
        }
    }

    /// How long after `now` the thread must make no system call for the link, since the link has
    /// used up its share of the thread's time.
    pub(crate) fn pause(&self, now: Instant) -> Duration {
        self.calls()
            .map_or(Duration::ZERO, |calls| calls.pause(now))
    }

    /// Whether frames may be read at `now`.
    pub(crate) fn may_read(&self, now: Instant) -> bool {
        let has_frame = || matches!(&self.socket, Socket::Net(stream) if stream.has_frame());
        self.held_for.is_none() && (self.pause(now).is_zero() || has_frame())
    }

    /// The events that epoll is to report. While no frames may be read, it reports the end of the
    /// connection only once (edge-triggered).
    pub(crate) fn events(&self, now: Instant) -> EventFlags {
        let input = match self.held_for.is_none() && self.pause(now).is_zero() {
            true => EventFlags::IN,
            false => EventFlags::ET,
        };
        match self.waits {
            Waits::ForRoom => input | EventFlags::OUT,
            Waits::No | Waits::ForTime => input,
        }
    }

    /// The listening socket of a network interface. [`as_fd`](Self::as_fd) is the connection.
    pub(crate) fn listener(&self) -> Option<BorrowedFd<'_>> {
        match &self.socket {
            Socket::Net(stream) => Some(stream.listener()),
            Socket::Unix(_) | Socket::Udp(_) | Socket::Tap(_) => None,
        }
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
        matches!(self.socket, Socket::Unix(_) | Socket::Tap(_))
    }

    /// Whether [`receive`](Self::receive) has frames to return of which epoll reports nothing.
    pub(crate) fn has_arrived(&self) -> bool {
        match &self.socket {
            Socket::Udp(socket) => socket.has_arrived(),
            Socket::Unix(uplink) => uplink.has_arrived(),
            Socket::Net(stream) => stream.has_arrived(),
            Socket::Tap(_) => false,
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Net(stream) => stream.as_fd(),
            Socket::Unix(uplink) => uplink.as_fd(),
            Socket::Udp(socket) => socket.as_fd(),
            Socket::Tap(tap) => tap.as_fd(),
        }
    }
}
