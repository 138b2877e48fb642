// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The vfio-user server: one socket, one client at a time.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use contain::contain;
use dma::DmaSpace;
use parking_lot::{Condvar, Mutex};
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use sandbox::Kind;
use sockets::{Access, SocketPath};

use crate::function::PciFunction;
use crate::session::{Served, Session};
use crate::VirtioDevice;

/// How long clients wait after one could not be accepted, for want of descriptors say.
const PAUSE: Duration = Duration::from_secs(1);
/// How long the end waits for the socket thread, which a client can hold up: closing a file that
/// the client serves takes as long as the client likes.
const FAREWELL: Duration = Duration::from_secs(3);

/// A socket for a VM's monitor to connect to.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: SocketPath,
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
        })
    }

    /// Serves `device` to each client that connects. Its guest memory will be in `space`. `name`
    /// is the port's in logs.
    pub fn start(
        self,
        name: &str,
        device: Arc<dyn VirtioDevice>,
        space: Arc<DmaSpace>,
    ) -> io::Result<Handle> {
        let signals = Arc::new(Signals::new(&space)?);
        let ended = Arc::new(Ended::default());
        let function = Arc::new(PciFunction::new(name, device, space)?);
        let service = {
            let function = function.clone();
            let name = format!("{name}-service");
            sandbox::spawn(Kind::Service, name, move || function.serve())?
        };
        // From here on dropping the handle ends the threads.
        let mut handle = Handle {
            function: function.clone(),
            signals: signals.clone(),
            service: Some(service),
            socket: None,
        };
        let server = Server {
            listener: self.listener,
            function,
            signals,
            paused: Cell::default(),
            _path: self.path,
        };
        let ending = Ending(ended.clone());
        let thread = sandbox::spawn(Kind::Socket, format!("{name}-socket"), move || {
            let _ending = ending;
            server.run();
        })?;
        handle.socket = Some((thread, ended));
        Ok(handle)
    }
}

/// Eventfds that wake the socket thread.
#[derive(Debug)]
pub(crate) struct Signals {
    /// Readable from the moment on that the server is to end.
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
        // Fails only if the counter is full, and then it can be read.
        let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
    }

    /// Clears a signal and returns whether it was raised.
    pub(crate) fn take(fd: &OwnedFd) -> bool {
        rustix::io::read(fd, &mut [0; 8]).is_ok()
    }
}

/// Whether the socket thread has ended.
#[derive(Default)]
struct Ended {
    yes: Mutex<bool>,
    changed: Condvar,
}

impl Ended {
    /// Waits for the end, for no longer than `patience`. Returns whether it has come.
    fn wait(&self, patience: Duration) -> bool {
        let mut yes = self.yes.lock();
        self.changed.wait_while_for(&mut yes, |yes| !*yes, patience);
        *yes
    }
}

/// Says that the thread has ended when it is dropped, also by a panic.
struct Ending(Arc<Ended>);

impl Drop for Ending {
    fn drop(&mut self) {
        *self.0.yes.lock() = true;
        self.0.changed.notify_all();
    }
}

/// A running server. Dropping it resets the device, ends the threads and removes the socket.
pub struct Handle {
    function: Arc<PciFunction>,
    signals: Arc<Signals>,
    service: Option<JoinHandle<()>>,
    socket: Option<(JoinHandle<()>, Arc<Ended>)>,
}

impl Handle {
    /// Tells the driver that the device configuration is another.
    pub fn config_changed(&self) {
        self.function.config_changed();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        Signals::raise(&self.signals.stop);
        // The socket thread needs the service thread for its last reset. A thread that panicked has
        // told why itself.
        if let Some((thread, ended)) = self.socket.take() {
            if ended.wait(FAREWELL) {
                let _ = thread.join();
            } else {
                tracing::error!(
                    port = self.function.state.log.name(),
                    "the client holds up the port's thread, which is left behind"
                );
            }
        }
        self.function.stop();
        if let Some(service) = self.service.take() {
            let _ = service.join();
        }
    }
}

struct Server {
    listener: UnixListener,
    function: Arc<PciFunction>,
    signals: Arc<Signals>,
    /// Until when no client is accepted.
    paused: Cell<Option<Instant>>,
    _path: SocketPath,
}

/// Why the wait for events ended.
struct Ready {
    stop: bool,
    wake: bool,
    listener: bool,
    client: bool,
}

impl Server {
    fn run(self) {
        let served = contain(|| self.serve_clients());
        let why = match served {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("can't wait for clients: {error}"),
            Err(panicked) => panicked.to_string(),
        };
        // Not contained: a device that can't be stopped ends the process.
        self.function.abandon(&why);
        tracing::error!(
            port = self.function.state.log.name(),
            "the socket thread ends, and the port with it; restart the daemon to have it back: {why}"
        );
    }

    /// Serves one client after the other until the server ends.
    fn serve_clients(&self) -> io::Result<()> {
        let log = &self.function.state.log;
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
            match socket_peercred(&stream) {
                Ok(peer) => log.info(format_args!(
                    "client connected: process {}, user {}",
                    peer.pid.as_raw_nonzero(),
                    peer.uid.as_raw()
                )),
                Err(_) => log.info(format_args!("client connected")),
            }
            let served = contain(|| self.serve(stream));
            let served =
                served.unwrap_or_else(|panicked| Err(io::Error::other(panicked.to_string())));
            match served {
                Ok(()) => log.info(format_args!("client disconnected")),
                Err(error) => log.warn(format_args!("client dropped: {error}")),
            }
            self.function.disconnect();
        }
    }

    /// Accepts a client. If that fails, clients wait for a while: until they are accepted, the
    /// listener is readable.
    fn accept(&self) -> Option<UnixStream> {
        match self.listener.accept() {
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

    /// Serves a client until it goes or the server ends.
    fn serve(&self, stream: UnixStream) -> io::Result<()> {
        let mut session = Session::new(stream, self.function.clone(), self.signals.clone())?;
        loop {
            let ready = self.wait(Some(&session))?;
            if ready.stop {
                return Ok(());
            }
            if ready.wake {
                session.reset_done()?;
            }
            // Not while there is input, which may be the first client's end.
            if ready.listener && !ready.client {
                // One function is in one VM: better a closed connection than one that is never
                // answered.
                if let Some(second) = self.accept() {
                    drop(second);
                    self.function
                        .state
                        .log
                        .warn(format_args!("a second client was turned away"));
                }
            }
            if ready.client && session.serve()? == Served::Closed {
                return Ok(());
            }
        }
    }

    /// Waits for events. That the reset is done is reported once.
    fn wait(&self, session: Option<&Session>) -> io::Result<Ready> {
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
        // A hang-up shows as readable too; the read then tells.
        let [stop, wake, lost, listener, client] = fds.map(|fd| !fd.revents().is_empty());
        if wake {
            Signals::take(&self.signals.wake);
        }
        if lost {
            // That memory is lost is looked up where the device is stopped.
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
        let Listener { listener, path } =
            Listener::bind(&dir.path().join("socket"), &Access::default()).unwrap();
        let space = Arc::default();
        let signals = Arc::new(Signals::new(&space).unwrap());
        let device = Arc::new(Nothing);
        let function = PciFunction::new("test", device, space).unwrap();
        let server = Server {
            listener,
            function: Arc::new(function),
            signals: signals.clone(),
            paused: Cell::default(),
            _path: path,
        };
        Signals::raise(&signals.wake);
        assert!(server.wait(None).unwrap().wake);
        Signals::raise(&signals.stop);
        assert!(!server.wait(None).unwrap().wake, "it was seen");
    }
}
