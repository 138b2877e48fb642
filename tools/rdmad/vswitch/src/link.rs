// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! What frames enter and leave the process through: datagram sockets and tap interfaces.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use roce::frame::MAX_FRAME;
use roce::{Frame, FramePool};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{sockopt, RecvFlags};

use crate::tap;

/// Frames that wait for room in a socket, those of engines apart. A Unix socket takes no more than
/// `net.unix.max_dgram_qlen` datagrams, 10 by default, which is less than one window of a connection.
const BACKLOG: usize = 512;

/// How long a socket may take nothing before its receiver counts as gone. Frames of engines wait for a receiver that is
/// only slow, which holds up the engine; one that does not read must not hold up what the engine has for others.
const STALL: Duration = Duration::from_secs(1);

/// Bytes that a socket is asked to hold in each direction. The kernel may grant less.
const SOCKET_BUFFER: usize = 4 << 20;

/// Two Unix datagram sockets by their paths; a datagram is a raw frame, as QEMU's `-netdev dgram` sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramPath {
    /// The one that is bound here.
    pub local: PathBuf,
    /// The one that frames are sent to. It may come and go.
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
    Unix {
        socket: UnixDatagram,
        path: DatagramPath,
    },
    Udp(UdpSocket),
    Tap(File),
}

/// How an attempt to send went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The frame is gone, or waits for its turn.
    Done,
    /// Nobody takes it.
    Dropped,
}

/// The socket has no room.
struct Full;

/// A socket with the frames that wait for room in it.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Socket,
    backlog: VecDeque<Frame>,
    /// Since when the socket has taken nothing of the backlog.
    waiting: Instant,
    /// It took nothing for too long, and still does not.
    stalled: bool,
}

impl Link {
    pub(crate) fn open(uplink: Uplink) -> io::Result<Self> {
        let socket = match uplink {
            Uplink::Unix(path) => {
                remove_stale(&path.local)?;
                let socket = UnixDatagram::bind(&path.local)?;
                socket.set_nonblocking(true)?;
                enlarge(socket.as_fd());
                Socket::Unix { socket, path }
            }
            Uplink::Udp { bind, peer } => {
                let socket = UdpSocket::bind(bind)?;
                socket.connect(peer)?;
                socket.set_nonblocking(true)?;
                enlarge(socket.as_fd());
                Socket::Udp(socket)
            }
            Uplink::Tap(name) => Socket::Tap(tap::open(&name)?),
        };
        Ok(Self {
            socket,
            backlog: VecDeque::with_capacity(BACKLOG),
            waiting: Instant::now(),
            stalled: false,
        })
    }

    /// Reads the next frame. Returns its length, which exceeds that of `into` if it did not fit; `None` if there is none.
    pub(crate) fn receive(&self, into: &mut [u8]) -> Result<Option<usize>, Errno> {
        let received = match &self.socket {
            Socket::Unix { socket, .. } => {
                rustix::net::recv(socket, into, RecvFlags::TRUNC).map(|(_, len)| len)
            }
            Socket::Udp(socket) => {
                rustix::net::recv(socket, into, RecvFlags::TRUNC).map(|(_, len)| len)
            }
            Socket::Tap(file) => rustix::io::read(file, into),
        };
        match received {
            Ok(len) => Ok(Some(len)),
            Err(Errno::AGAIN) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a frame, after those that wait. If the socket is full the frame waits too: always if it is `patient`, that
    /// is, its sender has so many buffers and waits for them, else as long as there are few.
    pub(crate) fn send(&mut self, frame: Frame, patient: bool, now: Instant) -> Sent {
        match self.send_at_once(&frame) {
            Ok(sent) => sent,
            Err(Full) => self.enqueue(frame, patient, now),
        }
    }

    /// Sends a frame that others have too. If the socket is full, a copy in a buffer of `pool` waits.
    pub(crate) fn send_copy(&mut self, frame: &[u8], pool: &FramePool, now: Instant) -> Sent {
        match self.send_at_once(frame) {
            Ok(sent) => sent,
            Err(Full) => match pool.take(frame.len()) {
                Some(mut copy) => {
                    copy.copy_from_slice(frame);
                    self.enqueue(copy, false, now)
                }
                None => Sent::Dropped,
            },
        }
    }

    fn send_at_once(&self, frame: &[u8]) -> Result<Sent, Full> {
        if !self.backlog.is_empty() {
            return Err(Full);
        }
        match self.try_send(frame) {
            Ok(()) => Ok(Sent::Done),
            Err(Errno::AGAIN | Errno::NOBUFS) => Err(Full),
            Err(_) => Ok(Sent::Dropped),
        }
    }

    fn enqueue(&mut self, frame: Frame, patient: bool, now: Instant) -> Sent {
        if self.backlog.len() >= BACKLOG && (!patient || self.stalled) {
            return Sent::Dropped;
        }
        if self.backlog.is_empty() {
            self.waiting = now;
        }
        self.backlog.push_back(frame);
        Sent::Done
    }

    /// Sends what waits, as far as there is room. Returns how many frames nobody takes.
    pub(crate) fn retry(&mut self, now: Instant) -> usize {
        let mut dropped = 0;
        while let Some(frame) = self.backlog.front() {
            match self.try_send(frame) {
                Ok(()) => {
                    self.waiting = now;
                    self.stalled = false;
                }
                Err(Errno::AGAIN | Errno::NOBUFS) => break,
                Err(_) => dropped += 1,
            }
            self.backlog.pop_front();
        }
        if !self.backlog.is_empty() && now.duration_since(self.waiting) > STALL {
            self.stalled = true;
            dropped += self.backlog.len().saturating_sub(BACKLOG);
            self.backlog.truncate(BACKLOG);
        }
        dropped
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.backlog.is_empty()
    }

    fn try_send(&self, frame: &[u8]) -> Result<(), Errno> {
        let sent = match &self.socket {
            Socket::Unix { socket, path } => socket.send_to(frame, &path.remote),
            Socket::Udp(socket) => socket.send(frame),
            Socket::Tap(file) => return rustix::io::write(file, frame).map(drop),
        };
        sent.map(drop)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Unix { socket, .. } => socket.as_fd(),
            Socket::Udp(socket) => socket.as_fd(),
            Socket::Tap(file) => file.as_fd(),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Socket::Unix { path, .. } = &self.socket {
            let _ = fs::remove_file(&path.local);
        }
    }
}

/// Removes a socket that a process left behind. Anything else that has the name stays, and binding fails.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    match UnixDatagram::unbound()?.connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "the socket is in use",
        )),
    }
}

/// Asks for large buffers, best effort.
fn enlarge(socket: BorrowedFd<'_>) {
    let _ = sockopt::set_socket_recv_buffer_size(socket, SOCKET_BUFFER);
    let _ = sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER);
}

/// Buffers for frames that come in through links and that wait to leave through them.
pub(crate) fn pool(links: usize) -> FramePool {
    FramePool::new(4096 + links * BACKLOG)
}

/// Shortest frame: an Ethernet header.
pub(crate) const MIN_FRAME: usize = 14;

/// Whether a frame of this length is taken.
pub(crate) fn is_valid_length(len: usize) -> bool {
    (MIN_FRAME..=MAX_FRAME).contains(&len)
}
