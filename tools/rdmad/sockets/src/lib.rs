// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Unix sockets at paths: their permissions, and the replacement of sockets of dead processes.
//!
//! A program that connects to a port's socket acts as that port's VM. So by default only the owner
//! of a socket may access it, whatever the umask is, from the moment when it is bound to its path.
//! The kernel checks file permissions before a remote end is connected, also for datagrams. A
//! socket with a [user](Access::user) is also checked when a client is accepted ([`admits`]).
//!
//! A path can be trusted only if no other user can replace a directory on it, see [`directory`].

#![forbid(unsafe_code)]

pub mod broker;
mod directory;
mod kept_file;
mod left;
pub mod passed;
mod remote;

use std::fs::{self, Metadata};
use std::io;
use std::num::NonZeroI32;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::fs::{
    chmod, chownat, fchmod, fstat, openat, AtFlags, FileType, Gid, Mode, OFlags, Uid,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;

use self::broker::Errand;
pub use self::directory::DirectoryError;
use self::directory::{open_directory, Sticky};
pub use self::kept_file::KeptFile;
pub use self::left::{close_left, inherit};
pub use self::passed::PortSockets;
pub use self::remote::RemoteSocket;

/// Longest path of a Unix socket in bytes: `sun_path` holds it and a terminating NUL.
const MAX_PATH: usize = 107;
/// Pauses in ms before the attempts to get what a daemon or an engine has that was killed, and that
/// may still be ending.
const ATTEMPTS: [u64; 9] = [0, 2, 5, 10, 20, 40, 80, 200, 700];
/// Maximum number of clients that wait to be accepted.
const BACKLOG: i32 = 128;
/// User ID of root, who may replace any file.
pub const ROOT: u32 = 0;
/// Mode bits of a file or directory to which users other than its owner may write.
const OTHERS_WRITE: u32 = 0o022;
/// File mode: only the owner may read and write.
const PRIVATE: u32 = 0o600;

/// Why a socket can't be made at a path.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path does not fit a socket address.
    #[error("socket path {0} is longer than {MAX_PATH} bytes")]
    PathTooLong(PathBuf),
    /// A process uses the socket at this path.
    #[error("socket {0} is in use by another process")]
    InUse(PathBuf),
    /// The file at this path is not a socket.
    #[error("{0} exists and is not a socket")]
    NotASocket(PathBuf),
    /// The socket's directory can't be used.
    #[error("socket {path}: {error}")]
    Directory {
        /// The socket's path.
        path: PathBuf,
        /// Why the directory can't be used.
        error: DirectoryError,
    },
    /// Another file has replaced the socket that was just bound.
    #[error("socket {0} was replaced by another file; use a directory of your own (mode 0700)")]
    Replaced(PathBuf),
    /// The socket can't be given to its user.
    #[error(
        "can't give the socket {path} to user {user}: {error}; \
         only root can, so name a group of this user and of the daemon too"
    )]
    NotGiven {
        /// The socket's path.
        path: PathBuf,
        user: u32,
        /// The error of the system call.
        error: io::Error,
    },
    /// A system call failed.
    #[error("can't create a socket at {path}: {error}")]
    Io {
        /// The socket's path.
        path: PathBuf,
        /// The error of the system call.
        error: io::Error,
    },
}

/// Users who may connect to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// File mode of the socket.
    pub mode: u32,
    /// Group of the socket, if it is not the group of the process.
    pub group: Option<u32>,
    /// The only user besides root who may connect. The socket belongs to this user, unless `group`
    /// opens it: an unprivileged process can't give files away.
    pub user: Option<u32>,
    /// Whether other users may create files in the socket's directory if it is sticky. They can
    /// take the name of the socket while it does not exist.
    pub in_sticky: bool,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            mode: PRIVATE,
            group: None,
            user: None,
            in_sticky: false,
        }
    }
}

impl Access {
    /// The user who gets the socket.
    fn owner(&self) -> Option<u32> {
        self.user.filter(|_| self.group.is_none())
    }
}

/// The process at the other end of a stream, when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The number of the process. `None` if this process does not see it, for example in another
    /// container.
    pub process: Option<NonZeroI32>,
    /// The number of its user.
    pub user: u32,
}

/// The process at the other end of `stream`.
pub fn peer(stream: &impl AsFd) -> io::Result<Peer> {
    let credentials = getsockopt(stream, PeerCredentials)?;
    Ok(Peer {
        process: NonZeroI32::new(credentials.pid()),
        user: credentials.uid(),
    })
}

/// Whether the process at the other end of `stream` may use a socket of `user`. Without a user, the
/// permissions of the socket's file have admitted the process.
pub fn admits(stream: impl AsFd, user: Option<u32>) -> bool {
    user.is_none_or(|user| peer(&stream).is_ok_and(|peer| peer.user == user || peer.user == ROOT))
}

/// The path of a socket. Dropping it removes the file.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    /// The broker's errand to remove the file. `None` without a broker: the drop then removes the
    /// file itself.
    errand: Option<Errand>,
    /// Whether dropping this value does not remove the file, because another process will do so.
    is_left: bool,
}

impl SocketPath {
    pub fn as_path(&self) -> &Path {
        &self.path
    }

    /// Drops the value without removing the file.
    pub fn leave(mut self) {
        self.is_left = true;
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        // An error is ignored: the file may have been removed already.
        let _ = match &self.errand {
            Some(errand) => errand.run(),
            None => fs::remove_file(&self.path),
        };
    }
}

/// Listens at `path`. A socket that a dead process left there is replaced, and an
/// [inherited](inherit) one is used.
pub fn listen(path: &Path, access: &Access) -> Result<(UnixListener, SocketPath), Error> {
    let connect = || UnixStream::connect(path).map(drop);
    let (fd, at) = socket_at(path, SocketType::STREAM, access, connect)?;
    rustix::net::listen(&fd, BACKLOG).map_err(|error| failure(path, error))?;
    Ok((fd.into(), at))
}

/// A datagram socket at `path`. A socket that a dead process left there is replaced, and an
/// [inherited](inherit) one is used.
pub fn datagram(path: &Path, access: &Access) -> Result<(UnixDatagram, SocketPath), Error> {
    let connect = || UnixDatagram::unbound()?.connect(path);
    let (fd, at) = socket_at(path, SocketType::DGRAM, access, connect)?;
    Ok((fd.into(), at))
}

/// A socket at `path`. `connect` connects to the socket there.
fn socket_at(
    path: &Path,
    socket_type: SocketType,
    access: &Access,
    connect: impl Fn() -> io::Result<()>,
) -> Result<(OwnedFd, SocketPath), Error> {
    let left = left::take(path, socket_type);
    // Not if its file was removed meanwhile.
    let is_there = |_: &OwnedFd| fs::symlink_metadata(path).is_ok_and(|it| is_socket(&it));
    let (directory, socket) = match left.filter(is_there) {
        Some(socket) => (socket_directory(path, access)?, socket),
        None => {
            let directory = prepare(path, access, connect)?;
            (directory, bind(path, socket_type)?)
        }
    };
    let mut at = SocketPath {
        path: path.to_owned(),
        errand: None,
        is_left: false,
    };
    at.errand = Errand::remove(path).map_err(|error| failure(path, error))?;
    permit(&directory, path, access)?;
    Ok((socket, at))
}

fn is_socket(metadata: &Metadata) -> bool {
    metadata.file_type().is_socket()
}

/// Prepares `path` for a new socket: removes the socket of a dead process. `connect` connects to
/// the old socket; if it succeeds again and again, the socket is in use. Returns the directory.
fn prepare(
    path: &Path,
    access: &Access,
    connect: impl Fn() -> io::Result<()>,
) -> Result<OwnedFd, Error> {
    if path.as_os_str().as_bytes().len() > MAX_PATH {
        return Err(Error::PathTooLong(path.to_owned()));
    }
    let directory = socket_directory(path, access)?;
    match fs::symlink_metadata(path) {
        Ok(metadata) if !is_socket(&metadata) => {
            return Err(Error::NotASocket(path.to_owned()));
        }
        Ok(_) => {
            let is_refused_after = |pause| {
                thread::sleep(Duration::from_millis(pause));
                let refused = io::ErrorKind::ConnectionRefused;
                connect().is_err_and(|error| error.kind() == refused)
            };
            if !ATTEMPTS.into_iter().any(is_refused_after) {
                return Err(Error::InUse(path.to_owned()));
            }
            fs::remove_file(path).map_err(|error| failure(path, error))?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failure(path, error)),
    }
    Ok(directory)
}

/// Calls `act` again and again, for about a second, while it fails with `busy`.
///
/// # Errors
///
/// `act` fails otherwise, or for so long.
pub fn while_busy<T>(busy: Errno, mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let is_busy = |error: &io::Error| error.raw_os_error() == Some(busy.raw_os_error());
    let mut result = Err(busy.into());
    for pause in ATTEMPTS {
        if !result.as_ref().is_err_and(is_busy) {
            break;
        }
        thread::sleep(Duration::from_millis(pause));
        result = act();
    }
    result
}

/// Opens the directory of the socket `path`.
fn socket_directory(path: &Path, access: &Access) -> Result<OwnedFd, Error> {
    let sticky = match access.in_sticky {
        true => Sticky::Accepted,
        false => Sticky::Refused,
    };
    open_directory(path, OFlags::PATH, sticky).map_err(|error| Error::Directory {
        path: path.to_owned(),
        error,
    })
}

fn bind(path: &Path, socket_type: SocketType) -> Result<OwnedFd, Error> {
    let failure = |error| failure(path, error);
    let flags = SocketFlags::CLOEXEC;
    let fd =
        rustix::net::socket_with(AddressFamily::UNIX, socket_type, flags, None).map_err(failure)?;
    // `bind` creates the file with the mode of the socket, so other users can never connect.
    fchmod(&fd, Mode::from_raw_mode(PRIVATE)).map_err(failure)?;
    let address = SocketAddrUnix::new(path).map_err(failure)?;
    rustix::net::bind(&fd, &address).map_err(failure)?;
    Ok(fd)
}

/// Whether the owner of a file is root or the user of this process.
fn is_trusted(owner: u32) -> bool {
    owner == ROOT || owner == geteuid().as_raw()
}

/// Sets group and permissions of the socket at `path`, in `directory`. Symbolic links are not
/// followed, and a file that is not a socket is not changed.
fn permit(directory: &OwnedFd, path: &Path, access: &Access) -> Result<(), Error> {
    let failure = |error| failure(path, error);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let name = path.file_name().unwrap_or_default();
    let file = openat(directory, name, flags, Mode::empty()).map_err(failure)?;
    let mode = fstat(&file).map_err(failure)?.st_mode;
    if FileType::from_raw_mode(mode) != FileType::Socket {
        return Err(Error::Replaced(path.to_owned()));
    }
    let (owner, group) = (access.owner(), access.group);
    if owner.is_some() || group.is_some() {
        let (owner, group) = (owner.map(Uid::from_raw), group.map(Gid::from_raw));
        chownat(&file, "", owner, group, AtFlags::EMPTY_PATH).map_err(|error| match owner {
            Some(owner) => Error::NotGiven {
                path: path.to_owned(),
                user: owner.as_raw(),
                error: error.into(),
            },
            None => failure(error),
        })?;
    }
    if access.mode != PRIVATE {
        // Linux before 6.6 can't change the mode by an O_PATH descriptor.
        let file = format!("/proc/self/fd/{}", file.as_raw_fd());
        chmod(file, Mode::from_raw_mode(access.mode)).map_err(failure)?;
    }
    Ok(())
}

fn failure(path: &Path, error: impl Into<io::Error>) -> Error {
    Error::Io {
        path: path.to_owned(),
        error: error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::process::Command;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_socket_is_its_owners_alone_unless_told_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        for (access, expected) in [
            (Access::default(), 0o600),
            (
                Access {
                    mode: 0o666,
                    ..Access::default()
                },
                0o666,
            ),
        ] {
            let (_stream, at) = listen(&path, &access).unwrap();
            assert_eq!(mode(&path), expected);
            drop(at);
            let (_datagrams, at) = datagram(&path, &access).unwrap();
            assert_eq!(mode(&path), expected);
            drop(at);
            assert!(!path.exists());
        }
        let own = rustix::process::getgid().as_raw();
        let shared = Access {
            mode: 0o660,
            group: Some(own),
            ..Access::default()
        };
        let (_stream, at) = listen(&path, &shared).unwrap();
        assert_eq!(fs::metadata(at.as_path()).unwrap().gid(), own);
        assert_eq!(mode(&path), 0o660);
    }

    /// In a sticky directory, other users can't replace the socket, but they can take its name
    /// before it exists.
    #[test]
    fn a_directory_in_which_others_may_create_files_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let set = |mode| fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        let sticky = Access {
            in_sticky: true,
            ..Access::default()
        };
        let refused = |access: &Access| {
            let error = listen(&path, access).unwrap_err();
            assert!(matches!(error, Error::Directory { .. }), "{error}");
            let (error, dir) = (error.to_string(), dir.path().display().to_string());
            assert!(error.contains("directory of your own"), "{error}");
            assert!(error.contains(&dir), "{error}");
            assert!(datagram(&path, access).is_err());
            assert!(!path.exists());
        };
        for mode in [0o777, 0o775, 0o770, 0o702] {
            set(mode);
            refused(&Access::default());
            refused(&sticky);
        }
        for mode in [0o1777, 0o1770, 0o3770] {
            set(mode);
            refused(&Access::default());
            listen(&path, &sticky).unwrap();
            datagram(&path, &sticky).unwrap();
        }
        for mode in [0o1755, 0o755, 0o2750, 0o700] {
            set(mode);
            listen(&path, &Access::default()).unwrap();
            datagram(&path, &Access::default()).unwrap();
        }
    }

    /// This test must run as root, or by tools/dev/enter, because it changes the owner of
    /// files.
    #[test]
    fn a_directory_must_belong_to_root_or_to_the_caller() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let access = Access {
            in_sticky: true,
            ..Access::default()
        };
        for mode in [0o755, 0o1777] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            std::os::unix::fs::chown(dir.path(), Some(1), None).unwrap();
            let error = datagram(&path, &access).unwrap_err();
            assert!(error.to_string().contains("belongs to user 1"), "{error}");
            std::os::unix::fs::chown(dir.path(), Some(0), None).unwrap();
            datagram(&path, &access).unwrap();
        }
    }

    /// This test must run as root, or by tools/dev/enter, because it changes the owner of
    /// files.
    #[test]
    fn a_socket_belongs_to_its_user_or_is_opened_by_a_group() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let own = (geteuid().as_raw(), rustix::process::getgid().as_raw());
        for (user, group, expected) in [
            (Some(1), None, (1, own.1)),
            (Some(1), Some(2), (own.0, 2)),
            (None, Some(2), (own.0, 2)),
        ] {
            let access = Access {
                user,
                group,
                ..Access::default()
            };
            let (_stream, at) = listen(&path, &access).unwrap();
            let stat = fs::metadata(at.as_path()).unwrap();
            assert_eq!((stat.uid(), stat.gid()), expected, "{user:?} {group:?}");
        }
    }

    /// If another file has replaced the socket, the permissions of this file are not changed.
    #[test]
    fn permissions_are_those_of_the_socket_alone() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("file"), "mine").unwrap();
        let listener = UnixListener::bind(at("other")).unwrap();
        for name in ["file", "other"] {
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o640)).unwrap();
            std::os::unix::fs::symlink(at(name), at("link")).unwrap();
            let access = Access {
                mode: 0o666,
                group: Some(rustix::process::getgid().as_raw()),
                ..Access::default()
            };
            let directory = socket_directory(&at("link"), &access).unwrap();
            assert!(permit(&directory, &at("link"), &access).is_err());
            assert_eq!(mode(&at(name)), 0o640, "{name}");
            fs::remove_file(at("link")).unwrap();
        }
        drop(listener);
    }

    #[test]
    fn only_sockets_of_the_dead_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let access = Access::default();
        drop(UnixListener::bind(&path).unwrap());
        let (_live, _at) = listen(&path, &access).unwrap();
        assert!(matches!(listen(&path, &access), Err(Error::InUse(_))));
        let other = dir.path().join("other");
        drop(UnixDatagram::bind(&other).unwrap());
        let (_live, _at) = datagram(&other, &access).unwrap();
        assert!(matches!(datagram(&other, &access), Err(Error::InUse(_))));
        let file = dir.path().join("file");
        fs::write(&file, "mine").unwrap();
        assert!(matches!(listen(&file, &access), Err(Error::NotASocket(_))));
        assert_eq!(fs::read(&file).unwrap(), b"mine");
        let long = dir.path().join("x".repeat(MAX_PATH));
        assert!(matches!(listen(&long, &access), Err(Error::PathTooLong(_))));
        let nowhere = dir.path().join("no/where");
        assert!(matches!(
            listen(&nowhere, &access),
            Err(Error::Directory { .. })
        ));
    }

    /// The variable that names the socket of `a_server_in_another_namespace`.
    const SOCKET: &str = "SOCKETS_TEST_SOCKET";

    #[test]
    fn clients_of_other_namespaces_are_known_by_their_users() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        // In a changed root, even root may not create a user namespace.
        let as_user: &[&str] = match geteuid().is_root() {
            true => &[],
            false => &["--user", "--map-current-user"],
        };
        let mut server = Command::new("unshare")
            .args(as_user)
            .args(["--pid", "--fork"])
            .arg(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact"])
            .arg("tests::a_server_in_another_namespace")
            .env(SOCKET, &path)
            .spawn()
            .unwrap();
        let client = loop {
            match UnixStream::connect(&path) {
                Ok(client) => break client,
                Err(error) => {
                    let ended = server.try_wait().unwrap();
                    assert!(ended.is_none(), "{ended:?}, {error}");
                    thread::yield_now();
                }
            }
        };
        assert!(server.wait().unwrap().success());
        drop(client);
    }

    /// The server of `clients_of_other_namespaces_are_known_by_their_users`, which does not see the
    /// client's process.
    #[test]
    #[ignore = "another test starts it"]
    fn a_server_in_another_namespace() {
        let path = PathBuf::from(std::env::var_os(SOCKET).unwrap());
        let (listener, _path) = listen(&path, &Access::default()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let own = geteuid().as_raw();
        assert!(admits(&stream, Some(own)));
        assert!(own == ROOT || !admits(&stream, Some(own + 1)));
        let known = Peer {
            process: None,
            user: own,
        };
        assert_eq!(peer(&stream).unwrap(), known);
    }

    #[test]
    fn a_socket_that_an_engine_left_is_used_while_its_file_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let again = || {
            let (listener, at) = listen(&path, &Access::default())?;
            at.leave();
            listener.set_nonblocking(true).unwrap();
            Ok::<_, Error>(listener)
        };
        let first = again().unwrap();
        let waiting = UnixStream::connect(&path).unwrap();
        let connection = first.accept().unwrap().0;
        let late = UnixStream::connect(&path).unwrap();
        inherit([connection.into(), OwnedFd::from(first)]);
        let second = again().unwrap();
        drop(second.accept().expect("the late client has waited"));
        inherit([second.into()]);
        fs::remove_file(&path).unwrap();
        let third = again().unwrap();
        let _client = UnixStream::connect(&path).unwrap();
        third
            .accept()
            .expect("the socket at the path is another one");
        // Without the sockets that were left, the path is in use.
        assert!(matches!(again(), Err(Error::InUse(_))));
        drop((waiting, late));
    }
}
