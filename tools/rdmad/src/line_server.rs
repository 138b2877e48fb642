// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A server whose clients write one line each and read an answer until the end of the stream.
//!
//! One thread serves all clients concurrently, so that no client waits for another. The length of
//! requests, the number of clients, and the time for each client are bounded. A long answer is made
//! in pieces, the next one when the client has read the last one.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::iter;
use std::mem;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use sandbox::{Kind, Reserve, Task};
use sockets::passed::{self, MAX_DESCRIPTORS};
use sockets::{Access, SocketPath};

/// Time limit of a client, from its connection until it has read the first piece of the answer, and
/// for each further piece.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long `Drop` waits for the end of the thread. An answer may take longer, for example if the
/// disk with the file of the state does not respond. The end of the daemon does not wait for it.
const FAREWELL: Duration = Duration::from_secs(10);
/// How long [`ask`] waits for an answer.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of clients at a time. One more client replaces the oldest one.
pub const MAX_CLIENTS: usize = 16;
/// Number of bytes of a request that are read at a time.
const PIECE: usize = 4096;
/// Pause after a client could not be accepted, for example for lack of descriptors, before the
/// next attempt.
const PAUSE: Duration = Duration::from_secs(1);

/// The pieces of an answer. If one fails, the connection ends.
pub type Pieces = Box<dyn Iterator<Item = io::Result<Vec<u8>>> + Send>;

/// The requests and answers of a server.
pub trait Answers: Send + 'static {
    /// Kind of the server's thread.
    const KIND: Kind;
    /// Maximum length of a request in bytes, without its end of line.
    const MAX_REQUEST: usize;
    /// Whether requests may carry descriptors.
    const TAKES_DESCRIPTORS: bool;

    /// Answers a request that arrived with the descriptors `fds`. A request that is too long is
    /// truncated to one byte more than [`MAX_REQUEST`](Self::MAX_REQUEST). If there is no answer
    /// yet, another thread writes it to `client` later. The connection ends when `client` is
    /// dropped.
    ///
    /// # Errors
    ///
    /// If this fails, the client gets no answer.
    fn answer(
        &mut self,
        client: &Arc<UnixStream>,
        request: &[u8],
        fds: Vec<OwnedFd>,
    ) -> io::Result<Option<Pieces>>;
}

/// An answer in one piece.
pub fn whole(answer: Vec<u8>) -> Pieces {
    Box::new(iter::once(Ok(answer)))
}

/// A running server. Dropping it ends its thread and removes the socket.
pub struct LineServer {
    _socket: SocketPath,
    stop: Arc<OwnedFd>,
    thread: Task,
}

impl LineServer {
    /// Starts a server at `path`. The socket of a killed daemon is replaced.
    pub fn start<A: Answers>(path: &Path, access: &Access, mut answers: A) -> Result<Self> {
        let name = A::KIND.name();
        let (listener, socket) = sockets::listen(path, access).context(name)?;
        listener.set_nonblocking(true).context(name)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = Arc::new(eventfd(0, flags).context(name)?);
        let stopped = stop.clone();
        let serve = move || {
            if let Err(error) = serve(&listener, &stopped, &mut answers) {
                tracing::error!("the {name} socket is closed until the daemon restarts: {error}");
            }
        };
        let thread = Reserve::new(A::KIND, 1).run(name, serve);
        Ok(Self {
            _socket: socket,
            stop,
            thread: thread.with_context(|| format!("can't start the {name} thread"))?,
        })
    }
}

impl Drop for LineServer {
    fn drop(&mut self) {
        // This can't fail: no other code writes to this eventfd, so its counter is not full.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        // The thread ends, since `stop` is signalled. A panic has already been reported.
        if !self.thread.wait_for(FAREWELL) {
            tracing::error!("a thread has not ended: it is still sending its answer to a client");
        }
    }
}

/// Sends a request with descriptors to the server at `socket` and copies the answer to `to`.
/// Returns the length of the answer in bytes.
pub fn ask(
    socket: &Path,
    request: &str,
    fds: &[BorrowedFd<'_>],
    to: &mut impl Write,
) -> io::Result<u64> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(CLIENT_PATIENCE))?;
    // A single write: a second write could fail, because the server answers as soon as it has read
    // a line, and then closes the connection.
    passed::send(&stream, format!("{request}\n").as_bytes(), fds)?;
    io::copy(&mut stream, to)
}

/// Serves clients until `stop` is readable.
fn serve<A: Answers>(listener: &UnixListener, stop: &OwnedFd, answers: &mut A) -> io::Result<()> {
    let mut clients: VecDeque<Client> = VecDeque::new();
    let mut paused: Option<Instant> = None;
    loop {
        let now = Instant::now();
        paused = paused.filter(|until| *until > now);
        clients.retain(|client| client.until > now);
        let accepting = match paused {
            Some(_) => PollFlags::empty(),
            None => PollFlags::IN,
        };
        let mut fds = vec![
            PollFd::new(stop, PollFlags::IN),
            PollFd::new(listener, accepting),
        ];
        fds.extend(clients.iter().map(Client::waits));
        let next = clients.iter().map(|client| client.until).chain(paused);
        let wait = next.min().map(|at| at.saturating_duration_since(now));
        let wait = wait.and_then(|time| Timespec::try_from(time).ok());
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            return Ok(());
        }
        let mut ready_clients = ready[2..].iter();
        clients.retain_mut(|client| {
            let ready = ready_clients.next() == Some(&true);
            !ready || client.go_on(answers)
        });
        if ready[1] {
            match listener.accept() {
                Ok((stream, _)) => {
                    if clients.len() == MAX_CLIENTS {
                        clients.pop_front();
                    }
                    clients.extend(Client::new(stream));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    tracing::debug!(%error, "{} client not accepted", A::KIND);
                    paused = Some(Instant::now() + PAUSE);
                }
            }
        }
    }
}

/// A connected client.
struct Client {
    stream: Arc<UnixStream>,
    request: Vec<u8>,
    /// Descriptors that arrived with the request.
    fds: Vec<OwnedFd>,
    /// `None` until the request is complete.
    answer: Option<Answer>,
    until: Instant,
}

/// The unsent rest of an answer: of the present piece, and further pieces.
struct Answer {
    rest: VecDeque<u8>,
    pieces: Pieces,
}

impl Client {
    fn new(stream: UnixStream) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        Some(Self {
            stream: Arc::new(stream),
            request: Vec::new(),
            fds: Vec::new(),
            answer: None,
            until: Instant::now() + PATIENCE,
        })
    }

    fn waits(&self) -> PollFd<'_> {
        let flags = match self.answer {
            None => PollFlags::IN,
            Some(_) => PollFlags::OUT,
        };
        PollFd::new(&*self.stream, flags)
    }

    /// Reads or writes as much as possible without blocking. Returns whether the client must be
    /// served further.
    fn go_on(&mut self, answers: &mut impl Answers) -> bool {
        match self.try_go_on(answers) {
            Ok(more) => more,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            Err(error) => {
                tracing::debug!(%error, "client not answered");
                false
            }
        }
    }

    fn try_go_on<A: Answers>(&mut self, answers: &mut A) -> io::Result<bool> {
        if self.answer.is_none() {
            // Only one piece is read, so a client that never stops writing does not block others.
            let mut piece = [0; PIECE];
            let read = if A::TAKES_DESCRIPTORS {
                passed::receive(&self.stream, &mut piece, &mut self.fds)?
            } else {
                (&*self.stream).read(&mut piece)?
            };
            // Descriptors beyond the maximum of one request are closed.
            self.fds.truncate(MAX_DESCRIPTORS);
            let line = piece[..read].iter().position(|byte| *byte == b'\n');
            self.request.extend(&piece[..line.unwrap_or(read)]);
            // A long request is read to its end, although it is truncated: closing a socket with
            // unread input would discard the answer.
            self.request.truncate(A::MAX_REQUEST + 1);
            if read > 0 && line.is_none() {
                return Ok(true);
            }
            let fds = mem::take(&mut self.fds);
            let pieces = answers.answer(&self.stream, &self.request, fds)?;
            self.answer = pieces.map(|pieces| Answer {
                rest: VecDeque::new(),
                pieces,
            });
        }
        let Some(Answer { rest, pieces }) = &mut self.answer else {
            return Ok(false);
        };
        // At most one piece is made, so that other clients don't wait for a long answer.
        if rest.is_empty() {
            let Some(piece) = pieces.next() else {
                return Ok(false);
            };
            *rest = piece?.into();
            self.until = Instant::now() + PATIENCE;
        }
        while !rest.is_empty() {
            let (next, _) = rest.as_slices();
            let written = (&*self.stream).write(next)?;
            rest.drain(..written);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Answers with the request, repeated this number of times.
    struct Echo(usize);

    impl Answers for Echo {
        const KIND: Kind = Kind::Status;
        const MAX_REQUEST: usize = 8;
        const TAKES_DESCRIPTORS: bool = false;

        fn answer(
            &mut self,
            _: &Arc<UnixStream>,
            request: &[u8],
            _: Vec<OwnedFd>,
        ) -> io::Result<Option<Pieces>> {
            Ok(Some(whole(request.repeat(self.0))))
        }
    }

    /// Answers with pieces of this length, and counts those that were made.
    struct InPieces(usize, Arc<AtomicUsize>);

    /// Number of pieces of an answer.
    const PIECES: usize = 100;

    impl Answers for InPieces {
        const KIND: Kind = Kind::Status;
        const MAX_REQUEST: usize = 8;
        const TAKES_DESCRIPTORS: bool = false;

        fn answer(
            &mut self,
            _: &Arc<UnixStream>,
            request: &[u8],
            _: Vec<OwnedFd>,
        ) -> io::Result<Option<Pieces>> {
            let (piece, made) = (request.repeat(self.0), self.1.clone());
            let piece = move |_| {
                made.fetch_add(1, Ordering::SeqCst);
                Ok(piece.clone())
            };
            Ok(Some(Box::new((0..PIECES).map(piece))))
        }
    }

    fn said(path: &Path, request: &str) -> Vec<u8> {
        let mut answer = Vec::new();
        ask(path, request, &[], &mut answer).unwrap();
        answer
    }

    #[test]
    fn clients_that_do_not_ask_or_read_hold_nobody_up() {
        // An answer of more bytes than the socket holds.
        const LONG: usize = 1 << 20;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let server = LineServer::start(&path, &Access::default(), Echo(LONG)).unwrap();
        let silent = UnixStream::connect(&path).unwrap();
        let mut deaf = UnixStream::connect(&path).unwrap();
        deaf.write_all(b"x\n").unwrap();
        assert_eq!(said(&path, "y").len(), LONG);
        // Dropping the server must not wait for these clients: one that sends no request, and one
        // that does not read its answer.
        drop(server);
        assert!(!path.exists());
        drop((silent, deaf));
    }

    #[test]
    fn pieces_are_made_as_they_are_read() {
        const LONG: usize = 1 << 16;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let made = Arc::new(AtomicUsize::new(0));
        let answers = InPieces(LONG, made.clone());
        let _server = LineServer::start(&path, &Access::default(), answers).unwrap();
        let mut slow = UnixStream::connect(&path).unwrap();
        slow.write_all(b"x\n").unwrap();
        let mut first = [0; 1];
        slow.read_exact(&mut first).unwrap();
        // The other client is served between pieces of the first one, and gets all of its own.
        assert_eq!(said(&path, "y").len(), PIECES * LONG);
        let buffered = made.load(Ordering::SeqCst) - PIECES;
        assert!(
            buffered < PIECES / 2,
            "{buffered} pieces were made for nobody"
        );
        let mut rest = Vec::new();
        slow.read_to_end(&mut rest).unwrap();
        assert_eq!(1 + rest.len(), PIECES * LONG);
        assert_eq!(made.load(Ordering::SeqCst), 2 * PIECES);
    }

    #[test]
    fn clients_are_bounded_and_the_last_is_served() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let _server = LineServer::start(&path, &Access::default(), Echo(1)).unwrap();
        let silent: Vec<_> = (0..3 * MAX_CLIENTS)
            .map(|_| UnixStream::connect(&path).unwrap())
            .collect();
        assert_eq!(said(&path, "yes"), b"yes");
        drop(silent);
    }

    #[test]
    fn requests_are_bounded_and_come_in_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let _server = LineServer::start(&path, &Access::default(), Echo(1)).unwrap();
        assert_eq!(said(&path, "12345678"), b"12345678");
        assert_eq!(said(&path, "12\n34"), b"12");
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"1234").unwrap();
        stream.write_all(&[b'5'; 3 * PIECE]).unwrap();
        stream.write_all(b"\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(
            answer, b"123455555",
            "one byte more tells that it is longer"
        );
    }

    #[test]
    fn the_end_does_not_need_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let server = LineServer::start(&path, &Access::default(), Echo(1)).unwrap();
        // Another daemon binds a socket at the same path.
        std::fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(server);
        other.set_nonblocking(true).unwrap();
        assert!(other.accept().is_err(), "nobody has connected");
    }
}
