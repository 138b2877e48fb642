// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Links by which frames enter and leave the process: datagram sockets and tap interfaces.

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
use sockets::{Access, NetSockets, Remote, SocketPath};

use crate::engine_queues::RECEIVE_QUEUE;
use crate::tap::Tap;
use crate::udp::{self, Udp};
use crate::unix_peer::UnixPeer;

/// Frames that wait for room in a socket, those of engines apart. The socket of a network interface
/// takes no more than `net.unix.max_dgram_qlen` datagrams, 10 by default, which is less than one
/// window of a connection.
const BACKLOG: usize = 512;

/// A frame that finds more frames waiting for room in a socket is marked, if its sender reacts to
/// marks.
const CONGESTED: usize = 64;

/// How long a socket may take nothing before its receiver counts as gone. Frames of engines wait
/// for a receiver that is only slow, which holds up the engine; one that does not read must not
/// hold up what the engine has for others.
const STALL: Duration = Duration::from_secs(1);
/// How long a frame may wait before its receiver counts as gone. A receiver that takes a frame now
/// and then never stalls, but holds up the engine as well.
const AGE: Duration = Duration::from_secs(3);

/// How soon a full socket is tried again that does not tell when it has room.
const RETRY: Duration = Duration::from_micros(100);
/// How soon one is looked at that does, or that has taken nothing for long.
const STALE: Duration = Duration::from_millis(500);
/// How often errors of one link are told.
const COMPLAINT: Duration = Duration::from_secs(60);

/// Bytes that a socket is asked to hold of what comes. The kernel may grant less.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Bytes that a socket is asked to hold of what leaves: a few windows. With more, what is sent
/// again because no answer came would stand behind itself.
const SEND_BUFFER: usize = 1 << 20;

/// Two Unix datagram sockets by their paths; a datagram is a raw frame, as QEMU's `-netdev dgram`
/// sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramPath {
    /// The socket that is bound here.
    pub local: PathBuf,
    /// The socket that frames are sent to. It may come and go.
    pub remote: PathBuf,
}

/// A way to other switches and hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// Unix datagrams.
    Unix(DatagramPath),
    /// UDP datagrams, each a raw frame, from and to one peer.
    Udp {
        /// Address that is bound here.
        bind: SocketAddr,
        /// Address of the peer.
        peer: SocketAddr,
    },
    /// A tap interface.
    Tap(String),
}

#[derive(Debug)]
enum Socket {
    /// A network interface.
    Net {
        /// Frames are taken from anybody who may send to it.
        socket: UnixDatagram,
        /// Frames leave through a socket of their own, which is connected.
        peer: UnixPeer,
    },
    Unix(UnixPeer),
    Udp(Udp),
    Tap(Tap),
}

/// How an attempt to send went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The frame is gone, or waits for its turn.
    Done,
    /// Nobody takes it.
    Dropped,
}

/// The socket has no room.
struct Full;

/// Why no frame could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It passes, or is what an earlier frame met: a peer that is not there, or an ICMP message.
    Passes(Errno),
    /// The interface has gone, and would be ready for ever.
    Gone(Errno),
}

/// The event to wait for until frames can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// For nothing: no frame waits.
    No,
    /// The kernel tells when there is room.
    ForRoom,
    /// Nothing tells.
    ForTime,
}

/// A socket with the frames that wait for room in it.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Socket,
    backlog: VecDeque<Frame>,
    /// Since when each of them waits.
    since: VecDeque<Instant>,
    /// Since when the socket has taken nothing of the backlog.
    waiting: Instant,
    /// It took nothing, or too little, for too long, and still does not.
    stalled: bool,
    /// The interface is not there.
    gone: bool,
    /// When an error was last logged.
    complained: Option<Instant>,
    /// The event that the frames in the backlog wait for.
    waits: Waits,
    /// Frames that nobody took, of which [`retry`](Self::retry) has yet to tell.
    dropped: usize,
    /// Whether the kernel is asked to tell of room.
    pub(crate) watched: bool,
    /// Of a Unix socket.
    _path: Option<SocketPath>,
}

impl Link {
    /// A network interface with these sockets.
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
                Self::new(Socket::Unix(UnixPeer::new(socket, path.remote)?), Some(at))
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
            backlog: VecDeque::with_capacity(BACKLOG),
            since: VecDeque::with_capacity(BACKLOG),
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

    /// The peer, where there is one that comes and goes.
    pub(crate) fn peer(&mut self) -> Option<&mut UnixPeer> {
        match &mut self.socket {
            Socket::Net { peer, .. } | Socket::Unix(peer) => Some(peer),
            Socket::Udp(_) | Socket::Tap(_) => None,
        }
    }

    /// Reads the next frame. Returns its length, which exceeds that of `into` if it did not fit;
    /// `None` if there is none.
    pub(crate) fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, Trouble> {
        let received = match &mut self.socket {
            Socket::Tap(tap) => tap.receive(into),
            Socket::Udp(socket) => socket.receive(into),
            Socket::Net { .. } | Socket::Unix(_) => {
                rustix::net::recv(self.as_fd(), into, RecvFlags::TRUNC).map(|(_, len)| len)
            }
        };
        match received {
            Ok(len) => Ok(Some(len)),
            Err(Errno::AGAIN) => Ok(None),
            Err(error @ (Errno::INTR | Errno::NOMEM | Errno::NOBUFS)) => {
                Err(Trouble::Passes(error))
            }
            // A socket stays, whatever it says; an interface is deleted.
            Err(error) => Err(match self.socket {
                Socket::Tap(_) => Trouble::Gone(error),
                Socket::Net { .. } | Socket::Unix(_) | Socket::Udp(_) => Trouble::Passes(error),
            }),
        }
    }

    /// Whether an error at `now` is to be told: not each of many is.
    pub(crate) fn may_complain(&mut self, now: Instant) -> bool {
        let long_ago = |at| now.saturating_duration_since(at) >= COMPLAINT;
        let may = self.complained.is_none_or(long_ago);
        if may {
            self.complained = Some(now);
        }
        may
    }

    /// The interface has gone. Returns how many frames that waited are lost.
    pub(crate) fn lose(&mut self) -> usize {
        self.gone = true;
        self.watched = false;
        self.waits = Waits::No;
        self.since.clear();
        self.backlog.drain(..).count() + mem::take(&mut self.dropped)
    }

    /// Attaches anew to an interface that had gone. Returns whether that succeeded.
    pub(crate) fn find_again(&mut self) -> bool {
        match &mut self.socket {
            Socket::Tap(tap) if self.gone => {
                self.gone = tap.attach_again().is_err();
                !self.gone
            }
            _ => false,
        }
    }

    /// Whether the link may have to be looked after when nothing happens.
    pub(crate) fn comes_and_goes(&self) -> bool {
        !matches!(self.socket, Socket::Udp(_))
    }

    /// Whether frames have been read from the socket that [`receive`](Self::receive) has yet to
    /// return.
    pub(crate) fn has_arrived(&self) -> bool {
        matches!(&self.socket, Socket::Udp(socket) if socket.has_arrived())
    }

    /// Sends a frame, after those that wait. If the socket is full the frame waits too: always if
    /// it is `patient`, that is, its sender has so many buffers and waits for them, else as long as
    /// there are few. Where frames leave together it waits for others, until [`retry`](Self::retry)
    /// at the latest.
    pub(crate) fn send(&mut self, frame: Frame, patient: bool, now: Instant) -> Delivery {
        if matches!(self.socket, Socket::Udp(_)) && self.waits == Waits::No {
            let sent = self.enqueue(frame, patient, now);
            if self.backlog.len() == udp::RUN {
                self.send_waiting(now);
            }
            return sent;
        }
        match self.send_at_once(&frame) {
            Ok(sent) => sent,
            Err(Full) => self.enqueue(frame, patient, now),
        }
    }

    /// Sends a frame that others have too. If the socket is full, a copy in a buffer of `pool`
    /// waits.
    pub(crate) fn send_copy(&mut self, frame: &[u8], pool: &FramePool, now: Instant) -> Delivery {
        match self.send_at_once(frame) {
            Ok(sent) => sent,
            Err(Full) => match pool.take(frame.len()) {
                Some(mut copy) => {
                    copy.copy_from_slice(frame);
                    self.enqueue(copy, false, now)
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

    /// The event that a frame waits for that could not be sent.
    fn waits_after(&self, error: Errno) -> Waits {
        match (error, &self.socket) {
            // It is the receiver's queue that is full, of which the watched socket knows nothing.
            (Errno::AGAIN, Socket::Net { .. }) | (Errno::NOBUFS, _) => Waits::ForTime,
            (Errno::AGAIN, _) => Waits::ForRoom,
            _ => Waits::No,
        }
    }

    fn enqueue(&mut self, mut frame: Frame, patient: bool, now: Instant) -> Delivery {
        if self.backlog.len() >= BACKLOG && (!patient || self.stalled) {
            return Delivery::Dropped;
        }
        if self.backlog.is_empty() {
            self.waiting = now;
        }
        if self.waits != Waits::No && self.backlog.len() > CONGESTED {
            roce::net::mark(&mut frame);
        }
        self.backlog.push_back(frame);
        self.since.push_back(now);
        Delivery::Done
    }

    /// Sends what waits, as far as there is room. Returns how many frames nobody took since the
    /// last call.
    pub(crate) fn retry(&mut self, now: Instant) -> usize {
        self.send_waiting(now);
        mem::take(&mut self.dropped)
    }

    fn send_waiting(&mut self, now: Instant) {
        while !self.backlog.is_empty() {
            let gone = match self.socket.send_first(&self.backlog) {
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
            self.backlog.drain(..gone);
            self.since.drain(..gone);
        }
        let oldest = self.since.front().copied();
        self.stalled = oldest.is_some_and(|oldest| {
            now.saturating_duration_since(self.waiting) > STALL
                || now.saturating_duration_since(oldest) > AGE
        });
        if oldest.is_none() {
            self.waits = Waits::No;
        } else if self.stalled {
            self.dropped += self.backlog.len().saturating_sub(BACKLOG);
            self.backlog.truncate(BACKLOG);
            self.since.truncate(BACKLOG);
        }
    }

    /// How soon the link is to be tried again though nothing tells, if frames wait. The longer it
    /// has taken nothing, the later: a virtual machine that is paused takes nothing for hours.
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

    /// The event that has to happen before [`retry`](Self::retry).
    pub(crate) const fn waits(&self) -> Waits {
        self.waits
    }
}

impl Socket {
    /// Sends the first of `frames`, which are not none, and others if they leave together. Returns
    /// how many.
    fn send_first(&mut self, frames: &VecDeque<Frame>) -> Result<usize, Errno> {
        match self {
            Self::Udp(socket) => socket.send(frames),
            Self::Net { .. } | Self::Unix(_) | Self::Tap(_) => self.send(&frames[0]).map(|()| 1),
        }
    }

    fn send(&mut self, frame: &[u8]) -> Result<(), Errno> {
        match self {
            Self::Net { peer, .. } | Self::Unix(peer) => peer.send(frame),
            Self::Udp(socket) => socket.send_one(frame),
            Self::Tap(tap) => tap.send(frame),
        }
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Net { socket, .. } => socket.as_fd(),
            Socket::Unix(peer) => peer.as_fd(),
            Socket::Udp(socket) => socket.as_fd(),
            Socket::Tap(tap) => tap.as_fd(),
        }
    }
}

/// The sockets of a network interface.
///
/// # Errors
///
/// There is no socket at the path, or the keeper takes no errand.
pub fn open_net(path: &DatagramPath, access: &Access) -> io::Result<NetSockets> {
    let (socket, at) = bind(path, access)?;
    let sender = UnixDatagram::unbound()?;
    enlarge(sender.as_fd());
    Ok(NetSockets {
        socket,
        path: at,
        remote: Remote::new(sender, path.remote.clone())?,
    })
}

/// A socket that frames come in through.
fn bind(path: &DatagramPath, access: &Access) -> io::Result<(UnixDatagram, SocketPath)> {
    let (socket, at) = sockets::datagram(&path.local, access).map_err(io::Error::other)?;
    socket.set_nonblocking(true)?;
    enlarge(socket.as_fd());
    Ok((socket, at))
}

/// The error of an operation on a socket.
pub(crate) fn errno(error: impl Into<io::Error>) -> Errno {
    Errno::from_io_error(&error.into()).unwrap_or(Errno::IO)
}

/// Asks for large buffers, best effort: beyond the limit of the host if the daemon may.
fn enlarge(socket: BorrowedFd<'_>) {
    let _ = sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BUFFER));
    let _ = sockopt::set_socket_send_buffer_size(socket, SEND_BUFFER);
}

/// Frames of one network interface that may wait: for the receivers of two.
const NET_FRAMES: usize = 2 * BACKLOG;
/// Frames of one uplink that may wait: for an engine that does not take them, and for others.
const UPLINK_FRAMES: usize = RECEIVE_QUEUE + 2 * BACKLOG;

/// Buffers for frames that come in through links and that wait to leave through them: of each
/// network interface, then of each uplink.
pub(crate) fn pools(nets: usize, uplinks: usize) -> Vec<FramePool> {
    let nets = iter::repeat_n(NET_FRAMES, nets);
    let uplinks = iter::repeat_n(UPLINK_FRAMES, uplinks);
    nets.chain(uplinks).map(FramePool::new).collect()
}

/// Shortest frame: an Ethernet header.
pub(crate) const MIN_FRAME: usize = 14;

/// Whether a frame of this length is taken.
pub(crate) fn is_valid_length(len: usize) -> bool {
    (MIN_FRAME..=MAX_FRAME).contains(&len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link to a socket that takes ten datagrams, with more than that waiting since `now`.
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
            let sent = link.send(pool.take(100).unwrap(), true, now);
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
        // It takes some.
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
            // More come: it is the first in the queue that tells.
            link.send(others.take(100).unwrap(), true, now);
        }
        assert!(dropped > BACKLOG - 50, "{dropped} of {frames}");
        // There is room for as many as any sender's frames may be.
        let pool = FramePool::new(BACKLOG);
        let late = start + 6 * STALL;
        let taken = (0..BACKLOG)
            .map(|_| link.send(pool.take(100).unwrap(), true, late))
            .filter(|sent| *sent == Delivery::Done)
            .count();
        assert!(taken < 50, "{taken}");
        // It reads again.
        let later = start + 11 * STALL;
        while far.recv(&mut [0; 200]).is_ok() {
            link.retry(later);
        }
        let sent = link.send(pool.take(100).unwrap(), true, later);
        assert_eq!((sent, link.stalled), (Delivery::Done, false));
    }
}
