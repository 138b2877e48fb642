// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The status of a running daemon: a socket that tells it, and the command that asks for it.
//!
//! A client writes one word, `text`, `json` or `metrics`, and gets the answer until the end of the
//! stream. The daemon has one thread for this, which serves its clients side by side: none waits
//! for another. It looks at devices without holding their workers up.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use sandbox::Kind;
use sockets::{Access, SocketPath};

use crate::metrics;
use crate::report::Report;

/// How long a client may take to ask and to read the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long who asks waits.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a request at most.
const MAX_REQUEST: usize = 16;
/// Clients at a time. One more takes the place of the one that is there for longest.
const MAX_CLIENTS: usize = 16;
/// Pause before the next client after one could not be accepted, for example for lack of
/// descriptors.
const PAUSE: Duration = Duration::from_secs(1);

/// Form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Tables.
    Text,
    /// JSON.
    Json,
    /// OpenMetrics.
    Metrics,
}

impl Form {
    const fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
            Self::Metrics => "metrics",
        }
    }

    fn of(word: &[u8]) -> Option<Self> {
        [Self::Text, Self::Json, Self::Metrics]
            .into_iter()
            .find(|form| form.word().as_bytes() == word)
    }
}

/// The thread that tells the status. Dropping it ends the thread and removes the socket.
pub struct Server {
    _socket: SocketPath,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `path`, where the socket of a daemon that was killed may lie, and answers with
    /// what `look` sees.
    pub fn start(
        path: &Path,
        access: &Access,
        look: impl Fn() -> Report + Send + 'static,
    ) -> Result<Self> {
        let (listener, socket) = sockets::listen(path, access).context("status")?;
        listener.set_nonblocking(true).context("status")?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = Arc::new(eventfd(0, flags).context("status")?);
        let stopped = stop.clone();
        let thread = sandbox::spawn(Kind::Status, "status", move || {
            if let Err(error) = serve(&listener, &stopped, look) {
                tracing::error!("the status is not told any more: {error}");
            }
        })
        .context("can't start the thread of the status")?;
        Ok(Self {
            _socket: socket,
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nobody else has it, so its counter is not full.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // It ends by itself; if it panicked, that was printed.
            let _ = thread.join();
        }
    }
}

/// Serves clients until `stop` can be read.
fn serve(listener: &UnixListener, stop: &OwnedFd, look: impl Fn() -> Report) -> io::Result<()> {
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
            !ready || client.go_on(&look)
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
                    tracing::debug!(%error, "status not told");
                    paused = Some(Instant::now() + PAUSE);
                }
            }
        }
    }
}

/// A client that asks.
struct Client {
    stream: UnixStream,
    request: Vec<u8>,
    /// The rest of the answer, once there was a request.
    answer: Option<VecDeque<u8>>,
    until: Instant,
}

impl Client {
    fn new(stream: UnixStream) -> Option<Self> {
        stream.set_nonblocking(true).ok()?;
        Some(Self {
            stream,
            request: Vec::new(),
            answer: None,
            until: Instant::now() + PATIENCE,
        })
    }

    fn waits(&self) -> PollFd<'_> {
        let flags = match self.answer {
            None => PollFlags::IN,
            Some(_) => PollFlags::OUT,
        };
        PollFd::new(&self.stream, flags)
    }

    /// Goes on as far as that needs no waiting. Returns whether there is more to do.
    fn go_on(&mut self, look: impl Fn() -> Report) -> bool {
        match self.try_go_on(look) {
            Ok(more) => more,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            Err(error) => {
                tracing::debug!(%error, "status not told");
                false
            }
        }
    }

    fn try_go_on(&mut self, look: impl Fn() -> Report) -> io::Result<bool> {
        let mut byte = [0];
        while self.answer.is_none() {
            if self.stream.read(&mut byte)? == 1 && byte != *b"\n" {
                self.request.extend(byte);
                if self.request.len() <= MAX_REQUEST {
                    continue;
                }
            }
            let text = match Form::of(&self.request) {
                Some(Form::Text) => look().to_string(),
                Some(Form::Json) => serde_json::to_string(&look())? + "\n",
                Some(Form::Metrics) => metrics::text(look()),
                None => return Err(io::Error::other("unknown request")),
            };
            self.answer = Some(text.into_bytes().into());
        }
        let answer = self.answer.get_or_insert_default();
        while !answer.is_empty() {
            let (next, _) = answer.as_slices();
            let written = self.stream.write(next)?;
            answer.drain(..written);
        }
        Ok(false)
    }
}

/// Asks the daemon that listens at `socket` and copies its answer to `to`.
pub fn show(socket: &Path, form: Form, to: &mut impl Write) -> Result<()> {
    let context = || format!("no status from {}", socket.display());
    let mut stream = UnixStream::connect(socket).with_context(context)?;
    stream.set_read_timeout(Some(CLIENT_PATIENCE))?;
    writeln!(stream, "{}", form.word()).with_context(context)?;
    let copied = io::copy(&mut stream, to).with_context(context)?;
    if copied == 0 {
        bail!("{}: it does not know the question", context());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::RuntimeStatus;

    fn empty() -> Report {
        Report::new(RuntimeStatus::default(), [], Vec::new())
    }

    #[test]
    fn clients_that_do_not_ask_or_read_hold_nobody_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status");
        // More than the socket holds.
        let long = || {
            let stats = vswitch::stats::Stats {
                name: "x".repeat(1 << 20),
                ..Default::default()
            };
            Report::new(RuntimeStatus::default(), [], vec![stats])
        };
        let server = Server::start(&path, &Access::default(), long).unwrap();
        let silent = UnixStream::connect(&path).unwrap();
        let mut deaf = UnixStream::connect(&path).unwrap();
        deaf.write_all(b"json\n").unwrap();
        let mut answer = Vec::new();
        show(&path, Form::Json, &mut answer).unwrap();
        assert!(answer.len() > 1 << 20);
        // The end waits for neither.
        drop(server);
        assert!(!path.exists());
        drop((silent, deaf));
    }

    #[test]
    fn clients_are_bounded_and_the_last_is_served() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status");
        let _server = Server::start(&path, &Access::default(), empty).unwrap();
        let silent: Vec<_> = (0..3 * MAX_CLIENTS)
            .map(|_| UnixStream::connect(&path).unwrap())
            .collect();
        let mut answer = Vec::new();
        show(&path, Form::Text, &mut answer).unwrap();
        assert!(answer.starts_with(b"virtio-rdmad"));
        drop(silent);
    }

    #[test]
    fn the_end_does_not_need_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status");
        let server = Server::start(&path, &Access::default(), empty).unwrap();
        // Another daemon's by now.
        std::fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(server);
        other.set_nonblocking(true).unwrap();
        assert!(other.accept().is_err(), "nobody has connected");
    }
}
