// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The last step of a reply, which an engine can die in without sending it twice or never.
//!
//! A reply is written to a pipe, its command is taken out of the socket, and the kernel moves the
//! reply from the pipe to the socket. So what is in the pipe when an engine dies is what the client
//! has not received.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::pipe::{pipe_with, splice, PipeFlags, SpliceFlags};

use sandbox::Passer;

use crate::message::MAX_REPLY;

/// Bytes that each pipe holds: two pages, even if its user has too many pipes.
const CAPACITY: usize = 2 * 4096;
const _: () = assert!(MAX_REPLY <= CAPACITY);

/// The pipe of a client's replies.
#[derive(Debug)]
pub(crate) struct ReplyPipe {
    pub(crate) output: OwnedFd,
    pub(crate) input: OwnedFd,
}

impl ReplyPipe {
    pub(crate) fn new() -> io::Result<Self> {
        let (output, input) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self { output, input })
    }

    /// Whether no reply is on its way.
    pub(crate) fn is_empty(&self) -> io::Result<bool> {
        let mut output = [PollFd::new(&self.output, PollFlags::IN)];
        poll(&mut output, Some(&Timespec::default()))?;
        Ok(!output[0].revents().contains(PollFlags::IN))
    }

    /// Stores a reply. The pipe is empty.
    pub(crate) fn put(&self, reply: &[u8]) -> io::Result<()> {
        debug_assert!(reply.len() <= MAX_REPLY);
        match rustix::io::write(&self.input, reply)? {
            len if len == reply.len() => Ok(()),
            _ => Err(io::Error::other("the reply does not fit into its pipe")),
        }
    }

    /// Sends what was stored to the client. Waits for room in the socket, but only until
    /// `interrupt` is readable. Meanwhile the gate of `passer` holds the thread: the next engine
    /// can send what the pipe has.
    pub(crate) fn send(
        &self,
        client: BorrowedFd<'_>,
        interrupt: BorrowedFd<'_>,
        passer: &Passer,
    ) -> io::Result<()> {
        let flags = SpliceFlags::NONBLOCK;
        loop {
            match splice(&self.output, None, client, None, CAPACITY, flags) {
                Ok(_) | Err(Errno::INTR) => {}
                // The socket has no room, or there is nothing to send.
                Err(Errno::AGAIN) if !self.is_empty()? => {
                    let mut fds = [
                        PollFd::from_borrowed_fd(client, PollFlags::OUT),
                        PollFd::from_borrowed_fd(interrupt, PollFlags::IN),
                    ];
                    match passer.while_held(|| poll(&mut fds, None)) {
                        Err(error) if error != Errno::INTR => return Err(error.into()),
                        _ => {}
                    }
                    if !fds[1].revents().is_empty() {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                }
                Err(Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
            if self.is_empty()? {
                return Ok(());
            }
        }
    }
}

impl From<[OwnedFd; 2]> for ReplyPipe {
    fn from([output, input]: [OwnedFd; 2]) -> Self {
        Self { output, input }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use rustix::event::{eventfd, EventfdFlags};
    use sandbox::Gate;

    use super::*;

    #[test]
    fn the_longest_reply_fits() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let pipe = ReplyPipe::new().unwrap();
        // The capacity that the kernel gives a user with many pipes.
        rustix::pipe::fcntl_setpipe_size(&pipe.input, CAPACITY).unwrap();
        let reply: Vec<_> = (0..MAX_REPLY).map(|at| at as u8).collect();
        pipe.put(&reply).unwrap();
        assert!(!pipe.is_empty().unwrap());
        let passer = Arc::new(Gate::default()).enter();
        pipe.send(server.as_fd(), server.as_fd(), &passer).unwrap();
        assert!(pipe.is_empty().unwrap());
        let mut received = vec![0; reply.len()];
        client.read_exact(&mut received).unwrap();
        assert_eq!(received, reply);
    }

    #[test]
    fn a_client_that_reads_no_replies_holds_nobody_up() {
        let (client, server) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let pipe = ReplyPipe::new().unwrap();
        let interrupt = eventfd(1, EventfdFlags::NONBLOCK).unwrap();
        let passer = Arc::new(Gate::default()).enter();
        // More than the socket holds, and the client does not read.
        let error = loop {
            pipe.put(&[0; MAX_REPLY]).unwrap();
            if let Err(error) = pipe.send(server.as_fd(), interrupt.as_fd(), &passer) {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::Interrupted);
        drop(client);
    }
}
