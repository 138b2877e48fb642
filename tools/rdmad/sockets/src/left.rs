// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Files that the last engine has left open: sockets at their paths, to which clients can connect
//! at any time, and locked files.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use parking_lot::Mutex;
use rustix::fs::{fstat, FileType};
use rustix::net::{getsockname, sockopt, SocketAddrUnix, SocketType};

static LEFT: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// Keeps those of `files` that are sockets at paths or regular files, until they are made again by
/// [`listen`](crate::listen) or [`datagram`](crate::datagram), locked again, or
/// [closed](close_left).
pub fn inherit(files: impl IntoIterator<Item = OwnedFd>) {
    let is_kept = |file: &OwnedFd| bound(file).is_some() || inode(file).is_some();
    LEFT.lock().extend(files.into_iter().filter(is_kept));
}

/// Closes the files that were not used again.
pub fn close_left() {
    LEFT.lock().clear();
}

/// The socket of this type that was left at `path`.
pub(crate) fn take(path: &Path, socket_type: SocketType) -> Option<OwnedFd> {
    let mut left = LEFT.lock();
    let is_it = |file: &OwnedFd| {
        let is_at_path = |it: SocketAddrUnix| it.path_bytes() == Some(path.as_os_str().as_bytes());
        // The connections of a listener have its address.
        bound(file).is_some_and(is_at_path)
            && sockopt::socket_type(file) == Ok(socket_type)
            && (socket_type == SocketType::DGRAM || sockopt::socket_acceptconn(file) == Ok(true))
    };
    let at = left.iter().position(is_it)?;
    Some(left.swap_remove(at))
}

/// The regular file that was left open and is the same as `file`. It may be locked.
pub(crate) fn take_same(file: &OwnedFd) -> Option<OwnedFd> {
    let mut left = LEFT.lock();
    let wanted = inode(file)?;
    let at = left.iter().position(|file| inode(file) == Some(wanted))?;
    Some(left.swap_remove(at))
}

/// Device and number of a regular file.
fn inode(file: &OwnedFd) -> Option<(u64, u64)> {
    let stat = fstat(file).ok()?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_regular.then_some((stat.st_dev, stat.st_ino))
}

/// The address of a socket at a path.
fn bound(file: &OwnedFd) -> Option<SocketAddrUnix> {
    let address = SocketAddrUnix::try_from(getsockname(file).ok()?).ok()?;
    address.path_bytes().is_some().then_some(address)
}
