// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sockets that an engine which has died has left open at their paths. Clients can connect to them
//! at any time, and the next engine goes on with them.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use parking_lot::Mutex;
use rustix::net::{getsockname, sockopt, SocketAddrUnix, SocketType};

static LEFT: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// Keeps those of `files` that are sockets at paths, until they are made again by
/// [`listen`](crate::listen) or [`datagram`](crate::datagram), or [closed](close_left).
pub fn inherit(files: impl IntoIterator<Item = OwnedFd>) {
    let sockets = files.into_iter().filter(|file| bound(file).is_some());
    LEFT.lock().extend(sockets);
}

/// Closes the sockets that were not made again.
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

/// The address of a socket at a path.
fn bound(file: &OwnedFd) -> Option<SocketAddrUnix> {
    let address = SocketAddrUnix::try_from(getsockname(file).ok()?).ok()?;
    address.path_bytes().is_some().then_some(address)
}
