// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The agent in a guest: runs commands for the host, and passes the commands of `on` to the host.
//!
//! The agent uses a virtio-serial port, so it does not depend on the network under test.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{chown, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use guest::proto::{Exec, Frame, Kind, CHUNK};
use guest::{AGENT_PHASE, NAME};
use rustix::process::{kill_process_group, Pid, Signal};

use crate::spawn::{resize, spawn, Running};
use crate::{marks, port};

/// The socket through which `on` reaches the agent.
pub const SOCKET: &str = "/run/virtio-rdma/agent";
/// How long to wait for the end of output after a command has ended: its children may keep the
/// pipes open.
const LINGER: Duration = Duration::from_secs(1);

/// The receiver of a stream's frames from the host.
enum Stream {
    /// A command of this guest: its process group, the queue of its standard input, and its
    /// terminal if it has one.
    Command {
        group: Pid,
        stdin: Sender<Vec<u8>>,
        terminal: Option<File>,
    },
    /// An `on` process of this guest: the queue of frames to this process.
    Client(Sender<Frame>),
}

struct Agent {
    port: Mutex<File>,
    streams: Mutex<HashMap<u32, Stream>>,
    next: AtomicU32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves the host until the host requests the guest's end or the port closes.
pub fn run() -> Result<()> {
    let mut port = port::open()?;
    let agent = Arc::new(Agent {
        port: Mutex::new(port.try_clone()?),
        streams: Mutex::default(),
        next: AtomicU32::new(1),
    });

    let listener = UnixListener::bind(SOCKET).with_context(|| format!("can't bind {SOCKET}"))?;
    // A process that may connect can run commands in all guests. Only root and the user of the
    // run's commands may.
    fs::set_permissions(SOCKET, Permissions::from_mode(0o600))?;
    let server = Arc::clone(&agent);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let agent = Arc::clone(&server);
            thread::spawn(move || agent.serve(client));
        }
    });

    marks::end(AGENT_PHASE)?;
    agent.send(&Frame::new(Kind::Hello, 0, []))?;
    loop {
        let frame = Frame::read(&mut port).context("the host's port closed")?;
        if frame.kind == Kind::PowerOff {
            return Ok(());
        }
        agent.dispatch(frame);
    }
}

/// Lets the user of a command use `on`.
fn admit(exec: &Exec) -> io::Result<()> {
    match &exec.user {
        Some(user) => chown(SOCKET, Some(user.uid), Some(user.gid)),
        None => Ok(()),
    }
}

impl Agent {
    fn send(&self, frame: &Frame) -> io::Result<()> {
        frame.write(&mut *lock(&self.port))
    }

    /// Handles a frame from the host. Never waits for the receiver: a receiver that does not read
    /// must not block other streams.
    fn dispatch(self: &Arc<Self>, frame: Frame) {
        if frame.kind == Kind::Exec {
            self.start(&frame);
            return;
        }
        let mut streams = lock(&self.streams);
        match (streams.get(&frame.stream), frame.kind) {
            (Some(Stream::Command { stdin, .. }), Kind::Stdin) => {
                // Input is dropped if the command has closed its input or ended.
                let _ = stdin.send(frame.payload);
            }
            (Some(Stream::Command { group, .. }), Kind::Kill) => {
                let _ = kill_process_group(*group, Signal::KILL);
            }
            (Some(Stream::Command { group, .. }), Kind::Signal) => {
                let number = i32::try_from(frame.number()).unwrap_or(0);
                if let Some(signal) = Signal::from_named_raw(number) {
                    let _ = kill_process_group(*group, signal);
                }
            }
            (
                Some(Stream::Command {
                    terminal: Some(terminal),
                    ..
                }),
                Kind::Resize,
            ) => {
                let _ = resize(terminal, frame.size());
            }
            (Some(Stream::Client(queue)), kind) => {
                let stream = frame.stream;
                let _ = queue.send(frame);
                if kind == Kind::Exit {
                    streams.remove(&stream);
                }
            }
            _ => {}
        }
    }

    /// Starts the command of an Exec frame.
    fn start(self: &Arc<Self>, frame: &Frame) {
        let stream = frame.stream;
        let started = serde_json::from_slice(&frame.payload)
            .map_err(|error| (2, error.to_string()))
            .and_then(|exec| {
                admit(&exec).map_err(|error| (2, format!("{SOCKET}: {error}")))?;
                spawn(&exec)
            });
        match started {
            Ok(running) => {
                let agent = Arc::clone(self);
                // Registered now, since the next frame may be for this stream.
                let stdin = agent.register(stream, &running);
                thread::spawn(move || agent.attend(stream, running, stdin));
            }
            Err((status, what)) => {
                let text = format!("{NAME}: {what}\n");
                let _ = self.send(&Frame::new(Kind::Stderr, stream, text));
                let _ = self.send(&Frame::exit(stream, status));
            }
        }
    }

    fn register(&self, stream: u32, running: &Running) -> mpsc::Receiver<Vec<u8>> {
        let (stdin, queue) = mpsc::channel();
        let terminal = running.terminal.as_ref();
        lock(&self.streams).insert(
            stream,
            Stream::Command {
                group: Pid::from_child(&running.child),
                stdin,
                terminal: terminal.and_then(|terminal| terminal.try_clone().ok()),
            },
        );
        queue
    }

    /// Passes a command's input and output on until the command ends, then reports its status.
    fn attend(self: Arc<Self>, stream: u32, running: Running, stdin: mpsc::Receiver<Vec<u8>>) {
        let Running {
            mut child,
            terminal,
        } = running;
        let (done, ended) = mpsc::channel();
        if let Some(terminal) = terminal {
            if let Ok(output) = terminal.try_clone() {
                self.pump(output, Kind::Stdout, stream, done.clone());
            }
            self.pour(terminal, stream, stdin);
        } else if let Some(pipe) = child.stdin.take() {
            self.pour(pipe, stream, stdin);
        }
        if let Some(pipe) = child.stdout.take() {
            self.pump(pipe, Kind::Stdout, stream, done.clone());
        }
        if let Some(pipe) = child.stderr.take() {
            self.pump(pipe, Kind::Stderr, stream, done.clone());
        }
        drop(done);
        let status = child.wait().map_or(255, shell_status);
        // Removed from the table first: a later signal could reach another process group, since
        // the number of this group may be reused.
        lock(&self.streams).remove(&stream);
        let until = Instant::now() + LINGER;
        while ended
            .recv_timeout(until.saturating_duration_since(Instant::now()))
            .is_ok()
        {}
        let _ = self.send(&Frame::exit(stream, status));
    }

    /// Writes received input to a command, up to the empty message that ends the input.
    fn pour(
        self: &Arc<Self>,
        mut to: impl Write + Send + 'static,
        stream: u32,
        stdin: mpsc::Receiver<Vec<u8>>,
    ) {
        let agent = Arc::clone(self);
        thread::spawn(move || {
            for bytes in stdin {
                if bytes.is_empty() || to.write_all(&bytes).is_err() {
                    break;
                }
                let _ = agent.send(&Frame::taken(stream, bytes.len()));
            }
        });
    }

    fn pump(
        self: &Arc<Self>,
        mut pipe: impl Read + Send + 'static,
        kind: Kind,
        stream: u32,
        done: Sender<()>,
    ) {
        let agent = Arc::clone(self);
        thread::spawn(move || {
            let mut chunk = vec![0; CHUNK];
            while let Ok(length @ 1..) = pipe.read(&mut chunk) {
                if agent
                    .send(&Frame::new(kind, stream, &chunk[..length]))
                    .is_err()
                {
                    break;
                }
            }
            let _ = done.send(());
        });
    }

    /// Serves one `on`: passes its frames to the host under a stream number of this agent.
    fn serve(self: Arc<Self>, mut client: UnixStream) {
        let stream = self.next.fetch_add(2, Ordering::Relaxed);
        let (queue, frames) = mpsc::channel::<Frame>();
        if let Ok(mut to) = client.try_clone() {
            thread::spawn(move || {
                for frame in frames {
                    if frame.write(&mut to).is_err() {
                        break;
                    }
                }
            });
        }
        lock(&self.streams).insert(stream, Stream::Client(queue));
        while let Ok(frame) = Frame::read(&mut client) {
            if self.send(&Frame { stream, ..frame }).is_err() {
                break;
            }
        }
        // The `on` was interrupted: its command is killed if it has not ended.
        if lock(&self.streams).remove(&stream).is_some() {
            let _ = self.send(&Frame::new(Kind::Kill, stream, []));
        }
    }
}

fn shell_status(status: ExitStatus) -> u8 {
    let number = status
        .code()
        .or(status.signal().map(|signal| 128 + signal))
        .unwrap_or(255);
    u8::try_from(number).unwrap_or(255)
}
