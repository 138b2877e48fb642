// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The vfio-user server: one socket, one client at a time.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use budget::CallClock;
use dma::DmaSpace;
use parking_lot::Mutex;
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use sandbox::{contain, Gate, Kind, Passer, Reserve, Task};
use sockets::{peer, Access, Peer, SocketPath};

use crate::aio::Aio;
use crate::function::PciFunction;
use crate::interrupt::InterruptStats;
use crate::record::{Former, Record, Records};
use crate::reply_pipe::ReplyPipe;
use crate::saved::Saved;
use crate::session::{Served, Session};
use crate::VirtioDevice;

/// Pause before the next accept after one has failed, for example for lack of file descriptors.
const PAUSE: Duration = Duration::from_secs(1);
/// How long `Drop` waits for the end of the socket thread. A client can block that thread: if the
/// client passes a file of a file system that it serves itself, closing the file may take any time.
const FAREWELL: Duration = Duration::from_secs(3);

/// A socket for a VM's monitor to connect to.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: SocketPath,
    /// The only user who may connect, if there is one.
    user: Option<u32>,
}

impl Listener {
    /// [Listens](sockets::listen) at `path`.
    pub fn bind(path: &Path, access: &Access) -> Result<Self, sockets::Error> {
        let (listener, socket) = sockets::listen(path, access)?;
        listener
            .set_nonblocking(true)
            .map_err(|error| sockets::Error::Io {
                path: path.to_owned(),
                error,
            })?;
        Ok(Self {
            listener,
            path: socket,
            user: access.user,
        })
    }

    /// A listener with a socket that another process has created. `path` is removed on drop. If
    /// `user` is given, only this user may connect.
    ///
    /// # Errors
    ///
    /// The socket can't be set to non-blocking mode.
    pub fn from_parts(
        listener: UnixListener,
        path: SocketPath,
        user: Option<u32>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            path,
            user,
        })
    }

    /// Serves `device` to one client after another, with threads and an AIO context of `pool`. The
    /// client's guest memory is mapped in `space`. `name` is the port's name in the log.
    ///
    /// # Errors
    ///
    /// All threads or AIO contexts of `pool` are in use, or the process has too many open files.
    pub fn start(
        self,
        name: &str,
        device: Arc<dyn VirtioDevice>,
        space: Arc<DmaSpace>,
        pool: &Arc<ServerPool>,
    ) -> io::Result<Handle> {
        let signals = Arc::new(Signals::new(&space)?);
        let aio = pool.take_aio()?;
        let (record, former) = pool.records.open(name)?;
        let function = PciFunction::new(
            name,
            device,
            space,
            aio.context.clone(),
            record,
            CallClock::system(),
        );
        let function = Arc::new(function);
        let service = {
            let function = function.clone();
            let gate = pool.services.clone();
            let serve = move || function.serve(&gate);
            pool.service.run(format!("{name}-service"), serve)?
        };
        let passer = pool.sockets.enter();
        // If a later step fails, dropping the handle ends the service thread.
        let mut handle = Handle {
            function: function.clone(),
            signals: signals.clone(),
            service,
            socket: None,
            socket_number: passer.number(),
            aio,
        };
        let server = Server {
            listener: self.listener,
            user: self.user,
            function,
            signals,
            paused: Cell::default(),
            passer,
            _path: self.path,
        };
        let serve = move || server.run(former);
        handle.socket = Some(pool.socket.run(format!("{name}-socket"), serve)?);
        Ok(handle)
    }
}

/// Spare threads and AIO contexts for functions, since a confined process can't create them.
#[derive(Debug)]
pub struct ServerPool {
    socket: Reserve,
    service: Reserve,
    contexts: Mutex<Vec<Arc<Aio>>>,
    records: Arc<Records>,
    /// The gate of the threads of sockets. They pass it between two messages.
    pub sockets: Arc<Gate>,
    /// The gate of the service threads. They pass it between two pieces of work.
    pub services: Arc<Gate>,
}

impl ServerPool {
    /// Creates the resources for `count` functions at a time, which are recorded in `records`.
    ///
    /// # Errors
    ///
    /// An AIO context can't be created.
    pub fn new(count: usize, records: Arc<Records>) -> io::Result<Arc<Self>> {
        let contexts = (0..count).map(|_| Aio::new().map(Arc::new));
        Ok(Arc::new(Self {
            contexts: Mutex::new(contexts.collect::<Result<_, _>>()?),
            socket: Reserve::new(Kind::Socket, count),
            service: Reserve::new(Kind::Service, count),
            records,
            sockets: Arc::default(),
            services: Arc::default(),
        }))
    }

    fn take_aio(self: &Arc<Self>) -> io::Result<TakenAio> {
        let context = self.contexts.lock().pop();
        let context = context.ok_or_else(|| io::Error::other("all contexts of AIO are in use"))?;
        Ok(TakenAio {
            context,
            pool: self.clone(),
        })
    }
}

/// An AIO context of `pool`. Dropping this value returns the context to `pool`, even if a thread
/// that `Handle::drop` has left behind still uses it.
struct TakenAio {
    context: Arc<Aio>,
    pool: Arc<ServerPool>,
}

impl Drop for TakenAio {
    fn drop(&mut self) {
        self.pool.contexts.lock().push(self.context.clone());
    }
}

/// Eventfds that wake the socket thread.
#[derive(Debug)]
pub(crate) struct Signals {
    /// Readable once the server is to end.
    pub(crate) stop: OwnedFd,
    /// Readable when a reset is done.
    pub(crate) wake: OwnedFd,
    /// Readable when guest memory was lost.
    lost: Arc<OwnedFd>,
}

impl Signals {
    pub(crate) fn new(space: &DmaSpace) -> io::Result<Self> {
        Ok(Self {
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            lost: space.loss_event()?,
        })
    }

    pub(crate) fn raise(fd: &OwnedFd) {
        // The write fails only if the counter is full, and then the eventfd is readable.
        let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
    }

    /// Clears a signal and returns whether it was raised.
    pub(crate) fn take(fd: &OwnedFd) -> bool {
        rustix::io::read(fd, &mut [0; 8]).is_ok()
    }
}

/// A running server. Dropping it resets the device, ends the threads and removes the socket.
pub struct Handle {
    function: Arc<PciFunction>,
    signals: Arc<Signals>,
    service: Task,
    socket: Option<Task>,
    /// The socket thread's number at the gate.
    socket_number: u64,
    aio: TakenAio,
}

impl Handle {
    /// Notifies the driver of a change of the device configuration.
    pub fn config_changed(&self) {
        self.function.config_changed();
    }

    /// Makes the threads of the function look at their gates.
    pub fn wake(&self) {
        Signals::raise(&self.signals.wake);
        self.function.wake_service();
    }

    /// Adds the state of the function and its device to `saved`. Called while the gates of the pool
    /// hold all threads, and nothing else uses the device.
    ///
    /// # Errors
    ///
    /// The state can't be saved, for this reason.
    pub fn save(&self, saved: &mut Saved) -> Result<(), String> {
        let function = self.function.save()?;
        saved.add(self.function.state.log.name(), function);
        Ok(())
    }

    /// Interrupts whose signals take long.
    pub fn interrupts(&self) -> InterruptStats {
        self.function.state.interrupts.stats()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        Signals::raise(&self.signals.stop);
        self.aio.pool.sockets.open();
        self.aio.pool.services.open();
        // The socket thread ends first, because its last reset needs the service thread. A panic of
        // either thread has already been reported.
        if let Some(thread) = self.socket.take() {
            if !thread.wait_for(FAREWELL) {
                tracing::error!(
                    port = self.function.state.log.name(),
                    "the port's thread is abandoned: its client does not let it end"
                );
                self.aio.pool.sockets.forget(self.socket_number);
            }
        }
        self.function.stop();
        self.service.wait();
    }
}

/// A session of which a record tells. The record is erased before the descriptors are closed, since
/// other clients get their numbers.
struct Recorded<'a> {
    session: Session,
    record: &'a Record,
}

impl Drop for Recorded<'_> {
    fn drop(&mut self) {
        self.record.disconnected();
    }
}

struct Server {
    listener: UnixListener,
    user: Option<u32>,
    function: Arc<PciFunction>,
    signals: Arc<Signals>,
    /// Time before which no client is accepted, after a failed accept.
    paused: Cell<Option<Instant>>,
    passer: Passer,
    _path: SocketPath,
}

/// Events that ended a wait.
struct Ready {
    stop: bool,
    wake: bool,
    listener: bool,
    client: bool,
}

impl Server {
    /// The body of the socket thread. Serves the client of the last engine first, if there is one.
    fn run(self, former: Option<Former>) {
        let served = contain(|| self.serve_clients(former));
        let why = match served {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("can't wait for clients: {error}"),
            Err(panicked) => panicked.to_string(),
        };
        // A panic in `abandon` is not contained: a device that can't be stopped ends the process.
        self.function.abandon(&why);
        tracing::error!(
            port = self.function.state.log.name(),
            "the port is lost, since its socket thread has ended: {why}; restart the daemon"
        );
    }

    /// Serves one client after the other until the server ends.
    fn serve_clients(&self, former: Option<Former>) -> io::Result<()> {
        // Devices that are taken over may need those of other ports, which are made first.
        self.passer.pass();
        let log = &self.function.state.log;
        if let Some(Former {
            connection,
            replies,
            function,
            restoring,
        }) = former
        {
            log.info(format_args!("the last engine's client is served again"));
            self.serve_contained(|| {
                let reset = function.reset;
                let mut recorded = self.session(connection, replies)?;
                self.function.restore(function)?;
                drop(restoring);
                recorded.session.resume(reset, &self.passer)?;
                self.serve(recorded)
            });
        }
        loop {
            let ready = self.wait(None)?;
            if ready.stop {
                return Ok(());
            }
            if !ready.listener {
                continue;
            }
            let Some(stream) = self.accept() else {
                continue;
            };
            match peer(&stream) {
                Ok(Peer { process, user }) => match process {
                    Some(process) => log.info(format_args!(
                        "client connected: process {process}, user {user}"
                    )),
                    None => log.info(format_args!(
                        "client connected: a process of another PID namespace, user {user}"
                    )),
                },
                Err(error) => log.info(format_args!("client connected: {error}")),
            }
            self.serve_contained(|| self.serve(self.session(stream, ReplyPipe::new()?)?));
        }
    }

    /// Serves a client by `serve`, and then resets the function.
    fn serve_contained(&self, serve: impl FnOnce() -> io::Result<()>) {
        let log = &self.function.state.log;
        let served = contain(serve);
        let served = served.unwrap_or_else(|panicked| Err(io::Error::other(panicked.to_string())));
        match served {
            Ok(()) => log.info(format_args!("client disconnected")),
            Err(error) => log.warn(format_args!("client dropped: {error}")),
        }
        self.function.disconnect();
    }

    /// Accepts a client. After a failure no client is accepted for [`PAUSE`]: without this pause
    /// the thread would retry in a busy loop, because the listener stays readable.
    fn accept(&self) -> Option<UnixStream> {
        match self.listener.accept() {
            Ok((stream, _)) if !sockets::admits(&stream, self.user) => {
                let log = &self.function.state.log;
                log.warn(format_args!(
                    "a client was turned away: it is not of the port's user"
                ));
                None
            }
            Ok((stream, _)) => Some(stream),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => {
                self.paused.set(Some(Instant::now() + PAUSE));
                self.function.state.log.warn(format_args!(
                    "can't accept a client, trying again in {PAUSE:?}: {error}"
                ));
                None
            }
        }
    }

    fn session(&self, stream: UnixStream, replies: ReplyPipe) -> io::Result<Recorded<'_>> {
        let (function, signals) = (self.function.clone(), self.signals.clone());
        let session = Session::new(stream, replies, function, signals)?;
        let record = &self.function.state.record;
        record.connected(session.as_fd(), session.replies());
        Ok(Recorded { session, record })
    }

    /// Serves a client until the client disconnects or the server ends.
    fn serve(&self, mut recorded: Recorded<'_>) -> io::Result<()> {
        let session = &mut recorded.session;
        loop {
            let ready = self.wait(Some(session))?;
            if ready.stop {
                return Ok(());
            }
            if ready.wake {
                session.reset_done(&self.passer)?;
            }
            // Input of the connected client is served first: it may be the end of the connection.
            if ready.listener && !ready.client {
                // A function serves one VM. The connection of the second client is closed, so that
                // this client does not wait for an answer for ever.
                if let Some(second) = self.accept() {
                    drop(second);
                    self.function
                        .state
                        .log
                        .warn(format_args!("a second client was turned away"));
                }
            }
            if ready.client && session.serve(&self.passer)? == Served::Closed {
                return Ok(());
            }
        }
    }

    /// Waits for events. `wake` and lost memory are cleared, so each event is reported once.
    fn wait(&self, session: Option<&Session>) -> io::Result<Ready> {
        if !session.is_some_and(Session::is_cut) {
            self.passer.pass();
        }
        let client = session.map_or(self.listener.as_fd(), AsFd::as_fd);
        let pause = self
            .paused
            .get()
            .map(|until| until.saturating_duration_since(Instant::now()))
            .filter(|rest| !rest.is_zero());
        self.paused
            .set(self.paused.get().filter(|_| pause.is_some()));
        let accepting = match pause {
            Some(_) => PollFlags::empty(),
            None => PollFlags::IN,
        };
        let mut fds = [
            PollFd::new(&self.signals.stop, PollFlags::IN),
            PollFd::new(&self.signals.wake, PollFlags::IN),
            PollFd::new(&*self.signals.lost, PollFlags::IN),
            PollFd::new(&self.listener, accepting),
            PollFd::from_borrowed_fd(client, session.map_or(accepting, |_| PollFlags::IN)),
        ];
        let timeout = pause.and_then(|rest| Timespec::try_from(rest).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // Any event counts as readable: the read distinguishes a hang-up from input.
        let [stop, wake, lost, listener, client] = fds.map(|fd| !fd.revents().is_empty());
        if wake {
            Signals::take(&self.signals.wake);
        }
        if lost {
            // The service thread checks whether memory is lost.
            Signals::take(&self.signals.lost);
            self.function.memory_lost();
        }
        Ok(Ready {
            stop,
            wake,
            listener,
            client,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Nothing;

    #[test]
    fn a_reset_that_ends_after_its_client_does_not_keep_the_thread_awake() {
        let dir = tempfile::tempdir().unwrap();
        let Listener { listener, path, .. } =
            Listener::bind(&dir.path().join("socket"), &Access::default()).unwrap();
        let space = Arc::default();
        let signals = Arc::new(Signals::new(&space).unwrap());
        let device = Arc::new(Nothing);
        let aio = Arc::new(Aio::new().unwrap());
        let record = Record::for_tests();
        let function = PciFunction::new("test", device, space, aio, record, CallClock::system());
        let server = Server {
            listener,
            user: None,
            function: Arc::new(function),
            signals: signals.clone(),
            paused: Cell::default(),
            passer: Arc::new(Gate::default()).enter(),
            _path: path,
        };
        Signals::raise(&signals.wake);
        assert!(server.wait(None).unwrap().wake);
        Signals::raise(&signals.stop);
        assert!(!server.wait(None).unwrap().wake, "it was seen");
    }
}
