// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The keeper: a process that accesses paths for the daemon, which its sandbox denies any path.
//!
//! When a peer restarts, it has a new socket at the same path, to which the daemon must connect.
//! When the daemon ends, it must remove its sockets. Both need paths, and a seccomp filter can't
//! distinguish paths. So a second process does both: the keeper. While the daemon starts, it
//! registers each of these *errands* with the keeper. Then the list is sealed: the daemon can only
//! request an errand by its number. A socket that the keeper connects is connected in the daemon
//! too, since both processes have descriptors of the same socket.
//!
//! The keeper ends with the daemon.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// Longest message in bytes: the kind of request, and a path.
const MAX_MESSAGE: usize = 1 + 4096;

/// First byte of a message that registers an errand: a socket, as a descriptor, and the path to
/// connect it to.
const CONNECT: u8 = b'c';
/// First byte of a message that registers an errand: a path to remove.
const REMOVE: u8 = b'r';
/// First byte of a message that requests an errand, by its number.
const RUN: u8 = b'x';
/// First byte of the message that seals the list of errands.
const SEAL: u8 = b's';

/// An errand that the daemon has registered.
#[derive(Debug)]
enum Shown {
    Connect(UnixDatagram, PathBuf),
    Remove(PathBuf),
}

impl Shown {
    fn path(&self) -> &Path {
        match self {
            Self::Connect(_, path) | Self::Remove(path) => path,
        }
    }

    fn run(&self) -> io::Result<()> {
        match self {
            Self::Connect(socket, path) => socket.connect(path),
            Self::Remove(path) => std::fs::remove_file(path),
        }
    }
}

/// Runs the keeper: serves the daemon at the other end of `socket` until the daemon ends. `confine`
/// is called when the list of errands is sealed, with the paths to remove.
pub fn keep(socket: impl AsFd, confine: impl FnOnce(&[&Path]) -> io::Result<()>) -> io::Result<()> {
    let mut errands = Vec::new();
    let mut confine = Some(confine);
    loop {
        let mut message = [0; MAX_MESSAGE];
        let Some((len, fd)) = receive(&socket, &mut message)? else {
            return Ok(());
        };
        let (request, rest) = message[..len].split_first().ok_or(Errno::INVAL)?;
        let path = || PathBuf::from(std::ffi::OsStr::from_bytes(rest));
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
            (SEAL, None) => {
                let removed = errands
                    .iter()
                    .filter(|errand| matches!(errand, Shown::Remove(_)));
                let removed: Vec<_> = removed.map(Shown::path).collect();
                confine
                    .take()
                    .map_or(Err(Errno::PERM.into()), |confine| confine(&removed))
            }
            (RUN, None) => {
                let number = rest.try_into().map(u32::from_ne_bytes).ok();
                let errand = number.and_then(|number| errands.get(number as usize));
                errand.ok_or(Errno::INVAL.into()).and_then(Shown::run)
            }
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

/// The daemon's side of a keeper.
#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    /// Number of registered errands.
    errands: u32,
}

impl Client {
    /// Sends a message and waits for the answer.
    fn ask(&self, message: &[&[u8]], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        match fd {
            // `send`, not `sendmsg`: a confined thread may only call the former.
            None => {
                let message = message.concat();
                retry(|| rustix::net::send(&self.socket, &message, SendFlags::NOSIGNAL))?;
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
        let ((), len) = retry(|| {
            rustix::net::recv(&self.socket, &mut errno, RecvFlags::empty())
                .map(|(_, len)| ((), len))
        })?;
        match i32::from_ne_bytes(errno) {
            _ if len == 0 => Err(io::Error::other("the keeper has ended")),
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    fn show(&mut self, message: &[&[u8]], fd: Option<BorrowedFd<'_>>) -> io::Result<Errand> {
        self.ask(message, fd)?;
        let errand = Errand(self.errands);
        self.errands += 1;
        Ok(errand)
    }

    fn run(&self, Errand(number): &Errand) -> io::Result<()> {
        self.ask(&[&[RUN], &number.to_ne_bytes()], None)
    }
}

/// The keeper of this process, if it has one.
static KEEPER: OnceLock<Mutex<Client>> = OnceLock::new();

/// Starts the keeper: this program with `argument` as its only argument. It must then call [`keep`]
/// with its standard input.
///
/// # Errors
///
/// The keeper can't be started, or the process has a keeper already.
pub fn start(argument: &str) -> io::Result<()> {
    let (socket, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // The child is not waited for: it ends when the daemon's end of the socket is closed.
    Command::new("/proc/self/exe")
        .arg(argument)
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .spawn()?;
    let client = Client { socket, errands: 0 };
    let set = KEEPER.set(Mutex::new(client));
    set.map_err(|_| io::ErrorKind::AlreadyExists.into())
}

/// Seals the keeper's list of errands. Does nothing without a keeper.
///
/// # Errors
///
/// The keeper has ended, or could not be confined.
pub fn seal() -> io::Result<()> {
    with(|keeper| keeper.ask(&[&[SEAL]], None)).unwrap_or(Ok(()))
}

/// Calls `work` with the keeper's client, if there is a keeper.
fn with<T>(work: impl FnOnce(&mut Client) -> T) -> Option<T> {
    let keeper = KEEPER.get()?;
    Some(work(&mut keeper.lock()))
}

/// The number of an errand that was registered with the keeper.
#[derive(Debug)]
pub(crate) struct Errand(u32);

impl Errand {
    /// Registers the errand to connect `socket` to `path`. `None` without a keeper.
    pub(crate) fn connect(socket: &UnixDatagram, path: &Path) -> io::Result<Option<Self>> {
        let path = path.as_os_str().as_bytes();
        with(|keeper| keeper.show(&[&[CONNECT], path], Some(socket.as_fd()))).transpose()
    }

    /// Registers the errand to remove `path`. `None` without a keeper.
    pub(crate) fn remove(path: &Path) -> io::Result<Option<Self>> {
        let path = path.as_os_str().as_bytes();
        with(|keeper| keeper.show(&[&[REMOVE], path], None)).transpose()
    }

    /// Requests that the keeper run the errand.
    pub(crate) fn run(&self) -> io::Result<()> {
        with(|keeper| keeper.run(self)).unwrap_or(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A keeper in a thread, which ends when its client is dropped.
    fn keeper(confine: fn(&[&Path]) -> io::Result<()>) -> Client {
        let (socket, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        std::thread::spawn(move || keep(theirs, confine).unwrap());
        Client { socket, errands: 0 }
    }

    #[test]
    fn errands_are_run_by_their_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("peer");
        let name = path.as_os_str().as_bytes();
        let mut keeper = keeper(|_| Ok(()));
        let socket = UnixDatagram::unbound().unwrap();
        let connect = keeper.show(&[&[CONNECT], name], Some(socket.as_fd()));
        let connect = connect.unwrap();
        let remove = keeper.show(&[&[REMOVE], name], None).unwrap();
        keeper.ask(&[&[SEAL]], None).unwrap();

        let nobody = keeper.run(&connect).unwrap_err();
        assert_eq!(nobody.kind(), io::ErrorKind::NotFound);
        for text in [b"first", b"again"] {
            let peer = UnixDatagram::bind(&path).unwrap();
            keeper.run(&connect).unwrap();
            socket.send(text).unwrap();
            let mut received = [0; 5];
            peer.recv(&mut received).unwrap();
            assert_eq!(received, *text);
            keeper.run(&remove).unwrap();
            assert!(!path.exists());
        }
        let unknown = keeper.run(&Errand(2)).unwrap_err();
        assert_eq!(unknown.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_sealed_list_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "mine").unwrap();
        let name = path.as_os_str().as_bytes();
        let mut keeper = keeper(|removed| {
            assert!(removed.is_empty());
            Ok(())
        });
        keeper.ask(&[&[SEAL]], None).unwrap();
        let refused = |done: io::Result<()>| {
            let error = done.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        };
        refused(keeper.show(&[&[REMOVE], name], None).map(drop));
        let socket = UnixDatagram::unbound().unwrap();
        let shown = keeper.show(&[&[CONNECT], name], Some(socket.as_fd()));
        refused(shown.map(drop));
        refused(keeper.ask(&[&[SEAL]], None));
        assert!(keeper.run(&Errand(0)).is_err());
        assert!(path.exists());
    }

    #[test]
    fn a_keeper_that_is_not_confined_is_told() {
        let keeper = keeper(|_| Err(Errno::NOSYS.into()));
        assert_eq!(
            keeper.ask(&[&[SEAL]], None).unwrap_err().raw_os_error(),
            Some(Errno::NOSYS.raw_os_error())
        );
    }
}
