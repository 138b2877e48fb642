// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Links, by which the process receives and sends frames: datagram sockets and tap interfaces.

use std::collections::VecDeque;
use std::io;
use std::iter;
use std::mem;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use roce::frame::MAX_FRAME;
use roce::{Frame, FramePool};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{sockopt, RecvFlags};
use sockets::{Access, NetSockets, RemoteSocket, SocketPath};

use crate::backlog::{Backlog, TOGETHER};
use crate::engine_queues::RECEIVE_QUEUE;
use crate::index::SourceIndex;
use crate::tap::Tap;
use crate::udp::Udp;
use crate::unix_peer::UnixPeer;
use crate::unix_uplink::UnixUplink;

/// Maximum number of frames of a source that wait for room in a socket. It does not limit frames of
/// engines, unless the link is stalled. The socket of a network interface holds only
/// `net.unix.max_dgram_qlen` datagrams, 10 by default, less than one window of a connection.
pub(crate) const BACKLOG: usize = 512;

/// Number of waiting frames above which a new frame is marked as congested, if its sender supports
/// ECN. Sources with waiting frames divide this number among themselves.
const CONGESTED: usize = 64;
/// The least share of a source in [`CONGESTED`].
const MIN_SHARE: usize = 4;

/// How long a socket may accept nothing before the link counts as stalled. Frames of an engine wait
/// for a slow receiver, and so does the engine. But a receiver that does not read at all must not
/// delay the engine's frames to other receivers.
const STALL: Duration = Duration::from_secs(1);
/// How long a frame may wait before the link counts as stalled. A receiver that reads a single
/// frame from time to time never exceeds [`STALL`], but delays the engine's other frames as well.
const AGE: Duration = Duration::from_secs(3);

/// Retry interval of a full socket for which epoll does not report room.
const RETRY: Duration = Duration::from_micros(100);
/// Retry interval of a full socket for which epoll reports room, or that has accepted nothing for
/// long.
const STALE: Duration = Duration::from_millis(500);
/// Minimum interval between logged errors of one link.
const COMPLAINT: Duration = Duration::from_secs(60);

/// Requested size of a socket's receive buffer in bytes. The kernel may grant less.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Requested size of a socket's send buffer in bytes: enough for the windows of a few connections.
/// In a larger buffer a retransmitted packet would wait behind its original.
const SEND_BUFFER: usize = 1 << 20;

/// The paths of two Unix datagram sockets. Each datagram is a raw frame, as QEMU's `-netdev dgram`
/// sends it.
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
    /// Unix datagrams, each a raw frame, from and to one peer.
    Unix(DatagramPath),
    /// UDP datagrams, each a raw frame, from and to one peer.
    Udp {
        /// Address that the switch binds.
        bind: SocketAddr,
        /// Address of the peer.
        peer: SocketAddr,
    },
    /// A tap interface, by its name.
    Tap(String),
}

#[derive(Debug)]
enum Socket {
    /// The sockets of a VM's network interface.
    Net {
        /// The socket that receives frames, from anybody with access to its path.
        socket: UnixDatagram,
        /// A separate, connected socket that sends frames.
        peer: UnixPeer,
    },
    Unix(UnixUplink),
    Udp(Udp),
    Tap(Tap),
}

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

/// The result of an attempt to send a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The frame was sent, or waits in the backlog.
    Done,
    /// The frame was dropped.
    Dropped,
}

/// The sender of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    pub(crate) source: SourceIndex,
    /// Whether the sender has a fixed number of buffers and waits for them.
    pub(crate) is_patient: bool,
}

/// The error of a send if the socket has no room.
struct Full;

/// Why a read from a link failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A transient error, or an error of an earlier send that is reported late, because the peer is
    /// absent or an ICMP message arrived.
    Passes(Errno),
    /// The interface was deleted. epoll would report it as readable for ever.
    Gone(Errno),
}

/// The event for which the frames in a backlog wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// No frame waits for an event.
    No,
    /// epoll reports when the socket has room.
    ForRoom,
    /// No event reports room, so the send is retried after some time.
    ForTime,
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

    /// Whether frames are collected to be sent together.
    fn sends_together(&self) -> bool {
        match &self.socket {
            Socket::Udp(_) => true,
            Socket::Unix(uplink) => uplink.takes_batches(),
            Socket::Net { .. } | Socket::Tap(_) => false,
        }
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

    /// Sends a frame, after those in the backlog. If the socket is full, the frame is added to the
    /// backlog, or dropped if the backlog is full too. A frame of a patient sender is added even to
    /// a full backlog, unless the link is stalled. Links that send several frames in one call
    /// collect frames until [`retry`](Self::retry).
    pub(crate) fn send(&mut self, frame: Frame, sender: Sender, now: Instant) -> Delivery {
        if self.sends_together() {
            let sent = self.enqueue(frame, sender, now);
            if self.waits == Waits::No && self.backlog.len() >= TOGETHER {
                self.send_waiting(now);
            }
            return sent;
        }
        match self.send_at_once(&frame) {
            Ok(sent) => sent,
            Err(Full) => self.enqueue(frame, sender, now),
        }
    }

    /// Sends a frame that is also sent to other destinations. If the socket is full, a copy of the
    /// frame in a buffer of `pool` is added to the backlog.
    pub(crate) fn send_copy(
        &mut self,
        frame: &[u8],
        source: SourceIndex,
        pool: &FramePool,
        now: Instant,
    ) -> Delivery {
        let sender = Sender {
            source,
            is_patient: false,
        };
        match self.send_at_once(frame) {
            Ok(sent) => sent,
            Err(Full) => match pool.take(frame.len()) {
                Some(mut copy) => {
                    copy.copy_from_slice(frame);
                    self.enqueue(copy, sender, now)
                }
                None => Delivery::Dropped,
            },
        }
    }

    fn send_at_once(&mut self, frame: &[u8]) -> Result<Delivery, Full> {
        if !self.backlog.is_empty() {
            return Err(Full);
        }
        match self.socket.send(frame) {
            Ok(()) => Ok(Delivery::Done),
            Err(error) => match self.waits_after(error) {
                Waits::No => Ok(Delivery::Dropped),
                waits => {
                    self.waits = waits;
                    Err(Full)
                }
            },
        }
    }

    /// The event to wait for after a send has failed with `error`. `No` if waiting does not help.
    fn waits_after(&self, error: Errno) -> Waits {
        match (error, &self.socket) {
            // The receiver's queue is full, not the socket that epoll watches.
            (Errno::AGAIN, Socket::Net { .. }) | (Errno::NOBUFS, _) => Waits::ForTime,
            (Errno::AGAIN, _) => Waits::ForRoom,
            _ => Waits::No,
        }
    }

    fn enqueue(&mut self, mut frame: Frame, sender: Sender, now: Instant) -> Delivery {
        let Sender { source, is_patient } = sender;
        let waiting = self.backlog.len_of(source);
        if waiting >= BACKLOG && (!is_patient || self.stalled) {
            return Delivery::Dropped;
        }
        if self.backlog.is_empty() {
            self.waiting = now;
        }
        let share = (CONGESTED / self.backlog.sources().max(1)).max(MIN_SHARE);
        if self.waits != Waits::No && waiting > share {
            roce::net::mark(&mut frame);
        }
        self.backlog.push(source, frame, now);
        Delivery::Done
    }

    /// Sends frames of the backlog, as far as there is room. Returns the number of frames dropped
    /// since the last call.
    pub(crate) fn retry(&mut self, now: Instant) -> usize {
        self.send_waiting(now);
        mem::take(&mut self.dropped)
    }

    fn send_waiting(&mut self, now: Instant) {
        while !self.backlog.is_empty() {
            let gone = match self.socket.send_first(self.backlog.choose()) {
                Ok(sent) => {
                    self.waiting = now;
                    sent
                }
                Err(error) => match self.waits_after(error) {
                    Waits::No => {
                        self.dropped += 1;
                        1
                    }
                    waits => {
                        self.waits = waits;
                        break;
                    }
                },
            };
            self.backlog.remove(gone);
        }
        let oldest = self.backlog.oldest();
        self.stalled = oldest.is_some_and(|oldest| {
            now.saturating_duration_since(self.waiting) > STALL
                || now.saturating_duration_since(oldest) > AGE
        });
        if oldest.is_none() {
            self.waits = Waits::No;
        } else if self.stalled {
            self.dropped += self.backlog.shorten(BACKLOG);
        }
    }

    /// Time until the next retry of the link if no event occurs; `None` if no frame waits. The time
    /// grows while the socket accepts nothing: a paused virtual machine may read nothing for hours.
    pub(crate) fn retry_in(&self, now: Instant) -> Option<Duration> {
        match self.waits {
            Waits::No => None,
            Waits::ForRoom => Some(STALE),
            Waits::ForTime => {
                let idle = now.saturating_duration_since(self.waiting);
                Some((idle / 8).clamp(RETRY, STALE))
            }
        }
    }

    /// Number of frames that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.backlog.len()
    }

    /// The event after which [`retry`](Self::retry) is to be called.
    pub(crate) const fn waits(&self) -> Waits {
        self.waits
    }
}

impl Socket {
    /// Sends the first of `frames`, and the following frames as far as the socket can send several
    /// by one call. `frames` must not be empty. Returns the number of frames sent.
    fn send_first(&mut self, frames: &mut VecDeque<Frame>) -> Result<usize, Errno> {
        match self {
            Self::Udp(socket) => socket.send(frames),
            Self::Unix(uplink) => uplink.send_first(frames),
            Self::Net { .. } | Self::Tap(_) => self.send(&frames[0]).map(|()| 1),
        }
    }

    fn send(&mut self, frame: &[u8]) -> Result<(), Errno> {
        match self {
            Self::Net { peer, .. } => peer.send(frame),
            Self::Unix(uplink) => uplink.send(frame),
            Self::Udp(socket) => socket.send_one(frame),
            Self::Tap(tap) => tap.send(frame),
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

/// Opens the sockets of a network interface.
///
/// # Errors
///
/// The socket can't be bound at its path, or the keeper process refuses to open it.
pub fn open_net(path: &DatagramPath, access: &Access) -> io::Result<NetSockets> {
    let (socket, at) = bind(path, access)?;
    let sender = UnixDatagram::unbound()?;
    enlarge(sender.as_fd());
    Ok(NetSockets {
        socket,
        path: at,
        remote: RemoteSocket::new(sender, path.remote.clone())?,
    })
}

/// Binds a socket that receives frames.
fn bind(path: &DatagramPath, access: &Access) -> io::Result<(UnixDatagram, SocketPath)> {
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
fn enlarge(socket: BorrowedFd<'_>) {
    let _ = sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BUFFER));
    let _ = sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER);
}

/// Number of buffers for frames from one network interface: enough for the backlogs of two links.
const NET_FRAMES: usize = 2 * BACKLOG;
/// Number of buffers for frames from one uplink: enough for the queue of an engine that does not
/// read, and for the backlogs of two links.
const UPLINK_FRAMES: usize = RECEIVE_QUEUE + 2 * BACKLOG;

/// Buffer pools for frames that links have received: of each network interface, then of each
/// uplink.
pub(crate) fn pools(nets: usize, uplinks: usize) -> Vec<FramePool> {
    let nets = iter::repeat_n(NET_FRAMES, nets);
    let uplinks = iter::repeat_n(UPLINK_FRAMES, uplinks);
    nets.chain(uplinks).map(FramePool::new).collect()
}

/// Length of the shortest frame in bytes: an Ethernet header.
pub(crate) const MIN_FRAME: usize = 14;

/// Whether the switch accepts a frame of this length.
pub(crate) fn is_valid_length(len: usize) -> bool {
    (MIN_FRAME..=MAX_FRAME).contains(&len)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENDER: Sender = Sender {
        source: SourceIndex(0),
        is_patient: true,
    };

    /// A link over which `frames` frames were sent at `now`, more than the receiving socket holds.
    /// Returns the link and that socket.
    fn full(now: Instant, frames: usize) -> (Link, UnixDatagram, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let far = UnixDatagram::bind(path("far")).unwrap();
        far.set_nonblocking(true).unwrap();
        let path = DatagramPath {
            local: path("near"),
            remote: path("far"),
        };
        let sockets = open_net(&path, &Access::default()).unwrap();
        let mut link = Link::of_net(sockets).unwrap();
        let pool = FramePool::new(frames);
        for _ in 0..frames {
            let sent = link.send(pool.take(100).unwrap(), SENDER, now);
            assert_eq!(sent, Delivery::Done);
        }
        assert_eq!(link.waits(), Waits::ForTime);
        (link, far, dir)
    }

    #[test]
    fn the_longer_a_socket_takes_nothing_the_later_it_is_tried() {
        let now = Instant::now();
        let (mut link, far, _dir) = full(now, 100);
        let after = |time| now + time;
        assert_eq!(link.retry_in(now), Some(RETRY));
        let second = Duration::from_secs(1);
        assert_eq!(link.retry_in(after(second)), Some(second / 8));
        assert_eq!(link.retry_in(after(100 * second)), Some(STALE));
        // The receiver reads a frame.
        far.recv(&mut [0; 200]).unwrap();
        link.retry(after(100 * second));
        assert_eq!(link.retry_in(after(100 * second)), Some(RETRY));
    }

    #[test]
    fn a_socket_that_takes_a_frame_now_and_then_counts_as_stalled() {
        let start = Instant::now();
        let frames = 2 * BACKLOG;
        let (mut link, far, _dir) = full(start, frames);
        let others = FramePool::new(20);
        let mut dropped = 0;
        for half in 1..=10 {
            let now = start + half * STALL / 2;
            far.recv(&mut [0; 200]).unwrap();
            dropped += link.retry(now);
            // Frames are added too, but the age of the oldest frame decides.
            link.send(others.take(100).unwrap(), SENDER, now);
        }
        assert!(dropped > BACKLOG - 50, "{dropped} of {frames}");
        // The link is stalled, so only few of these patient frames are accepted.
        let pool = FramePool::new(BACKLOG);
        let late = start + 6 * STALL;
        let taken = (0..BACKLOG)
            .map(|_| link.send(pool.take(100).unwrap(), SENDER, late))
            .filter(|sent| *sent == Delivery::Done)
            .count();
        assert!(taken < 50, "{taken}");
        // The receiver reads all frames again.
        let later = start + 11 * STALL;
        while far.recv(&mut [0; 200]).is_ok() {
            link.retry(later);
        }
        let sent = link.send(pool.take(100).unwrap(), SENDER, later);
        assert_eq!((sent, link.stalled), (Delivery::Done, false));
    }
}
