// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Unix sockets at paths: their permissions, and the replacement of sockets of dead processes.
//!
//! A program that connects to a port's socket acts as that port's VM. So by default only the owner
//! of a socket may access it, whatever the umask is, from the moment when it is bound to its path.
//! Credentials of peers (SO_PEERCRED) are not checked: file permissions are checked before a peer
//! is connected, also for datagrams.

#![forbid(unsafe_code)]

pub mod keeper;
mod kept_file;
pub mod passed;
mod remote;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{
    chmod, chownat, fchmod, fstat, open, openat, AtFlags, FileType, Gid, Mode, OFlags,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;

use self::keeper::Errand;
pub use self::kept_file::KeptFile;
pub use self::passed::PortSockets;
pub use self::remote::RemoteSocket;

/// Longest path of a Unix socket in bytes: `sun_path` holds it and a terminating NUL.
const MAX_PATH: usize = 107;
/// Maximum number of clients that wait to be accepted.
const BACKLOG: i32 = 128;
/// User ID of root, who may replace any file.
const ROOT: u32 = 0;
/// Mode bits of a file or directory to which users other than its owner may write.
const OTHERS_WRITE: u32 = 0o022;
/// Mode bit of a directory in which only the owner of a file may remove or rename it.
const STICKY: u32 = 0o1000;
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
    #[error("{0} exists and is no socket")]
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
    /// A system call failed.
    #[error("can't make a socket at {path}: {error}")]
    Io {
        /// The socket's path.
        path: PathBuf,
        /// The error of the system call.
        error: io::Error,
    },
}

/// Why a directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Other users may write to the directory, so they could replace files in it.
    #[error(
        "others than the owner may write to {0}, which is not sticky; \
         take that from them (chmod go-w) or use a directory of your own (mode 0700)"
    )]
    Exposed(PathBuf),
    /// Another user owns the directory, so this user could replace files in it.
    #[error(
        "{directory} belongs to user {owner}, who could replace files there; \
         use a directory of your own (mode 0700)"
    )]
    Foreign {
        /// The directory.
        directory: PathBuf,
        /// The directory's owner.
        owner: u32,
    },
    /// The directory can't be opened.
    #[error("can't open the directory {0}: {1}")]
    Io(PathBuf, io::Error),
}

/// Users who may connect to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// File mode of the socket.
    pub mode: u32,
    /// Group of the socket, if it is not the group of the process.
    pub group: Option<u32>,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            mode: PRIVATE,
            group: None,
        }
    }
}

/// The path of a socket. Dropping it removes the file.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    /// The keeper's errand to remove the file. `None` without a keeper: the drop then removes the
    /// file itself.
    errand: Option<Errand>,
    /// Whether dropping this value does not remove the file, because another process will do so.
    is_left: bool,
}

impl SocketPath {
    /// The path.
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

/// Listens at `path`. A socket that a dead process left there is replaced.
pub fn listen(path: &Path, access: &Access) -> Result<(UnixListener, SocketPath), Error> {
    let directory = prepare(path, || UnixStream::connect(path).map(drop))?;
    let (fd, at) = bind(&directory, path, SocketType::STREAM, access)?;
    rustix::net::listen(&fd, BACKLOG).map_err(|error| failure(path, error))?;
    Ok((fd.into(), at))
}

/// A datagram socket at `path`. A socket that a dead process left there is replaced.
pub fn datagram(path: &Path, access: &Access) -> Result<(UnixDatagram, SocketPath), Error> {
    let directory = prepare(path, || UnixDatagram::unbound()?.connect(path))?;
    let (fd, at) = bind(&directory, path, SocketType::DGRAM, access)?;
    Ok((fd.into(), at))
}

/// Prepares `path` for a new socket: removes the socket of a dead process. `connect` connects to
/// the old socket; if it succeeds, the socket is in use. Returns the directory.
fn prepare(path: &Path, connect: impl FnOnce() -> io::Result<()>) -> Result<OwnedFd, Error> {
    if path.as_os_str().as_bytes().len() > MAX_PATH {
        return Err(Error::PathTooLong(path.to_owned()));
    }
    let directory = socket_directory(path)?;
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(Error::NotASocket(path.to_owned()));
        }
        Ok(_) => match connect() {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(|error| failure(path, error))?;
            }
            _ => return Err(Error::InUse(path.to_owned())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failure(path, error)),
    }
    Ok(directory)
}

/// Opens the directory of the socket `path`.
fn socket_directory(path: &Path) -> Result<OwnedFd, Error> {
    open_directory(path, OFlags::PATH).map_err(|error| Error::Directory {
        path: path.to_owned(),
        error,
    })
}

fn bind(
    directory: &OwnedFd,
    path: &Path,
    socket_type: SocketType,
    access: &Access,
) -> Result<(OwnedFd, SocketPath), Error> {
    let failure = |error| failure(path, error);
    let flags = SocketFlags::CLOEXEC;
    let fd =
        rustix::net::socket_with(AddressFamily::UNIX, socket_type, flags, None).map_err(failure)?;
    // `bind` creates the file with the mode of the socket, so other users can never connect.
    fchmod(&fd, Mode::from_raw_mode(PRIVATE)).map_err(failure)?;
    let address = SocketAddrUnix::new(path).map_err(failure)?;
    rustix::net::bind(&fd, &address).map_err(failure)?;
    let mut at = SocketPath {
        path: path.to_owned(),
        errand: None,
        is_left: false,
    };
    at.errand = Errand::remove(path).map_err(|error| Error::Io {
        path: path.to_owned(),
        error,
    })?;
    permit(directory, path, access)?;
    Ok((fd, at))
}

/// Opens the directory of `path` with these flags. Fails if another user may replace files in it.
fn open_directory(path: &Path, flags: OFlags) -> Result<OwnedFd, DirectoryError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let failure = |error: Errno| DirectoryError::Io(directory.to_owned(), error.into());
    let flags = flags | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = open(directory, flags, Mode::empty()).map_err(failure)?;
    let stat = fstat(&fd).map_err(failure)?;
    let directory = directory.to_owned();
    let owner = stat.st_uid;
    if !is_trusted(owner) {
        return Err(DirectoryError::Foreign { directory, owner });
    }
    if stat.st_mode & OTHERS_WRITE != 0 && stat.st_mode & STICKY == 0 {
        return Err(DirectoryError::Exposed(directory));
    }
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
    if let Some(group) = access.group {
        let group = Some(Gid::from_raw(group));
        chownat(&file, "", None, group, AtFlags::EMPTY_PATH).map_err(failure)?;
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
                    group: None,
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
        };
        let (_stream, at) = listen(&path, &shared).unwrap();
        assert_eq!(fs::metadata(at.as_path()).unwrap().gid(), own);
        assert_eq!(mode(&path), 0o660);
    }

    #[test]
    fn a_directory_that_others_may_write_to_must_be_sticky() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let set = |mode| fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        for mode in [0o777, 0o775, 0o770, 0o702] {
            set(mode);
            let error = listen(&path, &Access::default()).unwrap_err();
            assert!(matches!(error, Error::Directory { .. }), "{error}");
            let (error, dir) = (error.to_string(), dir.path().display().to_string());
            assert!(error.contains("directory of your own"), "{error}");
            assert!(error.contains(&dir), "{error}");
            assert!(!path.exists());
        }
        for mode in [0o1777, 0o1770, 0o755, 0o700] {
            set(mode);
            listen(&path, &Access::default()).unwrap();
            datagram(&path, &Access::default()).unwrap();
        }
    }

    /// This test must run as root, or by tools/testbed/enter, because it changes the owner of
    /// files.
    #[test]
    fn a_directory_must_belong_to_root_or_to_the_caller() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        for mode in [0o755, 0o1777] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            std::os::unix::fs::chown(dir.path(), Some(1), None).unwrap();
            let error = datagram(&path, &Access::default()).unwrap_err();
            assert!(error.to_string().contains("belongs to user 1"), "{error}");
            std::os::unix::fs::chown(dir.path(), Some(0), None).unwrap();
            datagram(&path, &Access::default()).unwrap();
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
            let directory = socket_directory(&at("link")).unwrap();
            let access = Access {
                mode: 0o666,
                group: Some(rustix::process::getgid().as_raw()),
            };
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
}
