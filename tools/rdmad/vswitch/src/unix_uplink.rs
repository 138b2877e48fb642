// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! An uplink over a Unix datagram socket.
//!
//! Each datagram is a frame, until both ends have agreed to use [batches](crate::batch). After an
//! end has connected to the remote end, it sends a greeting with a random token. It repeats the
//! greeting when a greeting of the remote end does not name the token. A remote end that has
//! received the token may send batches, in which frames may lack their ICRC. A batch with another
//! token is refused, and answered with a greeting. The agreement ends when the remote end is found
//! gone, or when neither greeting nor batch has arrived for [a while](SILENCE). Each search for
//! a restarted remote end greets it again.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use roce::frame::Frames;
use roce::{Frame, FramePool};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::batch::{self, Datagram};
use crate::link::Received;
use crate::unix_remote::{is_gone, UnixRemote};

/// Number of [reconnections](UnixUplink::reconnect) without a greeting or batch of the remote end
/// after which the agreement ends.
const SILENCE: u32 = 3;

/// The socket, and the state of the agreement with the remote end.
#[derive(Debug)]
pub(crate) struct UnixUplink {
    remote: UnixRemote,
    /// Number of the connection to which the following fields belong.
    connection: u64,
    /// Token of this end, not 0.
    token: u64,
    /// Token of the remote end, if a greeting was received.
    heard: Option<u64>,
    /// Whether the remote end was greeted.
    greeted: bool,
    /// Whether a greeting to the remote end is pending.
    greeting_due: bool,
    /// Number of reconnections since the last greeting or batch of the remote end.
    silent: u32,
    head: Box<[u8; batch::HEAD]>,
    /// Received frames of a batch that [`receive`](Self::receive) has yet to return.
    arrived: VecDeque<Frame>,
    /// Number of frames of batches that were lost for lack of buffers and are not reported yet.
    lost: usize,
}

impl UnixUplink {
    /// Combines a socket with the path of the remote end. The remote end need not exist yet.
    pub(crate) fn new(socket: UnixDatagram, path: PathBuf) -> io::Result<Self> {
        let mut uplink = Self {
            remote: UnixRemote::new(socket, path)?,
            connection: 0,
            token: fastrand::u64(1..),
            heard: None,
            greeted: false,
            greeting_due: false,
            silent: 0,
            head: Box::new([0; batch::HEAD]),
            arrived: VecDeque::with_capacity(batch::FRAMES),
            lost: 0,
        };
        uplink.greet();
        Ok(uplink)
    }

    /// Whether the remote end accepts batches, and frames without an ICRC in them.
    pub(crate) fn takes_batches(&self) -> bool {
        self.remote_token().is_some()
    }

    fn remote_token(&self) -> Option<u64> {
        let is_same = self.remote.connection() == Some(self.connection);
        self.heard.filter(|_| is_same && self.greeted)
    }

    /// Connects to the present socket at the remote end's path, and greets it again.
    pub(crate) fn reconnect(&mut self) {
        // The old remote end is greeted first, to check whether it is still alive.
        self.greeting_due |= self.heard.is_some();
        self.greet();
        self.silent += 1;
        if self.silent > SILENCE {
            self.heard = None;
        }
        self.remote.reconnect();
        self.greet();
    }

    /// Greets the remote end, if the connection is new or a greeting is pending.
    fn greet(&mut self) {
        let connection = self.remote.connection();
        if let Some(connection) = connection.filter(|at| *at != self.connection) {
            self.connection = connection;
            self.heard = None;
            self.greeted = false;
            self.greeting_due = true;
        }
        if self.greeting_due && connection.is_some() {
            let greeting = batch::greeting(self.token, self.heard.unwrap_or(0));
            // If the socket is full, the next reconnection sends the greeting.
            let sent = self.remote.send_connected(&[IoSlice::new(&greeting)]);
            self.greeting_due = sent.is_err();
            self.greeted |= sent.is_ok();
        }
    }

    /// Handles a greeting of the remote end.
    fn handle_greeting(&mut self, token: u64, heard: u64) {
        self.heard = (token != 0).then_some(token);
        self.silent = 0;
        self.greeting_due |= heard != self.token;
        self.greet();
    }

    /// Sends a single frame. If the remote end is gone, connects to its successor first.
    pub(crate) fn send(&mut self, frame: &[u8]) -> Result<(), Errno> {
        let sent = self.remote.send(frame);
        self.greet();
        sent
    }

    /// Sends the first of `frames`, and following ones if the remote end accepts batches. `frames`
    /// must not be empty. Returns the number of frames sent.
    pub(crate) fn send_first(&mut self, frames: &mut VecDeque<Frame>) -> Result<usize, Errno> {
        if let Some(token) = self.remote_token() {
            match self.send_batch(token, frames) {
                // The remote end is gone. Its successor has not agreed to batches yet.
                Err(error) if is_gone(error) => {}
                sent => return sent,
            }
        }
        let first = &mut frames[0];
        roce::packet::complete(first);
        self.send(first).map(|()| 1)
    }

    fn send_batch(&mut self, token: u64, frames: &VecDeque<Frame>) -> Result<usize, Errno> {
        let count = batch::fitting(frames.iter());
        let head = batch::put_head(&mut self.head, token, count, frames.iter());
        let mut parts = [IoSlice::new(&[]); 1 + batch::FRAMES];
        parts[0] = IoSlice::new(&self.head[..head]);
        for (part, frame) in parts[1..].iter_mut().zip(frames.iter().take(count)) {
            *part = IoSlice::new(frame);
        }
        self.remote.send_connected(&parts[..=count]).map(|()| count)
    }

    /// Reads the next datagram: a single frame into `into`, the frames of a batch into buffers of
    /// `pool`. Returns remaining frames of the last batch first.
    pub(crate) fn receive(&mut self, into: &mut [u8], pool: &FramePool) -> Result<Received, Errno> {
        if self.lost > 0 {
            return Ok(Received::Lost(mem::take(&mut self.lost)));
        }
        if let Some(frame) = self.arrived.pop_front() {
            return Ok(Received::Frame(frame));
        }
        if self.remote.connection().is_none() {
            return self.receive_unconnected(into);
        }
        // A batch before the first greeting is refused, so the datagram can be read as a frame.
        if self.heard.is_none() {
            let (_, total) = rustix::net::recv(self.as_fd(), &mut *into, RecvFlags::TRUNC)?;
            let head = &into[..total.min(batch::HEAD)];
            return Ok(match Datagram::of(head, total) {
                Datagram::Frame => Received::Here(total),
                Datagram::Greeting { token, heard } => {
                    self.handle_greeting(token, heard);
                    Received::Nothing
                }
                Datagram::Batch { .. } | Datagram::Unknown => self.refuse(),
            });
        }
        let flags = RecvFlags::TRUNC | RecvFlags::PEEK;
        let mut head = [0; batch::HEAD];
        let (_, total) = rustix::net::recv(self.as_fd(), &mut head[..], flags)?;
        match Datagram::of(&head[..total.min(batch::HEAD)], total) {
            Datagram::Frame => {
                let (_, total) = rustix::net::recv(self.as_fd(), into, RecvFlags::TRUNC)?;
                Ok(Received::Here(total))
            }
            Datagram::Batch { token, entries } if token == self.token => {
                self.silent = 0;
                self.receive_batch(entries, pool)?;
                Ok(Received::Nothing)
            }
            Datagram::Greeting { token, heard } => {
                self.skip()?;
                self.handle_greeting(token, heard);
                Ok(Received::Nothing)
            }
            Datagram::Batch { .. } | Datagram::Unknown => {
                self.skip()?;
                Ok(self.refuse())
            }
        }
    }

    /// Discards the next datagram, which any process may have sent. The remote end may have
    /// started, so this searches for it.
    fn receive_unconnected(&mut self, into: &mut [u8]) -> Result<Received, Errno> {
        let (_, total) = rustix::net::recv(self.as_fd(), &mut *into, RecvFlags::TRUNC)?;
        let datagram = Datagram::of(&into[..total.min(batch::HEAD)], total);
        let is_greeting = matches!(datagram, Datagram::Greeting { .. });
        self.remote.reconnect();
        self.greet();
        Ok(match is_greeting {
            true => Received::Nothing,
            false => Received::Refused,
        })
    }

    /// Discards the next datagram.
    fn skip(&self) -> Result<(), Errno> {
        rustix::net::recv(self.as_fd(), &mut [0; 1][..], RecvFlags::empty()).map(drop)
    }

    /// Refuses a datagram with a wrong token or of an unknown kind, and greets the sender.
    fn refuse(&mut self) -> Received {
        self.greeting_due = true;
        self.greet();
        Received::Refused
    }

    /// Reads a batch directly into the buffers of its frames.
    fn receive_batch(
        &mut self,
        entries: batch::Entries<'_>,
        pool: &FramePool,
    ) -> Result<(), Errno> {
        let total = entries.iter().len();
        while self.arrived.len() < total {
            let rest = entries.iter().skip(self.arrived.len());
            let mut frames = Frames::new();
            pool.take_many(rest.clone().map(|(len, _)| len), &mut frames);
            // If there is no buffer for a frame, this frame and the following ones are lost.
            if frames.is_empty() {
                break;
            }
            let marked = frames.into_iter().zip(rest).map(|(mut frame, entry)| {
                frame.set_lacks_icrc(entry.1);
                frame
            });
            self.arrived.extend(marked);
        }
        self.lost = total - self.arrived.len();
        let count = self.arrived.len();
        let Self {
            remote,
            head,
            arrived,
            ..
        } = self;
        let mut parts: [IoSliceMut<'_>; 1 + batch::FRAMES] =
            std::array::from_fn(|_| IoSliceMut::new(&mut []));
        parts[0] = IoSliceMut::new(&mut head[..entries.head()]);
        for (part, frame) in parts[1..].iter_mut().zip(arrived) {
            *part = IoSliceMut::new(frame);
        }
        let read = rustix::io::readv(&*remote, &mut parts[..=count]);
        if read.is_err() {
            self.arrived.clear();
        }
        read.map(drop)
    }

    /// Whether frames were read from the socket that [`receive`](Self::receive) has yet to return.
    pub(crate) fn has_arrived(&self) -> bool {
        self.lost > 0 || !self.arrived.is_empty()
    }
}

impl AsFd for UnixUplink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.remote.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Both ends of an uplink, with sockets in a folder.
    fn ends(dir: &Path) -> [UnixUplink; 2] {
        let [a, b] = ["a", "b"].map(|name| dir.join(name));
        let bind = |path: &Path| {
            let socket = UnixDatagram::bind(path).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let sockets = [bind(&a), bind(&b)];
        let [first, second] = sockets;
        [(first, b), (second, a)].map(|(socket, remote)| UnixUplink::new(socket, remote).unwrap())
    }

    /// Lets both ends read what the other one sent, until nothing is left.
    fn exchange(ends: &mut [UnixUplink; 2]) {
        let pool = FramePool::new(1);
        for turn in 0..10 {
            while ends[turn % 2].receive(&mut [0; 200], &pool).is_ok() {}
        }
    }

    #[test]
    fn greetings_keep_the_agreement_and_silence_ends_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut ends = ends(dir.path());
        ends.iter_mut().for_each(UnixUplink::reconnect);
        exchange(&mut ends);
        for _ in 0..3 * SILENCE {
            ends.iter_mut().for_each(UnixUplink::reconnect);
            assert!(ends.iter().all(UnixUplink::takes_batches));
            exchange(&mut ends);
        }
        for _ in 0..=SILENCE {
            assert!(ends[0].takes_batches());
            ends[0].reconnect();
        }
        assert!(!ends[0].takes_batches());
    }
}
