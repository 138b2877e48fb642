// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The host's side of the agents' links: starts commands in guests, passes their output to the
//! waiting threads, and joins the stream of an `on` in one guest to a command in another guest.

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use guest::proto::{Exec, Frame, Kind};
use guest::NAME;

/// A guest that reads nothing for this time is considered dead.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);
/// The guest number that means the host.
const HOST: usize = 0;
/// The status of a command whose guest has ended before it: ssh's status for a lost connection.
const LOST: u8 = 255;

/// An event of a command, or of the link to a guest, for the waiting thread.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The guest's agent is up.
    Up,
    /// Bytes of standard output.
    Stdout(Vec<u8>),
    /// Bytes of standard error.
    Stderr(Vec<u8>),
    /// The command has read this number of bytes of its input.
    Taken(usize),
    /// The command ended with this status.
    Exit(u8),
    /// The guest has ended.
    Lost,
}

/// The destination of the frames of a guest's stream.
#[derive(Clone)]
enum Route {
    Here(Sender<Event>),
    Peer { vm: usize, stream: u32 },
}

/// A guest's number and one of its streams.
type Key = (usize, u32);

/// Executes a guest's request to the host. The argument is the words of the command.
pub type Host = Box<dyn Fn(&[String]) -> anyhow::Result<()> + Send + Sync>;

/// The links to all guests, which are numbered from 1.
pub struct Router {
    host: Host,
    guests: Mutex<HashMap<usize, Arc<Mutex<UnixStream>>>>,
    routes: Mutex<HashMap<Key, Route>>,
    next: AtomicU32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Router {
    /// A router without guests. `host` executes the guests' requests to the host.
    pub fn new(host: Host) -> Arc<Self> {
        Arc::new(Self {
            host,
            guests: Mutex::default(),
            routes: Mutex::default(),
            // Stream 0 is the link's own.
            next: AtomicU32::new(2),
        })
    }

    /// Adds the link to a guest. The receiver gets an event when the guest's agent is up, and when
    /// the guest is lost.
    pub fn attach(self: &Arc<Self>, vm: usize, link: UnixStream) -> io::Result<Receiver<Event>> {
        let mut from = link.try_clone()?;
        link.set_write_timeout(Some(WRITE_TIMEOUT))?;
        lock(&self.guests).insert(vm, Arc::new(Mutex::new(link)));
        let (sender, events) = mpsc::channel();
        lock(&self.routes).insert((vm, 0), Route::Here(sender));
        let router = Arc::clone(self);
        thread::spawn(move || {
            while let Ok(frame) = Frame::read(&mut from) {
                router.dispatch(vm, frame);
            }
            router.lose(vm);
        });
        Ok(events)
    }

    /// Starts a command in a guest. Its events end with `Exit` or `Lost`.
    pub fn exec(self: &Arc<Self>, exec: &Exec) -> GuestCommand {
        let stream = self.number();
        let (sender, events) = mpsc::channel();
        lock(&self.routes).insert((exec.vm, stream), Route::Here(sender.clone()));
        if !self.send(exec.vm, &Frame::exec(stream, exec)) {
            lock(&self.routes).remove(&(exec.vm, stream));
            let _ = sender.send(Event::Lost);
        }
        let handle = Handle {
            router: Arc::clone(self),
            vm: exec.vm,
            stream,
        };
        GuestCommand { handle, events }
    }

    /// Sends a guest the request to end.
    pub fn power_off(&self, vm: usize) {
        self.send(vm, &Frame::new(Kind::PowerOff, 0, []));
    }

    fn number(&self) -> u32 {
        self.next.fetch_add(2, Ordering::Relaxed)
    }

    fn send(&self, vm: usize, frame: &Frame) -> bool {
        let Some(link) = lock(&self.guests).get(&vm).cloned() else {
            return false;
        };
        let mut link = lock(&link);
        frame.write(&mut *link).is_ok()
    }

    /// Handles a frame from a guest's agent.
    fn dispatch(&self, vm: usize, frame: Frame) {
        if frame.kind == Kind::Exec {
            self.connect(vm, &frame);
            return;
        }
        let key = (vm, frame.stream);
        let Some(route) = lock(&self.routes).get(&key).cloned() else {
            return;
        };
        let ends = frame.kind == Kind::Exit;
        match route {
            Route::Here(sender) => {
                let event = match frame.kind {
                    Kind::Hello => Event::Up,
                    Kind::Stdout => Event::Stdout(frame.payload),
                    Kind::Stderr => Event::Stderr(frame.payload),
                    Kind::Taken => Event::Taken(frame.number() as usize),
                    Kind::Exit => Event::Exit(frame.status()),
                    _ => return,
                };
                // The event is dropped if its thread no longer waits.
                let _ = sender.send(event);
            }
            Route::Peer { vm, stream } => {
                if ends {
                    lock(&self.routes).remove(&(vm, stream));
                }
                self.send(vm, &Frame { stream, ..frame });
            }
        }
        if ends {
            lock(&self.routes).remove(&key);
        }
    }

    /// Starts the command of a guest's `on` in another guest, and joins the streams.
    fn connect(&self, vm: usize, frame: &Frame) {
        let refuse = |text: String| {
            let text = format!("{NAME}: {text}\n");
            self.send(vm, &Frame::new(Kind::Stderr, frame.stream, text));
            self.send(vm, &Frame::exit(frame.stream, LOST));
        };
        let exec: Exec = match serde_json::from_slice(&frame.payload) {
            Ok(exec) => exec,
            Err(error) => return refuse(error.to_string()),
        };
        if exec.vm == HOST {
            match (self.host)(&exec.argv) {
                Ok(()) => {
                    self.send(vm, &Frame::exit(frame.stream, 0));
                }
                Err(error) => refuse(format!("{error:#}")),
            }
            return;
        }
        let stream = self.number();
        let (here, there) = ((vm, frame.stream), (exec.vm, stream));
        {
            let mut routes = lock(&self.routes);
            let peer = |(vm, stream)| Route::Peer { vm, stream };
            routes.insert(here, peer(there));
            routes.insert(there, peer(here));
        }
        if !self.send(exec.vm, &Frame::exec(stream, &exec)) {
            let mut routes = lock(&self.routes);
            routes.remove(&here);
            routes.remove(&there);
            drop(routes);
            refuse(format!("there is no VM {}, or it ended", exec.vm));
        }
    }

    /// Ends every stream of a guest that has ended.
    fn lose(&self, vm: usize) {
        lock(&self.guests).remove(&vm);
        let mut peers = Vec::new();
        lock(&self.routes).retain(|key, route| match route {
            Route::Here(sender) if key.0 == vm => {
                let _ = sender.send(Event::Lost);
                false
            }
            Route::Peer { vm: other, stream } if key.0 == vm => {
                peers.push((*other, *stream));
                false
            }
            _ => true,
        });
        for (other, stream) in peers {
            lock(&self.routes).remove(&(other, stream));
            let text = format!("{NAME}: VM {vm} ended\n");
            self.send(other, &Frame::new(Kind::Stderr, stream, text));
            self.send(other, &Frame::exit(stream, LOST));
            // The other end of the stream may be the command or the `on`. Only a guest that runs
            // the command obeys this frame.
            self.send(other, &Frame::new(Kind::Kill, stream, []));
        }
    }
}

/// A command that runs in a guest.
pub struct GuestCommand {
    /// Controls the command.
    pub handle: Handle,
    /// Receives the command's events.
    pub events: Receiver<Event>,
}

/// Controls a running command.
#[derive(Clone)]
pub struct Handle {
    router: Arc<Router>,
    vm: usize,
    stream: u32,
}

impl Handle {
    /// Sends bytes to the command's standard input; an empty slice ends the input. Returns false if
    /// the guest is gone.
    pub fn input(&self, bytes: &[u8]) -> bool {
        let frame = Frame::new(Kind::Stdin, self.stream, bytes);
        self.router.send(self.vm, &frame)
    }

    /// Sends the command a signal.
    pub fn signal(&self, number: u32) {
        self.router
            .send(self.vm, &Frame::signal(self.stream, number));
    }

    /// Sets the size of the command's terminal.
    pub fn resize(&self, size: (u16, u16)) {
        self.router.send(self.vm, &Frame::resize(self.stream, size));
    }

    /// Kills the command.
    pub fn kill(&self) {
        let frame = Frame::new(Kind::Kill, self.stream, []);
        self.router.send(self.vm, &frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest whose agent is the test itself.
    fn guest(router: &Arc<Router>, vm: usize) -> (UnixStream, Receiver<Event>) {
        let (host, agent) = UnixStream::pair().unwrap();
        let events = router.attach(vm, host).unwrap();
        (agent, events)
    }

    fn command(vm: usize) -> Exec {
        Exec {
            vm,
            argv: vec!["true".into()],
            ..Exec::default()
        }
    }

    fn idle() -> Host {
        Box::new(|_| Ok(()))
    }

    #[test]
    fn the_host_does_what_it_knows() {
        let router = Router::new(Box::new(|words| {
            anyhow::ensure!(words == ["true"], "the host knows one word");
            Ok(())
        }));
        let (mut agent, _link) = guest(&router, 1);
        Frame::exec(7, &command(HOST)).write(&mut agent).unwrap();
        assert_eq!(Frame::read(&mut agent).unwrap(), Frame::exit(7, 0));
        let other = Exec {
            argv: vec!["false".into()],
            ..command(HOST)
        };
        Frame::exec(9, &other).write(&mut agent).unwrap();
        assert_eq!(Frame::read(&mut agent).unwrap().kind, Kind::Stderr);
        assert_eq!(Frame::read(&mut agent).unwrap(), Frame::exit(9, LOST));
    }

    #[test]
    fn a_command_of_the_host_reports_output_and_status() {
        let router = Router::new(idle());
        let (mut agent, link) = guest(&router, 1);
        Frame::new(Kind::Hello, 0, []).write(&mut agent).unwrap();
        assert_eq!(link.recv(), Ok(Event::Up));

        let running = router.exec(&command(1));
        let stream = Frame::read(&mut agent).unwrap().stream;
        Frame::new(Kind::Stdout, stream, "out")
            .write(&mut agent)
            .unwrap();
        Frame::exit(stream, 3).write(&mut agent).unwrap();
        assert_eq!(running.events.recv(), Ok(Event::Stdout(b"out".to_vec())));
        assert_eq!(running.events.recv(), Ok(Event::Exit(3)));
    }

    #[test]
    fn on_joins_two_guests() {
        let router = Router::new(idle());
        let (mut one, _link_one) = guest(&router, 1);
        let (mut two, _link_two) = guest(&router, 2);
        Frame::exec(7, &command(2)).write(&mut one).unwrap();
        let started = Frame::read(&mut two).unwrap();
        assert_eq!(started.kind, Kind::Exec);
        Frame::new(Kind::Stdin, 7, "in").write(&mut one).unwrap();
        assert_eq!(Frame::read(&mut two).unwrap().payload, b"in");
        Frame::exit(started.stream, 5).write(&mut two).unwrap();
        assert_eq!(Frame::read(&mut one).unwrap(), Frame::exit(7, 5));
    }

    #[test]
    fn a_lost_guest_ends_what_waits_for_it() {
        let router = Router::new(idle());
        let (mut one, _link_one) = guest(&router, 1);
        let (mut two, link_two) = guest(&router, 2);
        let running = router.exec(&command(2));
        Frame::read(&mut two).unwrap();
        Frame::exec(9, &command(2)).write(&mut one).unwrap();
        Frame::read(&mut two).unwrap();
        drop(two);
        assert_eq!(running.events.recv(), Ok(Event::Lost));
        assert_eq!(link_two.recv(), Ok(Event::Lost));
        assert_eq!(Frame::read(&mut one).unwrap().kind, Kind::Stderr);
        assert_eq!(Frame::read(&mut one).unwrap(), Frame::exit(9, LOST));

        Frame::exec(11, &command(4)).write(&mut one).unwrap();
        assert_eq!(Frame::read(&mut one).unwrap().kind, Kind::Kill);
        assert_eq!(Frame::read(&mut one).unwrap().kind, Kind::Stderr);
        assert_eq!(Frame::read(&mut one).unwrap(), Frame::exit(11, LOST));
    }
}
