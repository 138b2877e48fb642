// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The vfio-user server: one socket, one client at a time.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::thread::JoinHandle;

use dma::DmaSpace;
use rustix::event::eventfd;
use rustix::event::poll;
use rustix::event::EventfdFlags;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::client::Client;
use crate::connection::Connection;
use crate::connection::Received;
use crate::transport::Transport;
use crate::VirtioDevice;

/// Longest path of a Unix socket: `sun_path` holds it with a NUL.
const MAX_PATH: usize = 107;

/// Why a socket can't be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The path does not fit a socket address.
    #[error("socket path {0} is longer than {MAX_PATH} bytes")]
    PathTooLong(PathBuf),
    /// A process listens there.
    #[error("socket {0} is in use by another process")]
    InUse(PathBuf),
    /// There is something else.
    #[error("{0} exists and is no socket")]
    NotASocket(PathBuf),
    /// Anything else.
    #[error("can't listen on {path}: {error}")]
    Io {
        /// The socket's path.
        path: PathBuf,
        /// What failed.
        error: io::Error,
    },
}

/// A socket for a VM's monitor to connect to.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: SocketPath,
}

/// Removes the socket at the end.
#[derive(Debug)]
pub struct SocketPath(PathBuf);

impl SocketPath {
    /// The path.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        // If it has gone already, all the better.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens at `path`. A socket that a dead process left there is replaced.
pub fn listen(path: &Path) -> Result<(UnixListener, SocketPath), ListenError> {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::FileTypeExt;

    if path.as_os_str().as_bytes().len() > MAX_PATH {
        return Err(ListenError::PathTooLong(path.to_owned()));
    }
    let io_error = |error| ListenError::Io {
        path: path.to_owned(),
        error,
    };
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(ListenError::NotASocket(path.to_owned()));
        }
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path).map_err(io_error)?;
            }
            _ => return Err(ListenError::InUse(path.to_owned())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io_error(error)),
    }
    let listener = UnixListener::bind(path).map_err(io_error)?;
    Ok((listener, SocketPath(path.to_owned())))
}

impl Listener {
    /// [Listens](listen) at `path`.
    pub fn bind(path: &Path) -> Result<Self, ListenError> {
        let (listener, socket) = listen(path)?;
        listener
            .set_nonblocking(true)
            .map_err(|error| ListenError::Io {
                path: path.to_owned(),
                error,
            })?;
        Ok(Self {
            listener,
            path: socket,
        })
    }

    /// Serves `device`, whose guest memory will be in `space`, to whoever connects. `name` is the port's in logs.
    pub fn start(
        self,
        name: &str,
        device: Arc<dyn VirtioDevice>,
        space: Arc<DmaSpace>,
    ) -> io::Result<Handle> {
        let signals = Arc::new(Signals {
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let transport = Arc::new(Transport::new(name, device, space)?);
        let service = {
            let transport = transport.clone();
            thread::Builder::new()
                .name(format!("{name}-service"))
                .spawn(move || transport.serve())?
        };
        // From here on dropping the handle ends the threads.
        let mut handle = Handle {
            transport: transport.clone(),
            signals: signals.clone(),
            service: Some(service),
            socket: None,
        };
        let server = Server {
            listener: self.listener,
            transport,
            signals,
            _path: self.path,
        };
        handle.socket = Some(
            thread::Builder::new()
                .name(format!("{name}-socket"))
                .spawn(move || server.run())?,
        );
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
}

impl Signals {
    pub(crate) fn raise(fd: &OwnedFd) {
        // Fails only if the counter is full, and then it can be read.
        let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
    }

    fn clear(fd: &OwnedFd) {
        // Fails only if it was not raised.
        let _ = rustix::io::read(fd, &mut [0; 8]);
    }
}

/// A running server. Dropping it resets the device, ends the threads and removes the socket.
pub struct Handle {
    transport: Arc<Transport>,
    signals: Arc<Signals>,
    service: Option<JoinHandle<()>>,
    socket: Option<JoinHandle<()>>,
}

impl Handle {
    /// Tells the driver that the device configuration is another.
    pub fn config_changed(&self) {
        self.transport.config_changed();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        Signals::raise(&self.signals.stop);
        // The socket thread needs the service thread for its last reset. A thread that panicked has told why itself.
        if let Some(socket) = self.socket.take() {
            let _ = socket.join();
        }
        self.transport.stop();
        if let Some(service) = self.service.take() {
            let _ = service.join();
        }
    }
}

struct Server {
    listener: UnixListener,
    transport: Arc<Transport>,
    signals: Arc<Signals>,
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
        let port = self.transport.shared.log.name();
        loop {
            match self.wait(None) {
                Ok(ready) if ready.stop => return,
                Ok(ready) if !ready.listener => continue,
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(port, "server ends: {error}");
                    return;
                }
            }
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    self.transport
                        .shared
                        .log
                        .warn(format_args!("can't accept a client: {error}"));
                    continue;
                }
            };
            tracing::info!(port, "client connected");
            match self.serve(stream) {
                Ok(()) => tracing::info!(port, "client disconnected"),
                Err(error) => tracing::warn!(port, "client dropped: {error}"),
            }
            self.transport.disconnect();
        }
    }

    /// Serves a client until it goes or the server ends.
    fn serve(&self, stream: UnixStream) -> io::Result<()> {
        let mut connection = Connection::new(stream)?;
        let mut client = Client::new(self.transport.clone(), self.signals.clone());
        let mut replies = Vec::new();
        loop {
            let ready = self.wait(Some(&connection))?;
            if ready.stop {
                return Ok(());
            }
            if ready.wake {
                Signals::clear(&self.signals.wake);
                client.reset_done(&mut replies);
                connection.send(&replies, self.signals.stop.as_fd())?;
                replies.clear();
            }
            // Not while there is input, which may be the first client's end.
            if ready.listener && !ready.client {
                // One function is in one VM: better a closed connection than one that is never answered.
                if let Ok((second, _)) = self.listener.accept() {
                    drop(second);
                    self.transport
                        .shared
                        .log
                        .warn(format_args!("a second client was turned away"));
                }
            }
            if !ready.client {
                continue;
            }
            match connection.receive()? {
                Received::Closed => return Ok(()),
                Received::Nothing => continue,
                Received::Data => {}
            }
            loop {
                match connection.next() {
                    Ok(Some(message)) => client.handle(message, &mut replies),
                    Ok(None) => break,
                    Err(error) => return Err(io::Error::other(error)),
                }
                // At once: a vCPU waits for it, and the output stays bounded.
                if !replies.is_empty() {
                    connection.send(&replies, self.signals.stop.as_fd())?;
                    replies.clear();
                }
            }
        }
    }

    fn wait(&self, connection: Option<&Connection>) -> io::Result<Ready> {
        let client = connection.map_or(self.listener.as_fd(), AsFd::as_fd);
        let mut fds = [
            PollFd::new(&self.signals.stop, PollFlags::IN),
            PollFd::new(&self.signals.wake, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
            PollFd::from_borrowed_fd(client, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // A hang-up shows as readable too; the read then tells.
        let [stop, wake, listener, client] = fds.map(|fd| !fd.revents().is_empty());
        Ok(Ready {
            stop,
            wake,
            listener,
            client,
        })
    }
}
