// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A client's stream: messages with their file descriptors in, replies out.
//!
//! Input is read in chunks, since posted writes come in thousands. The kernel ends a read behind the message that
//! carries descriptors, so those that come with a chunk belong to the last message that begins in it.

use std::io;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::RecvAncillaryBuffer;
use rustix::net::RecvAncillaryMessage;
use rustix::net::RecvFlags;
use rustix::net::ReturnFlags;

use crate::message::Header;
use crate::message::HEADER_LEN;
use crate::message::MAX_FDS;
use crate::message::MAX_MESSAGE;

/// What a read of the stream gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Data,
    /// Nothing to be had now.
    Nothing,
    Closed,
}

/// The client broke the protocol, and where its next message begins is unknown.
#[derive(Debug, thiserror::Error)]
#[error("message of {0} bytes")]
pub(crate) struct BadLength(u32);

/// A connected client.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    buffer: Box<[u8]>,
    /// The received and not yet taken bytes of `buffer`.
    start: usize,
    end: usize,
    /// Descriptors, and the end of the chunk that they came with.
    fds: Vec<OwnedFd>,
    fds_before: usize,
}

/// A message in the buffer.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub(crate) header: Header,
    pub(crate) payload: &'a [u8],
    pub(crate) fds: Vec<OwnedFd>,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            buffer: vec![0; MAX_MESSAGE].into_boxed_slice(),
            start: 0,
            end: 0,
            fds: Vec::new(),
            fds_before: 0,
        })
    }

    /// Reads what has come. To be called when [`next`](Self::next) has no message left.
    pub(crate) fn receive(&mut self) -> io::Result<Received> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.fds_before = self.fds_before.saturating_sub(self.start);
        self.end -= self.start;
        self.start = 0;

        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let result = rustix::net::recvmsg(
            &self.stream,
            &mut [IoSliceMut::new(&mut self.buffer[self.end..])],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        let len = match result {
            // Which ones are missing is unknown, and so is whose.
            Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => {
                return Err(io::Error::other(format!(
                    "descriptors of a message are lost: it has more than {MAX_FDS}, or this process has too many open \
                     files (raise RLIMIT_NOFILE)"
                )));
            }
            Ok(message) => message.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
            Err(Errno::CONNRESET) => return Ok(Received::Closed),
            Err(error) => return Err(error.into()),
        };
        if len == 0 {
            return Ok(Received::Closed);
        }
        self.end += len;
        let mut fds: Vec<OwnedFd> = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if !fds.is_empty() {
            // Older ones that no message took are closed.
            self.fds = fds;
            self.fds_before = self.end;
        }
        Ok(Received::Data)
    }

    /// The next message, if all of it is here.
    pub(crate) fn next(&mut self) -> Result<Option<Message<'_>>, BadLength> {
        let available = &self.buffer[self.start..self.end];
        let Some(header) = available.first_chunk::<HEADER_LEN>().map(Header::decode) else {
            return Ok(None);
        };
        let len = header.size as usize;
        if !(HEADER_LEN..=MAX_MESSAGE).contains(&len) {
            return Err(BadLength(header.size));
        }
        if available.len() < len {
            return Ok(None);
        }
        let payload = self.start + HEADER_LEN..self.start + len;
        self.start += len;
        // Another message that begins before the descriptors' end is a better owner.
        let fds = if self.start >= self.fds_before {
            std::mem::take(&mut self.fds)
        } else {
            Vec::new()
        };
        Ok(Some(Message {
            header,
            payload: &self.buffer[payload],
            fds,
        }))
    }

    /// Sends all of `data`. Waits for the client, but no longer than until `interrupt` can be read.
    pub(crate) fn send(&self, mut data: &[u8], interrupt: BorrowedFd<'_>) -> io::Result<()> {
        while !data.is_empty() {
            match rustix::net::send(&self.stream, data, rustix::net::SendFlags::NOSIGNAL) {
                Ok(len) => data = &data[len..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let mut fds = [
                        PollFd::new(&self.stream, PollFlags::OUT),
                        PollFd::from_borrowed_fd(interrupt, PollFlags::IN),
                    ];
                    match rustix::event::poll(&mut fds, None) {
                        Err(error) if error != Errno::INTR => return Err(error.into()),
                        _ => {}
                    }
                    if !fds[1].revents().is_empty() {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
