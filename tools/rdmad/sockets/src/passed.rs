// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Passing of descriptors, such as a port's sockets, from one process to another, together with
//! bytes of a stream.

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::{
    getsockname, recvmsg, sendmsg, sockopt, AddressFamily, RecvAncillaryBuffer,
    RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketType,
};

use crate::broker::Broker;
use crate::SocketPath;

/// Maximum number of descriptors of a message.
pub const MAX_DESCRIPTORS: usize = 4;

/// Writes `bytes`, which must not be empty, to `stream`, with the descriptors `fds`.
///
/// # Errors
///
/// The other side has closed the stream, or there are more descriptors than [`MAX_DESCRIPTORS`].
pub fn send(mut stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if fds.len() > MAX_DESCRIPTORS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    if !fds.is_empty() {
        // `control` has room for the descriptors.
        let _ = control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let parts = [IoSlice::new(bytes)];
    let sent = sendmsg(stream, &parts, &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(&bytes[sent..])
}

/// Reads bytes from `stream`, and adds the descriptors that arrive with them to `fds`. Returns the
/// number of bytes.
///
/// # Errors
///
/// There is nothing to read, or the other side has reset the connection.
pub fn receive(stream: &UnixStream, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(bytes)];
    let received = recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    fds.extend(rights.flatten());
    Ok(received.bytes)
}

/// The sockets of a port, which another process has made.
#[derive(Debug)]
pub struct PortSockets {
    /// The socket that the VM's monitor connects to, and its path.
    pub vfio: (UnixListener, SocketPath),
    /// The socket of the network interface, and its path, if there is one.
    pub net: Option<(UnixListener, SocketPath)>,
}

/// Numbers of the errands of a port's broker, in the order in which the port's sockets are made.
const REMOVE_VFIO: u32 = 0;
const REMOVE_NET: u32 = 1;

/// Why descriptors can't be used as the sockets of a port.
#[derive(Debug, thiserror::Error)]
pub enum NoPort {
    /// The number of descriptors is wrong.
    #[error("the port needs {expected} descriptors, and {given} were passed")]
    Count {
        /// Expected number: a broker, a socket for the monitor, and one for a network interface.
        expected: usize,
        /// Number of received descriptors.
        given: usize,
    },
    /// A descriptor is of the wrong kind.
    #[error("the descriptor for {0} is of another kind")]
    Kind(&'static str),
    /// A socket is bound to another path.
    #[error("the socket for {0} is not bound to this path")]
    Elsewhere(PathBuf),
}

impl PortSockets {
    /// Makes the sockets from these descriptors, which have the order of [`Self::descriptors`].
    /// `vfio` is the path of the monitor's socket, `net` that of the network interface.
    ///
    /// # Errors
    ///
    /// The descriptors are not the sockets of a port at these paths. They are closed, and the paths
    /// are not removed: the process that made the sockets does this.
    pub fn of(fds: Vec<OwnedFd>, vfio: &Path, net: Option<&Path>) -> Result<Self, NoPort> {
        let expected = 2 + usize::from(net.is_some());
        let given = fds.len();
        let mut fds = fds.into_iter();
        let (Some(broker), true) = (fds.next(), given == expected) else {
            return Err(NoPort::Count { expected, given });
        };
        check(
            &broker,
            SocketType::SEQPACKET,
            false,
            "the broker of the paths",
        )?;
        let mut listener = |path: &Path, name| {
            let fd = fds.next().ok_or(NoPort::Count { expected, given })?;
            check(&fd, SocketType::STREAM, true, name)?;
            let address = getsockname(&fd).ok();
            let address = address.and_then(|address| SocketAddrUnix::try_from(address).ok());
            match address.as_ref().and_then(SocketAddrUnix::path_bytes) {
                Some(bound) if bound == path.as_os_str().as_bytes() => Ok(fd),
                _ => Err(NoPort::Elsewhere(path.to_owned())),
            }
        };
        let of_vfio = listener(vfio, "a vfio-user socket that listens")?;
        let of_net = net.map(|path| {
            let fd = listener(path, "a network socket that listens")?;
            Ok::<_, NoPort>((fd, path))
        });
        let of_net = of_net.transpose()?;
        // Dropping a path is a request to the broker, so there are none before all is checked.
        let broker = Broker::of_another(broker);
        let at = |path: &Path, errand| SocketPath {
            path: path.to_owned(),
            errand: Some(broker.errand(errand)),
            is_left: false,
        };
        Ok(Self {
            vfio: (of_vfio.into(), at(vfio, REMOVE_VFIO)),
            net: of_net.map(|(fd, path)| (fd.into(), at(path, REMOVE_NET))),
        })
    }

    /// The descriptors to pass to the process that will serve the port.
    pub fn descriptors<'a>(&'a self, broker: &'a OwnedFd) -> Vec<BorrowedFd<'a>> {
        let net = self.net.iter().map(|(listener, _)| listener.as_fd());
        [broker.as_fd(), self.vfio.0.as_fd()]
            .into_iter()
            .chain(net)
            .collect()
    }

    /// Drops the sockets without removing their paths, which the receiving process now owns.
    pub fn leave(self) {
        self.vfio.1.leave();
        if let Some(net) = self.net {
            net.1.leave();
        }
    }
}

fn check(fd: &OwnedFd, kind: SocketType, listens: bool, name: &'static str) -> Result<(), NoPort> {
    let is_one = sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(fd) == Ok(kind)
        && sockopt::socket_acceptconn(fd) == Ok(listens);
    is_one.then_some(()).ok_or(NoPort::Kind(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn descriptors_come_with_the_bytes() {
        let (near, far) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        send(&near, b"line\n", &[file.as_fd(), near.as_fd()]).unwrap();
        let (mut bytes, mut fds) = ([0; 10], Vec::new());
        assert_eq!(receive(&far, &mut bytes, &mut fds).unwrap(), 5);
        assert_eq!((&bytes[..5], fds.len()), (&b"line\n"[..], 2));
        send(&near, b"more", &[]).unwrap();
        assert_eq!(receive(&far, &mut bytes, &mut fds).unwrap(), 4);
        assert_eq!(fds.len(), 2);
        let many = [file.as_fd(); MAX_DESCRIPTORS + 1];
        assert!(send(&near, b"line\n", &many).is_err());
    }

    #[test]
    fn descriptors_of_another_kind_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vfio");
        let other = dir.path().join("net");
        let listener_at = |path: &Path| OwnedFd::from(UnixListener::bind(path).unwrap());
        let listener = || listener_at(&path);
        let packets = || {
            let (fd, _) = rustix::net::socketpair(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                rustix::net::SocketFlags::CLOEXEC,
                None,
            )
            .unwrap();
            fd
        };
        let datagrams = || OwnedFd::from(std::os::unix::net::UnixDatagram::unbound().unwrap());
        let stream = || OwnedFd::from(UnixStream::pair().unwrap().0);
        let file = || OwnedFd::from(File::open("/dev/null").unwrap());
        let of = |fds: Vec<OwnedFd>, has_net: bool| {
            let net = has_net.then_some(&*other);
            let sockets = PortSockets::of(fds, &path, net);
            for path in [&path, &other] {
                let _ = std::fs::remove_file(path);
            }
            sockets.map(drop).map_err(|error| error.to_string())
        };
        let error = of(vec![], false).unwrap_err();
        assert!(
            error.ends_with("needs 2 descriptors, and 0 were passed"),
            "{error}"
        );
        let error = of(vec![packets(), listener()], true).unwrap_err();
        assert!(
            error.ends_with("needs 3 descriptors, and 2 were passed"),
            "{error}"
        );
        for broker in [stream(), datagrams(), file()] {
            let error = of(vec![broker, listener()], false).unwrap_err();
            assert_eq!(
                error,
                "the descriptor for the broker of the paths is of another kind"
            );
        }
        for vfio in [stream(), datagrams(), file(), packets()] {
            let error = of(vec![packets(), vfio], false).unwrap_err();
            assert!(error.contains("a vfio-user socket that listens"), "{error}");
        }
        let net = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(of(vec![packets(), net.into()], false).is_err());
        for wrong in [stream(), datagrams(), file(), packets()] {
            let error = of(vec![packets(), listener(), wrong], true).unwrap_err();
            assert!(error.contains("a network socket that listens"), "{error}");
        }
        // A socket that is bound elsewhere or nowhere.
        let error = of(vec![packets(), listener_at(&other)], false).unwrap_err();
        assert!(error.contains("not bound to this path"), "{error}");
        let swapped = vec![packets(), listener_at(&other), listener()];
        assert!(of(swapped, true).is_err());
        of(vec![packets(), listener(), listener_at(&other)], true).unwrap();
    }
}
