// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The broker: a process that accesses paths for the daemon. The daemon's sandbox denies the daemon
//! access to all paths.
//!
//! When a remote end restarts, it has a new socket at the same path, to which the daemon must
//! connect. When the daemon ends, it must remove its sockets. Both tasks need paths, and a seccomp
//! filter can't distinguish paths. So a second process, the broker, executes these tasks, which are
//! called *errands*. While the daemon starts, it registers all errands with the broker. Then the
//! list is sealed: the daemon can only request an errand by its number. A socket that the broker
//! connects is connected in the daemon too, since both processes have descriptors of the same
//! socket.
//!
//! The broker ends with the daemon.
//!
//! A file that the daemon replaces while it runs is another errand. It has its own broker, since
//! writing to a slow disk would delay other errands.
//!
//! A port that is added to a running daemon has its own broker. The process that makes the port's
//! sockets starts this broker, registers the errands, seals the list and passes the broker's socket
//! to the daemon. So the daemon can't register errands, and the paths are accessed with the rights
//! of the user who added the port. This broker ends with the port.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::kept_file::{self, MAX_CONTENT};
use crate::remote;

/// Longest message in bytes: the kind of request, and a path.
const MAX_MESSAGE: usize = 1 + 4096;

/// First byte of a message that registers an errand to connect a socket. The socket is passed as a
/// descriptor; the path follows.
const CONNECT: u8 = b'c';
/// First byte of a message that registers an errand to remove a path, which follows.
const REMOVE: u8 = b'r';
/// First byte of a message that registers an errand to replace a file. The file's folder is passed
/// as a descriptor; the file's name follows.
const REPLACE: u8 = b'f';
/// First byte of a message with a descriptor that the broker holds open until it ends.
const HOLD: u8 = b'h';
/// First byte of a message with a part of the new content of a file. The errand's number and the
/// bytes follow.
const CONTENT: u8 = b'w';
/// First byte of a message that requests an errand. The errand's number follows.
const RUN: u8 = b'x';
/// First byte of the message that seals the list of errands.
const SEAL: u8 = b's';

/// An errand that was registered with this broker.
#[derive(Debug)]
enum Shown {
    Connect(UnixDatagram, PathBuf),
    Remove(PathBuf),
    /// No work is needed, but this descriptor must be kept.
    Hold(#[expect(dead_code, reason = "it is closed when the broker ends")] OwnedFd),
    Replace {
        directory: OwnedFd,
        name: OsString,
        /// The received part of the new content.
        content: Vec<u8>,
    },
}

impl Shown {
    fn run(&mut self) -> io::Result<()> {
        match self {
            Self::Connect(socket, path) => remote::connect(socket, path),
            Self::Remove(path) => std::fs::remove_file(path),
            Self::Hold(_) => Err(Errno::INVAL.into()),
            Self::Replace {
                directory,
                name,
                content,
            } => kept_file::replace(directory, name, &mem::take(content), || {}),
        }
    }

    /// Adds `bytes` to the new content of a file.
    fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Self::Replace { content, .. } = self else {
            return Err(Errno::INVAL.into());
        };
        content.extend(bytes);
        if content.len() > MAX_CONTENT {
            // After this error the client sends no more of this content. The next bytes that it
            // sends are the start of other content.
            content.clear();
            return Err(Errno::FBIG.into());
        }
        Ok(())
    }
}

/// The files that the errands of a broker change.
#[derive(Debug, Default)]
pub struct Changed<'a> {
    pub removed: Vec<&'a Path>,
    /// Folders of files to replace.
    pub folders: Vec<BorrowedFd<'a>>,
}

impl<'a> Changed<'a> {
    fn by(errands: &'a [Shown]) -> Self {
        let mut changed = Self::default();
        for errand in errands {
            match errand {
                Shown::Connect(..) | Shown::Hold(_) => {}
                Shown::Remove(path) => changed.removed.push(path),
                Shown::Replace { directory, .. } => changed.folders.push(directory.as_fd()),
            }
        }
        changed
    }
}

/// Runs the broker: serves the daemon at the other end of `socket` until the daemon ends. `confine`
/// is called when the list of errands is sealed, with the files that the errands change.
pub fn run(
    socket: impl AsFd,
    confine: impl FnOnce(&Changed<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let mut errands = Vec::new();
    let mut confine = Some(confine);
    loop {
        let mut message = [0; MAX_MESSAGE];
        let Some((len, fd)) = receive(&socket, &mut message)? else {
            return Ok(());
        };
        let (request, rest) = message[..len].split_first().ok_or(Errno::INVAL)?;
        let path = || PathBuf::from(OsStr::from_bytes(rest));
        let is_open = confine.is_some();
        let done = match (*request, fd) {
            (CONNECT, Some(fd)) if is_open => {
                errands.push(Shown::Connect(fd.into(), path()));
                Ok(())
            }
            (REMOVE, None) if is_open => {
                errands.push(Shown::Remove(path()));
                Ok(())
            }
            (HOLD, Some(fd)) if is_open => {
                errands.push(Shown::Hold(fd));
                Ok(())
            }
            (REPLACE, Some(directory)) if is_open => {
                errands.push(Shown::Replace {
                    directory,
                    name: OsStr::from_bytes(rest).to_owned(),
                    content: Vec::new(),
                });
                Ok(())
            }
            (SEAL, None) => {
                let confine = confine.take().ok_or(Errno::PERM.into());
                confine.and_then(|confine| confine(&Changed::by(&errands)))
            }
            (CONTENT, None) => {
                numbered(&mut errands, rest).and_then(|(errand, content)| errand.add(content))
            }
            (RUN, None) => numbered(&mut errands, rest).and_then(|(errand, _)| errand.run()),
            _ => Err(Errno::PERM.into()),
        };
        let errno = match done {
            Ok(()) => 0,
            // Errors of system calls have an error number.
            Err(error) => error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
        };
        retry(|| rustix::net::send(&socket, &errno.to_ne_bytes(), SendFlags::NOSIGNAL))?;
    }
}

/// The errand whose number a message begins with, and the rest of the message.
fn numbered<'a, 'b>(
    errands: &'a mut [Shown],
    message: &'b [u8],
) -> io::Result<(&'a mut Shown, &'b [u8])> {
    let (number, rest) = message.split_first_chunk().ok_or(Errno::INVAL)?;
    let errand = errands.get_mut(u32::from_ne_bytes(*number) as usize);
    Ok((errand.ok_or(Errno::INVAL)?, rest))
}

/// Receives a message with at most one descriptor. `None` if the other side has closed the socket.
fn receive(socket: impl AsFd, message: &mut [u8]) -> io::Result<Option<(usize, Option<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry(|| {
        let mut parts = [IoSliceMut::new(message)];
        rustix::net::recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let fd = rights.flatten().last();
    Ok((received.bytes > 0).then_some((received.bytes, fd)))
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// Time limit of a request to a broker that another process has started, and of its answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The daemon's side of a broker.
#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    /// Number of registered errands.
    errands: u32,
    /// Time limit of a request, and of its answer. `None` for the daemon's own broker, which is
    /// trusted.
    patience: Option<Duration>,
    /// Whether an answer did not arrive in time. The next answer could belong to an earlier
    /// request, so the broker is not used any more.
    lost: bool,
}

impl Client {
    fn new(socket: OwnedFd, patience: Option<Duration>) -> Self {
        Self {
            socket,
            errands: 0,
            patience,
            lost: false,
        }
    }

    /// Sends a message and waits for the answer.
    fn ask(&mut self, message: &[&[u8]], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        if self.lost {
            return Err(ended());
        }
        let answer = self.exchange(message, fd);
        self.lost = answer.is_err();
        let answer = answer.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ended(),
            _ => error,
        });
        match answer? {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Sends a message and returns the answer: 0 or an error number.
    fn exchange(&self, message: &[&[u8]], fd: Option<BorrowedFd<'_>>) -> io::Result<i32> {
        match fd {
            // `send` instead of `sendmsg`, which a confined thread may not call.
            None => {
                let message = message.concat();
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                let send = || rustix::net::send(&self.socket, &message, flags);
                self.patiently(PollFlags::OUT, send)?;
            }
            Some(fd) => {
                let parts: Vec<_> = message.iter().map(|part| IoSlice::new(part)).collect();
                let fds = [fd];
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                // `control` has room for the descriptor.
                let _ = control.push(SendAncillaryMessage::ScmRights(&fds));
                let flags = SendFlags::NOSIGNAL;
                retry(|| rustix::net::sendmsg(&self.socket, &parts, &mut control, flags))?;
            }
        }
        let mut errno = [0; 4];
        let receive = || {
            let received = rustix::net::recv(&self.socket, &mut errno, RecvFlags::DONTWAIT);
            received.map(|(_, len)| len)
        };
        if self.patiently(PollFlags::IN, receive)? == 0 {
            return Err(ended());
        }
        Ok(i32::from_ne_bytes(errno))
    }

    /// Makes a call that does not wait, again and again until it succeeds or the time is up. Other
    /// processes may have the socket too, so the call can fail after its event.
    fn patiently<T>(
        &self,
        event: PollFlags,
        mut call: impl FnMut() -> rustix::io::Result<T>,
    ) -> io::Result<T> {
        let until = self.patience.map(|patience| Instant::now() + patience);
        loop {
            match retry(&mut call) {
                Err(Errno::AGAIN) => {}
                done => return Ok(done?),
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            retry(|| poll(&mut [PollFd::new(&self.socket, event)], left.as_ref()))?;
        }
    }
}

fn ended() -> io::Error {
    io::Error::other("the broker has ended")
}

/// The sockets of a client and its broker.
fn socket_pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
}

/// A client of a running broker. Clones use the same broker.
#[derive(Clone, Debug)]
pub struct Broker(Arc<Mutex<Client>>);

impl Broker {
    /// Starts a broker: this program with these arguments. The new process must call [`run`] with
    /// its standard input. It writes error messages to `stderr`.
    ///
    /// # Errors
    ///
    /// The broker can't be started.
    pub fn start(arguments: &[&str], stderr: Stdio) -> io::Result<Self> {
        let (socket, theirs) = socket_pair()?;
        // The child is not waited for: it ends when this end of the socket is closed.
        Command::new("/proc/self/exe")
            .args(arguments)
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()?;
        Ok(Self::of(socket, None))
    }

    fn of(socket: OwnedFd, patience: Option<Duration>) -> Self {
        Self(Arc::new(Mutex::new(Client::new(socket, patience))))
    }

    /// A client of a broker that another process has started. That process has also registered the
    /// errands and sealed the list. If the broker once does not answer in time, later requests fail
    /// at once.
    pub fn of_another(socket: OwnedFd) -> Self {
        Self::of(socket, Some(PATIENCE))
    }

    /// A descriptor of the broker's socket, for the process that will
    /// [use the broker](Self::of_another).
    ///
    /// # Errors
    ///
    /// The process has too many open files.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        self.0.lock().socket.try_clone()
    }

    /// The errand that was registered with this number, counted from 0.
    pub fn errand(&self, number: u32) -> Errand {
        Errand {
            broker: self.clone(),
            number,
        }
    }

    /// Seals the list of errands.
    ///
    /// # Errors
    ///
    /// The broker has ended, or could not be confined.
    pub fn seal(&self) -> io::Result<()> {
        self.0.lock().ask(&[&[SEAL]], None)
    }

    /// Has the broker hold a copy of this descriptor until it ends.
    pub(crate) fn hold(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.show(&[&[HOLD]], Some(fd)).map(drop)
    }

    fn show(&self, message: &[&[u8]], fd: Option<BorrowedFd<'_>>) -> io::Result<Errand> {
        let mut client = self.0.lock();
        client.ask(message, fd)?;
        let number = client.errands;
        client.errands += 1;
        drop(client);
        Ok(self.errand(number))
    }
}

/// The broker of this process, if it has one.
static BROKER: OnceLock<Broker> = OnceLock::new();

/// Starts the [broker](Broker::start) of this process. The errands of all sockets that are made
/// later are registered with it.
///
/// # Errors
///
/// The broker can't be started, or the process has a broker already.
pub fn start(arguments: &[&str], stderr: Stdio) -> io::Result<&'static Broker> {
    let set = BROKER.set(Broker::start(arguments, stderr)?);
    let broker = BROKER.get().filter(|_| set.is_ok());
    broker.ok_or_else(|| io::ErrorKind::AlreadyExists.into())
}

/// Seals the broker's list of errands. Does nothing without a broker.
///
/// # Errors
///
/// The broker has ended, or could not be confined.
pub fn seal() -> io::Result<()> {
    BROKER.get().map_or(Ok(()), Broker::seal)
}

/// An errand that was registered with a broker.
#[derive(Debug)]
pub struct Errand {
    broker: Broker,
    number: u32,
}

impl Errand {
    /// Registers the errand to connect `socket` to `path`. `None` without a broker.
    pub(crate) fn connect(socket: &UnixDatagram, path: &Path) -> io::Result<Option<Self>> {
        let path = path.as_os_str().as_bytes();
        let show = |broker: &Broker| broker.show(&[&[CONNECT], path], Some(socket.as_fd()));
        BROKER.get().map(show).transpose()
    }

    /// Registers the errand to remove `path`. `None` without a broker.
    pub(crate) fn remove(path: &Path) -> io::Result<Option<Self>> {
        let path = path.as_os_str().as_bytes();
        let show = |broker: &Broker| broker.show(&[&[REMOVE], path], None);
        BROKER.get().map(show).transpose()
    }

    /// Registers the errand to replace the file `name` in `directory` with `broker`.
    pub(crate) fn replace(
        broker: &Broker,
        directory: BorrowedFd<'_>,
        name: &OsStr,
    ) -> io::Result<Self> {
        broker.show(&[&[REPLACE], name.as_bytes()], Some(directory))
    }

    /// Requests that the broker run the errand.
    pub(crate) fn run(&self) -> io::Result<()> {
        self.run_with(&[])
    }

    /// Requests that the broker run the errand, with this content of the file to replace.
    pub(crate) fn run_with(&self, content: &[u8]) -> io::Result<()> {
        let number = self.number.to_ne_bytes();
        let mut client = self.broker.0.lock();
        for piece in content.chunks(MAX_MESSAGE - 1 - number.len()) {
            client.ask(&[&[CONTENT], &number, piece], None)?;
        }
        client.ask(&[&[RUN], &number], None)
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    /// Starts a broker in a thread and returns its client. The thread ends when the client is
    /// dropped.
    fn broker(confine: fn(&Changed<'_>) -> io::Result<()>) -> Broker {
        let (socket, theirs) = socket_pair().unwrap();
        std::thread::spawn(move || run(theirs, confine).unwrap());
        Broker::of(socket, None)
    }

    #[test]
    fn errands_are_run_by_their_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("remote");
        let name = path.as_os_str().as_bytes();
        let broker = broker(|_| Ok(()));
        let socket = UnixDatagram::unbound().unwrap();
        let connect = broker.show(&[&[CONNECT], name], Some(socket.as_fd()));
        let connect = connect.unwrap();
        let remove = broker.show(&[&[REMOVE], name], None).unwrap();
        broker.seal().unwrap();

        let nobody = connect.run().unwrap_err();
        assert_eq!(nobody.kind(), io::ErrorKind::NotFound);
        for text in [b"first", b"again"] {
            let remote = UnixDatagram::bind(&path).unwrap();
            connect.run().unwrap();
            socket.send(text).unwrap();
            let mut received = [0; 5];
            remote.recv(&mut received).unwrap();
            assert_eq!(received, *text);
            remove.run().unwrap();
            assert!(!path.exists());
        }
        let unknown = broker.errand(2).run().unwrap_err();
        assert_eq!(unknown.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_sealed_list_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "mine").unwrap();
        let name = path.as_os_str().as_bytes();
        let broker = broker(|changed| {
            assert!(changed.removed.is_empty() && changed.folders.is_empty());
            Ok(())
        });
        broker.seal().unwrap();
        let refused = |done: io::Result<()>| {
            let error = done.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        };
        refused(broker.show(&[&[REMOVE], name], None).map(drop));
        let socket = UnixDatagram::unbound().unwrap();
        let shown = broker.show(&[&[CONNECT], name], Some(socket.as_fd()));
        refused(shown.map(drop));
        let folder = std::fs::File::open(dir.path()).unwrap();
        refused(Errand::replace(&broker, folder.as_fd(), OsStr::new("file")).map(drop));
        refused(broker.seal());
        assert!(broker.errand(0).run().is_err());
        assert!(path.exists());
    }

    #[test]
    fn files_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let broker = broker(|changed| {
            assert_eq!((changed.removed.len(), changed.folders.len()), (1, 1));
            Ok(())
        });
        let name = dir.path().join("other");
        let remove = broker.show(&[&[REMOVE], name.as_os_str().as_bytes()], None);
        let remove = remove.unwrap();
        let folder = std::fs::File::open(dir.path()).unwrap();
        let replace = Errand::replace(&broker, folder.as_fd(), OsStr::new("file")).unwrap();
        broker.seal().unwrap();
        let long: Vec<u8> = (0..3 * MAX_MESSAGE).map(|at| (at / 7) as u8).collect();
        for content in [&b"short"[..], &long, b""] {
            replace.run_with(content).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
        let error = replace.run_with(&vec![0; MAX_CONTENT + 1]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::FBIG.raw_os_error()));
        assert!(std::fs::read(&path).unwrap().is_empty());
        replace.run_with(b"short").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"short");
        let error = remove.run_with(b"content").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    /// The other end of a broker's socket is held open, but requests are neither read nor answered.
    #[test]
    fn a_broker_that_does_not_serve_is_given_up() {
        for is_full in [false, true] {
            let (socket, theirs) = socket_pair().unwrap();
            let flags = SendFlags::DONTWAIT;
            while is_full && rustix::net::send(&socket, &[0; 64], flags).is_ok() {}
            let broker = Broker::of_another(socket);
            let error = broker.errand(0).run().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{is_full}");
            // Later requests are not sent.
            let request = || {
                let received = rustix::net::recv(&theirs, &mut [0; 64], RecvFlags::DONTWAIT);
                received.map(|(_, len)| len)
            };
            let requests = || iter::repeat_with(request).map_while(Result::ok).count();
            requests();
            let error = broker.errand(0).run().unwrap_err();
            assert!(error.to_string().contains("has ended"), "{error}");
            assert_eq!(requests(), 0);
        }
    }

    #[test]
    fn a_broker_that_is_not_confined_is_told() {
        let broker = broker(|_| Err(Errno::NOSYS.into()));
        assert_eq!(
            broker.seal().unwrap_err().raw_os_error(),
            Some(Errno::NOSYS.raw_os_error())
        );
    }
}
