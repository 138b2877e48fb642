// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A PCI function for targets: a device that answers each request, and a model of the function's
//! registers.

mod bench;
mod common;
mod config;
mod device;
pub mod driver;
mod model;

pub use bench::{Bench, Step};
pub use common::Task;
pub use device::QUEUES;
pub use model::{Function, Raised, BARS, NOTIFY, VIRTIO};

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{eventfd, EventfdFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// One eventfd for each interrupt vector of the function.
pub fn eventfds() -> [OwnedFd; QUEUES.len() + 1] {
    let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
    [(); QUEUES.len() + 1].map(|()| eventfd(0, flags).expect("eventfd"))
}

/// Sends a vfio-user message with these flags.
pub fn send(stream: &UnixStream, command: u16, flags: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
    let size = 16 + payload.len() as u32;
    let mut message = vec![0; 16];
    message[2..4].copy_from_slice(&command.to_ne_bytes());
    message[4..8].copy_from_slice(&size.to_ne_bytes());
    message[8..12].copy_from_slice(&flags.to_ne_bytes());
    message.extend_from_slice(payload);
    send_bytes(stream, &message, fds);
}

/// Sends bytes with descriptors.
pub fn send_bytes(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let flags = SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, flags);
    assert_eq!(sent, Ok(bytes.len()), "the socket takes it");
}
