// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! An uplink over a Unix datagram socket.
//!
//! A datagram is a frame, until both ends have found that they are switches that know
//! [batches](crate::batch). An end greets a peer that it is newly connected to, and one that has
//! greeted it. A greeting has a random token. Whoever has heard it may send batches, and in them
//! frames without an ICRC; a batch with another token is refused, and its sender greeted. The
//! agreement ends with the peer: when it is found dead, and when no greeting has come for
//! [a while](SILENCE). It is renewed with each look for a new peer.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use roce::{Frame, FramePool};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::batch::{self, Datagram};
use crate::link::Received;
use crate::unix_peer::{is_gone, UnixPeer};

/// Renewals without a greeting after which a peer counts as another one.
const SILENCE: u32 = 3;

/// The socket, and what it has agreed on with its peer.
#[derive(Debug)]
pub(crate) struct UnixUplink {
    peer: UnixPeer,
    /// The connection of the peer that the rest is about.
    connection: u64,
    /// The own token, not 0.
    token: u64,
    /// That of the peer.
    heard: Option<u64>,
    /// The peer was greeted.
    has_greeted: bool,
    /// The peer is to be greeted, again or for the first time.
    greets: bool,
    /// Renewals since the peer showed that it knows of the agreement.
    silent: u32,
    head: Box<[u8; batch::HEAD]>,
    /// Frames of a batch that have yet to be taken.
    arrived: VecDeque<Frame>,
    /// Frames of batches that had no buffers, of which nobody was told.
    lost: usize,
}

impl UnixUplink {
    /// Takes a socket and the path of its peer, which need not be there.
    pub(crate) fn new(socket: UnixDatagram, path: PathBuf) -> io::Result<Self> {
        let mut uplink = Self {
            peer: UnixPeer::new(socket, path)?,
            connection: 0,
            token: fastrand::u64(1..),
            heard: None,
            has_greeted: false,
            greets: false,
            silent: 0,
            head: Box::new([0; batch::HEAD]),
            arrived: VecDeque::with_capacity(batch::FRAMES),
            lost: 0,
        };
        uplink.greet();
        Ok(uplink)
    }

    /// Whether the peer takes batches, and frames without an ICRC in them.
    pub(crate) fn takes_batches(&self) -> bool {
        self.token_of_peer().is_some()
    }

    fn token_of_peer(&self) -> Option<u64> {
        let is_same = self.peer.connection() == Some(self.connection);
        self.heard.filter(|_| is_same && self.has_greeted)
    }

    /// Connects to the present owner of the peer's path, and sees whether it still agrees.
    pub(crate) fn renew(&mut self) {
        // It is the old peer that is asked whether it is alive.
        self.greets |= self.heard.is_some();
        self.greet();
        self.silent += 1;
        if self.silent > SILENCE {
            self.heard = None;
        }
        self.peer.renew();
        self.greet();
    }

    /// Greets the peer if that is due.
    fn greet(&mut self) {
        let connection = self.peer.connection();
        if let Some(connection) = connection.filter(|at| *at != self.connection) {
            self.connection = connection;
            self.heard = None;
            self.has_greeted = false;
            self.greets = true;
        }
        if self.greets && connection.is_some() {
            let greeting = batch::greeting(self.token, self.heard.unwrap_or(0));
            // What has no room is sent with the next renewal.
            let sent = self.peer.send_connected(&[IoSlice::new(&greeting)]);
            self.greets = sent.is_err();
            self.has_greeted |= sent.is_ok();
        }
    }

    /// Takes a greeting.
    fn is_greeted(&mut self, token: u64, heard: u64) {
        // One that this end has not found yet.
        if self.peer.connection().is_none() {
            self.peer.renew();
            self.greet();
        }
        self.heard = (token != 0).then_some(token);
        self.silent = 0;
        self.greets |= heard != self.token;
        self.greet();
    }

    /// Sends a frame by itself, to the peer's successor if it has one.
    pub(crate) fn send(&mut self, frame: &[u8]) -> Result<(), Errno> {
        let sent = self.peer.send(frame);
        self.greet();
        sent
    }

    /// Sends the first of `frames`, which are not none, and others if the peer takes batches.
    /// Returns how many.
    pub(crate) fn send_first(&mut self, frames: &mut VecDeque<Frame>) -> Result<usize, Errno> {
        if let Some(token) = self.token_of_peer() {
            match self.send_batch(token, frames) {
                // Its successor has agreed on nothing.
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
        self.peer.send_connected(&parts[..=count]).map(|()| count)
    }

    /// Reads what comes next, a single frame into `into`, those of a batch into buffers of `pool`.
    pub(crate) fn receive(&mut self, into: &mut [u8], pool: &FramePool) -> Result<Received, Errno> {
        if self.lost > 0 {
            return Ok(Received::Lost(mem::take(&mut self.lost)));
        }
        if let Some(frame) = self.arrived.pop_front() {
            return Ok(Received::Frame(frame));
        }
        // No batch comes before a greeting.
        if self.heard.is_none() {
            let (_, total) = rustix::net::recv(self.as_fd(), &mut *into, RecvFlags::TRUNC)?;
            let head = &into[..total.min(batch::HEAD)];
            return Ok(match Datagram::of(head, total) {
                Datagram::Frame => Received::Here(total),
                Datagram::Greeting { token, heard } => {
                    self.is_greeted(token, heard);
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
                self.is_greeted(token, heard);
                Ok(Received::Nothing)
            }
            Datagram::Batch { .. } | Datagram::Unknown => {
                self.skip()?;
                Ok(self.refuse())
            }
        }
    }

    /// Takes the next datagram away.
    fn skip(&self) -> Result<(), Errno> {
        rustix::net::recv(self.as_fd(), &mut [0; 1][..], RecvFlags::empty()).map(drop)
    }

    /// Refuses a datagram whose sender takes this end for another one.
    fn refuse(&mut self) -> Received {
        self.greets = true;
        self.greet();
        Received::Refused
    }

    /// Reads a batch straight into the buffers of its frames.
    fn receive_batch(
        &mut self,
        entries: batch::Entries<'_>,
        pool: &FramePool,
    ) -> Result<(), Errno> {
        for (len, lacks_icrc) in entries.iter() {
            // What has no buffer is cut off with all behind it.
            let Some(mut frame) = pool.take(len) else {
                break;
            };
            frame.set_lacks_icrc(lacks_icrc);
            self.arrived.push_back(frame);
        }
        self.lost = entries.iter().len() - self.arrived.len();
        let count = self.arrived.len();
        let Self {
            peer,
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
        let read = rustix::io::readv(&*peer, &mut parts[..=count]);
        if read.is_err() {
            self.arrived.clear();
        }
        read.map(drop)
    }

    /// Whether frames have been read from the socket that [`receive`](Self::receive) has yet to
    /// return.
    pub(crate) fn has_arrived(&self) -> bool {
        self.lost > 0 || !self.arrived.is_empty()
    }
}

impl AsFd for UnixUplink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.peer.as_fd()
    }
}
