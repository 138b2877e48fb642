// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The network interface of a virtual machine: a Unix stream socket to which QEMU's
//! `-netdev stream` connects.
//!
//! Each frame follows its length, 4 bytes in network byte order. A read returns many frames, and a
//! write sends many. If a write sends a part of a frame only, the frame stays the first of the
//! backlog, and the next write continues within it.
//!
//! The switch serves one connection at a time. Other connections wait in the queue of the listening
//! socket until the present connection ends.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use budget::LongCalls;
use roce::Frame;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags};

use crate::backlog::TOGETHER;
use crate::link::Received;

/// Number of bytes of a frame's length.
const LENGTH: usize = 4;

/// The longest packet that QEMU sends. The switch refuses single frames that are too long for it. A
/// greater length means that the stream is malformed.
const MAX_LENGTH: usize = 68 << 10;

/// Maximum number of bytes of one read. The longest packet fits, so a full buffer always has one.
const ARRIVAL: usize = 128 << 10;

/// The listening socket, and the connection if there is one.
#[derive(Debug)]
pub(crate) struct NetStream {
    listener: UnixListener,
    /// The only user who may connect, if there is one.
    user: Option<u32>,
    connection: Option<OwnedFd>,
    /// The system calls for the connection. QEMU determines how long they take.
    calls: Arc<LongCalls>,
    arrival: Arrival,
    progress: Progress,
}

/// Bytes that one read has returned.
#[derive(Debug)]
struct Arrival {
    bytes: Box<[u8]>,
    /// Range in `bytes` of the frames that were not taken yet. The last one may be incomplete.
    start: usize,
    end: usize,
    /// Whether the last read has emptied the socket. Saves another read: epoll reports later bytes.
    is_all: bool,
}

/// How far the first frame of the backlog was sent.
#[derive(Debug, Default)]
struct Progress {
    /// Number of bytes that were sent, those of the length included.
    sent: usize,
}

impl NetStream {
    /// Serves connections to `listener`. If `user` is given, only this user may connect.
    pub(crate) fn new(
        listener: UnixListener,
        user: Option<u32>,
        calls: Arc<LongCalls>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            user,
            connection: None,
            calls,
            arrival: Arrival {
                bytes: vec![0; ARRIVAL].into(),
                start: 0,
                end: 0,
                is_all: false,
            },
            progress: Progress::default(),
        })
    }

    /// The listening socket. It stays readable while other connections wait, so epoll must report
    /// each connection only once (edge-triggered).
    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Whether a connection is open.
    pub(crate) const fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Ends the connection. A frame that was sent in part is sent from its start to the next one.
    pub(crate) fn disconnect(&mut self) {
        let connection = self.connection.take();
        self.calls.run(|| drop(connection));
        self.arrival.clear();
        self.progress = Progress::default();
    }

    /// Takes the next frame into `into`, or accepts a connection if none is open.
    pub(crate) fn receive(&mut self, into: &mut [u8]) -> Result<Received, Errno> {
        let Some(connection) = &self.connection else {
            return self.calls.run(|| {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let connection = rustix::net::accept_with(&self.listener, flags)?;
                if !sockets::admits(&connection, self.user) {
                    return Ok(Received::Stranger);
                }
                self.connection = Some(connection);
                Ok(Received::Connected)
            });
        };
        if let Some(taken) = self.arrival.take(into) {
            return Ok(taken);
        }
        if mem::take(&mut self.arrival.is_all) {
            return Err(Errno::AGAIN);
        }
        let read = |space: &mut [u8]| {
            let read = || rustix::net::recv(connection, space, RecvFlags::empty());
            self.calls.transfer(|| read().map(|(count, _)| count))
        };
        match self.arrival.read(read) {
            Ok(0) | Err(Errno::CONNRESET) => return Ok(Received::Closed(None)),
            read => read?,
        };
        let taken = self.arrival.take(into);
        self.arrival.is_all &= taken.is_some();
        taken.ok_or(Errno::AGAIN)
    }

    /// Whether [`receive`](Self::receive) must be called again although epoll may report nothing: a
    /// frame was read already, or a connection may wait.
    pub(crate) fn has_arrived(&self) -> bool {
        self.connection.is_none() || self.has_frame()
    }

    /// Whether a frame was read already.
    pub(crate) fn has_frame(&self) -> bool {
        self.arrival.next().is_some()
    }

    /// The system calls for the connection.
    pub(crate) fn calls(&self) -> &Arc<LongCalls> {
        &self.calls
    }

    /// Sends the first of `frames`, and following ones, as far as there is room. Returns the number
    /// of frames that were sent completely.
    pub(crate) fn send_first(&mut self, frames: &VecDeque<Frame>) -> Result<usize, Errno> {
        let connection = self.connection.as_ref().ok_or(Errno::NOTCONN)?;
        // Rust's runtime ignores SIGPIPE, which `writev` can't suppress.
        let sent = self.progress.send(frames, |parts| {
            self.calls
                .transfer(|| rustix::io::writev(connection, parts))
        });
        match sent {
            // The memory of the host is short, so the rest of a frame has to wait.
            Err(Errno::INTR | Errno::NOMEM) => Err(Errno::NOBUFS),
            Err(Errno::PIPE | Errno::CONNRESET) => {
                // QEMU reads nothing more, so no frame has to be continued.
                self.progress = Progress::default();
                Err(Errno::PIPE)
            }
            sent => sent,
        }
    }
}

impl AsFd for NetStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let connection = self.connection.as_ref();
        connection.map_or_else(|| self.listener.as_fd(), AsFd::as_fd)
    }
}

impl Arrival {
    fn clear(&mut self) {
        self.start = 0;
        self.end = 0;
        self.is_all = false;
    }

    /// The next frame if it is complete. The error is a malformed length.
    fn next(&self) -> Option<Result<&[u8], u32>> {
        let arrived = &self.bytes[self.start..self.end];
        let (length, rest) = arrived.split_first_chunk::<LENGTH>()?;
        let length = u32::from_be_bytes(*length);
        if !(1..=MAX_LENGTH).contains(&(length as usize)) {
            return Some(Err(length));
        }
        rest.get(..length as usize).map(Ok)
    }

    /// Takes the next frame, if it is complete. If the frame is longer than `into`, only its start
    /// is copied.
    fn take(&mut self, into: &mut [u8]) -> Option<Received> {
        Some(match self.next()? {
            Ok(frame) => {
                let len = frame.len();
                let copied = len.min(into.len());
                into[..copied].copy_from_slice(&frame[..copied]);
                self.start += LENGTH + len;
                Received::Here(len)
            }
            Err(length) => Received::Closed(Some(length)),
        })
    }

    /// Reads bytes after those of an incomplete frame. Returns their number.
    fn read(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let count = read(&mut self.bytes[self.end..])?;
        self.end += count;
        self.is_all = self.end < self.bytes.len();
        Ok(count)
    }
}

impl Progress {
    /// Passes the lengths and bytes of the first frames to `write`, which returns the number of
    /// bytes that it has sent. Returns the number of frames that are sent completely.
    fn send(
        &mut self,
        frames: &VecDeque<Frame>,
        write: impl FnOnce(&[IoSlice<'_>]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let mut lengths = [[0; LENGTH]; TOGETHER];
        for (length, frame) in lengths.iter_mut().zip(frames) {
            // A frame has at most `MAX_FRAME` bytes.
            *length = (frame.len() as u32).to_be_bytes();
        }
        let mut parts = [IoSlice::new(&[]); 2 * TOGETHER];
        for ((pair, length), frame) in parts.chunks_exact_mut(2).zip(&lengths).zip(frames) {
            pair[0] = IoSlice::new(length);
            pair[1] = IoSlice::new(frame);
        }
        let mut parts = &mut parts[..2 * frames.len().min(TOGETHER)];
        IoSlice::advance_slices(&mut parts, self.sent);
        self.sent += write(parts)?;
        let mut complete = 0;
        for frame in frames {
            let size = LENGTH + frame.len();
            if self.sent < size {
                break;
            }
            self.sent -= size;
            complete += 1;
        }
        Ok(complete)
    }
}
