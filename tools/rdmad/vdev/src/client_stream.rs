// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A client's stream: it receives messages with their file descriptors and sends replies.
//!
//! Input is read in chunks, since posted writes arrive by the thousand. The kernel ends a read
//! after bytes that carry descriptors, so descriptors that arrive with a chunk belong to the last
//! message that begins in the chunk.
//!
//! Messages stay in the socket until they were executed, and only then are
//! [taken](ClientStream::take) out: if the engine dies, the next one executes them. Each message
//! can be executed twice, but the client would not understand a second
//! [reply](crate::reply_pipe).

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};

use crate::message::{Header, Payload, Structure, MAX_FDS, MAX_MESSAGE};

/// The result of a read of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamRead {
    Data,
    /// No input is available now.
    Nothing,
    Closed,
}

/// The client sent a message of invalid length, so the start of its next message is unknown.
#[derive(Debug, thiserror::Error)]
#[error("message of {0} bytes")]
pub(crate) struct BadLength(u32);

/// A connected client.
#[derive(Debug)]
pub(crate) struct ClientStream {
    stream: UnixStream,
    buffer: Box<[u8]>,
    /// `start..end` is the range of `buffer` with received bytes that [`next`](Self::next) has not
    /// returned yet.
    start: usize,
    end: usize,
    /// The bytes of `buffer` up to here were taken out of the socket, the others only looked at.
    taken: usize,
    /// Descriptors that were not returned with a message yet: first those of an incomplete message,
    /// then those of the last chunk.
    waiting: VecDeque<Descriptors>,
}

/// Descriptors that arrived with one chunk.
#[derive(Debug)]
struct Descriptors {
    fds: Vec<OwnedFd>,
    /// Offset in the buffer at which the chunk ends.
    before: usize,
}

/// A message in the buffer.
#[derive(Debug)]
pub(crate) struct ClientMessage<'a> {
    pub(crate) header: Header,
    pub(crate) payload: &'a [u8],
    pub(crate) fds: Vec<OwnedFd>,
}

impl ClientStream {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            buffer: vec![0; MAX_MESSAGE].into_boxed_slice(),
            start: 0,
            end: 0,
            taken: 0,
            waiting: VecDeque::new(),
        })
    }

    /// Reads available input. To be called when [`next`](Self::next) has no message left, and all
    /// others were [taken](Self::take).
    pub(crate) fn receive(&mut self) -> io::Result<StreamRead> {
        // The rest of an incomplete message that was only looked at is read again.
        self.end = self.taken;
        self.waiting.retain(|it| it.before <= self.taken);
        self.buffer.copy_within(self.start..self.end, 0);
        // This can't underflow: `next` has taken the descriptors of chunks that end at or before
        // `start`.
        for descriptors in &mut self.waiting {
            descriptors.before -= self.start;
        }
        self.end -= self.start;
        (self.start, self.taken) = (0, self.end);
        let (len, waiting) = (self.end, self.waiting.len());
        let read = self.read(RecvFlags::PEEK)?;
        let whole = self.end_of_messages();
        let has_descriptors = self.waiting.len() > waiting;
        // The rest of a message may never come: the thread could not sleep while a part of it is in
        // the socket. And once a part of a chunk is taken, the kernel has no descriptors of the
        // chunk any more, so those of an incomplete message must be kept here.
        let is_cut = whole == self.start || has_descriptors && whole < self.end;
        if read == StreamRead::Data && is_cut {
            self.end = len;
            self.waiting.truncate(waiting);
            let read = self.read(RecvFlags::empty())?;
            self.taken = self.end;
            return Ok(read);
        }
        Ok(read)
    }

    /// The end of the last whole message in the buffer, or of the whole input if a message has an
    /// invalid length: [`next`](Self::next) fails for that message.
    fn end_of_messages(&self) -> usize {
        let mut end = self.start;
        loop {
            let available = &self.buffer[end..self.end];
            match Header::decode(&mut Payload(available)).map(|header| header.size as usize) {
                Ok(len) if !(Header::LEN..=MAX_MESSAGE).contains(&len) => return self.end,
                Ok(len) if len <= available.len() => end += len,
                Ok(_) | Err(_) => return end,
            }
        }
    }

    /// The end of the first whole message for which `is_it` is true.
    fn end_of(&self, is_it: impl Fn(&Header) -> bool) -> Option<usize> {
        let messages = self.end_of_messages();
        let mut start = self.start;
        while start < messages {
            let header = Header::decode(&mut Payload(&self.buffer[start..messages])).ok()?;
            start += header.size as usize;
            if is_it(&header) {
                return Some(start);
            }
        }
        None
    }

    /// Takes a message that the last engine has executed out of the socket, and those before it,
    /// unless that engine has taken it. `is_it` tells this message by its header.
    pub(crate) fn take_executed(&mut self, is_it: impl Fn(&Header) -> bool) -> io::Result<()> {
        self.receive()?;
        if let Some(end) = self.end_of(is_it) {
            self.start = end;
            self.waiting.retain(|it| it.before > end);
        }
        self.take()
    }

    /// Whether all that [`next`](Self::next) has not returned yet is in the socket, where another
    /// engine finds it.
    pub(crate) fn is_in_socket(&self) -> bool {
        self.taken <= self.start
    }

    /// Takes the messages that [`next`](Self::next) has returned out of the socket.
    pub(crate) fn take(&mut self) -> io::Result<()> {
        while self.taken < self.start {
            // The same bytes again, without their descriptors.
            let bytes = &mut self.buffer[self.taken..self.start];
            match rustix::net::recv(&self.stream, bytes, RecvFlags::empty()) {
                Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((_, len)) => self.taken += len,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads a chunk.
    fn read(&mut self, flags: RecvFlags) -> io::Result<StreamRead> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let result = rustix::net::recvmsg(
            &self.stream,
            &mut [IoSliceMut::new(&mut self.buffer[self.end..])],
            &mut control,
            RecvFlags::CMSG_CLOEXEC | flags,
        );
        let len = match result {
            // It is unknown which descriptors are missing and to which messages they belong.
            Ok(message) if message.flags.contains(ReturnFlags::CTRUNC) => {
                return Err(io::Error::other(format!(
                    "descriptors of a message are lost: it has more than {MAX_FDS}, or this process has too many open \
                     files (raise RLIMIT_NOFILE)"
                )));
            }
            Ok(message) => message.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(StreamRead::Nothing),
            Err(Errno::CONNRESET) => return Ok(StreamRead::Closed),
            Err(error) => return Err(error.into()),
        };
        if len == 0 {
            return Ok(StreamRead::Closed);
        }
        self.end += len;
        let mut fds: Vec<OwnedFd> = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if !fds.is_empty() {
            // All waiting descriptors belong to the incomplete message, which will get only those
            // that arrived last. So the older descriptors are dropped.
            if self.waiting.len() > 1 {
                self.waiting.pop_front();
            }
            let before = self.end;
            self.waiting.push_back(Descriptors { fds, before });
        }
        Ok(StreamRead::Data)
    }

    /// The next message, if all of it has arrived.
    pub(crate) fn next(&mut self) -> Result<Option<ClientMessage<'_>>, BadLength> {
        let available = &self.buffer[self.start..self.end];
        let Ok(header) = Header::decode(&mut Payload(available)) else {
            return Ok(None);
        };
        let len = header.size as usize;
        if !(Header::LEN..=MAX_MESSAGE).contains(&len) {
            return Err(BadLength(header.size));
        }
        if available.len() < len {
            return Ok(None);
        }
        let payload = self.start + Header::LEN..self.start + len;
        self.start += len;
        // Descriptors of a chunk that ends after this message belong to a later message.
        let mut fds = Vec::new();
        while self
            .waiting
            .front()
            .is_some_and(|it| it.before <= self.start)
        {
            if let Some(descriptors) = self.waiting.pop_front() {
                fds = descriptors.fds;
            }
        }
        Ok(Some(ClientMessage {
            header,
            payload: &self.buffer[payload],
            fds,
        }))
    }
}

impl AsFd for ClientStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Write};

    use rustix::event::{eventfd, EventfdFlags};
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

    use super::*;

    /// A message of `len` bytes.
    fn message(id: u16, len: usize) -> Vec<u8> {
        let mut message = vec![0; len];
        message[..2].copy_from_slice(&id.to_ne_bytes());
        message[4..8].copy_from_slice(&(len as u32).to_ne_bytes());
        message
    }

    /// An eventfd with the counter `mark`, by which a test recognizes it.
    fn marked(mark: u16) -> OwnedFd {
        eventfd(mark.into(), EventfdFlags::NONBLOCK).unwrap()
    }

    fn mark(fd: &OwnedFd) -> u64 {
        let mut value = [0; 8];
        rustix::io::read(fd, &mut value).unwrap();
        u64::from_ne_bytes(value)
    }

    fn send_with_fd(stream: &UnixStream, message: &[u8], fd: &OwnedFd) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let flags = SendFlags::empty();
        let sent = rustix::net::sendmsg(stream, &[IoSlice::new(message)], &mut control, flags);
        assert_eq!(sent, Ok(message.len()));
    }

    #[test]
    fn descriptors_stay_with_a_message_that_two_reads_cut() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let mut stream = ClientStream::new(server).unwrap();
        // The first read fills the buffer with message 1 and the first 8 bytes of message 2. The
        // descriptor of message 2 arrives with this read.
        client.write_all(&message(1, MAX_MESSAGE - 8)).unwrap();
        for id in [2, 3] {
            send_with_fd(&client, &message(id, 32), &marked(id));
        }
        let mut got = Vec::new();
        while stream.receive().unwrap() == StreamRead::Data {
            while let Some(message) = stream.next().unwrap() {
                let marks: Vec<_> = message.fds.iter().map(mark).collect();
                got.push((message.header.id, marks));
            }
            stream.take().unwrap();
        }
        assert_eq!(got, [(1, vec![]), (2, vec![2]), (3, vec![3])]);
    }

    /// Another stream at the same socket, as that of the next engine, finds what was not taken.
    #[test]
    fn messages_are_there_until_they_are_taken() {
        let (client, server) = UnixStream::pair().unwrap();
        let all = [message(1, 40), message(2, 32), message(3, 16)].concat();
        (&client).write_all(&all).unwrap();
        send_with_fd(&client, &message(4, 24), &marked(4));
        let another = || ClientStream::new(server.try_clone().unwrap()).unwrap();
        let ids = |stream: &mut ClientStream, count: usize| {
            assert_eq!(stream.receive().unwrap(), StreamRead::Data);
            let ids = (0..count).map(|_| {
                let message = stream.next().unwrap().unwrap();
                let marks: Vec<_> = message.fds.iter().map(mark).collect();
                (message.header.id, marks)
            });
            Vec::from_iter(ids)
        };
        let mut stream = another();
        assert_eq!(ids(&mut stream, 2), [(1, vec![]), (2, vec![])]);
        assert_eq!(ids(&mut another(), 1), [(1, vec![])]);
        stream.take().unwrap();
        // The counter of an eventfd is read once.
        assert_eq!(ids(&mut another(), 2), [(3, vec![]), (4, vec![4])]);
        let (rest, _) = stream
            .next()
            .unwrap()
            .map(|it| (it.header.id, it.fds))
            .unwrap();
        assert_eq!(rest, 3);
        while stream.next().unwrap().is_some() {}
        stream.take().unwrap();
        assert_eq!(another().receive().unwrap(), StreamRead::Nothing);
    }

    /// The kernel gives up the descriptors of a chunk when a part of it is taken.
    #[test]
    fn descriptors_of_a_cut_message_outlive_the_message_before() {
        let (client, server) = UnixStream::pair().unwrap();
        let mut stream = ClientStream::new(server).unwrap();
        let second = message(2, 64);
        let chunk = [&message(1, 32), &second[..20]].concat();
        send_with_fd(&client, &chunk, &marked(7));
        let mut got = Vec::new();
        for rest in [&[][..], &second[20..]] {
            (&client).write_all(rest).unwrap();
            while stream.receive().unwrap() == StreamRead::Data {
                while let Some(message) = stream.next().unwrap() {
                    let marks: Vec<_> = message.fds.iter().map(mark).collect();
                    got.push((message.header.id, marks));
                    stream.take().unwrap();
                }
            }
        }
        assert_eq!(got, [(1, vec![]), (2, vec![7])]);
    }

    /// A client that does not send the rest of a message does not keep the thread awake.
    #[test]
    fn a_part_of_a_message_is_read_once() {
        let (client, server) = UnixStream::pair().unwrap();
        let mut stream = ClientStream::new(server).unwrap();
        let whole = [message(1, 32), message(2, 64)].concat();
        let mut got = Vec::new();
        for part in [&whole[..10], &whole[10..50], &whole[50..90], &whole[90..]] {
            (&client).write_all(part).unwrap();
            let mut reads = 0;
            while stream.receive().unwrap() == StreamRead::Data {
                reads += 1;
                while let Some(message) = stream.next().unwrap() {
                    got.push(message.header.id);
                }
                stream.take().unwrap();
            }
            assert!(reads <= 2, "{reads} reads");
        }
        assert_eq!(got, [1, 2]);
    }
}
