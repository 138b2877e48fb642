// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Messages of vfio-user, version 0.1. Integers are in host byte order.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// Length of a header in bytes.
pub const HEADER_LEN: usize = 16;
/// The flag of a command without a reply.
pub const NO_REPLY: u32 = 1 << 4;
/// The flags of a reply, and of a reply with an error number.
pub const REPLY: u32 = 1;
pub const ERROR_REPLY: u32 = REPLY | (1 << 5);

/// The header of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Message ID, which the client chooses.
    pub id: u16,
    /// The command's number.
    pub command: u16,
    /// Length of the whole message in bytes.
    pub size: u32,
    /// Message type in the low 4 bits, and [`NO_REPLY`].
    pub flags: u32,
}

impl Header {
    /// Encodes the header, with error number 0.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..2].copy_from_slice(&self.id.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.command.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.size.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.flags.to_ne_bytes());
        bytes
    }

    /// Decodes a header.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Self {
        let [i0, i1, c0, c1, s0, s1, s2, s3, f0, f1, f2, f3, ..] = *bytes;
        Self {
            id: u16::from_ne_bytes([i0, i1]),
            command: u16::from_ne_bytes([c0, c1]),
            size: u32::from_ne_bytes([s0, s1, s2, s3]),
            flags: u32::from_ne_bytes([f0, f1, f2, f3]),
        }
    }

    /// Whether the message is a command.
    pub fn is_command(&self) -> bool {
        self.flags & 0xf == 0
    }

    /// Whether the command gets a reply.
    pub fn wants_reply(&self) -> bool {
        self.flags & NO_REPLY == 0
    }
}

/// A message: a header, then `payload`.
pub fn message(id: u16, command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        id,
        command,
        size: (HEADER_LEN + payload.len()) as u32,
        flags,
    };
    [&header.encode(), payload].concat()
}

/// Sends bytes with descriptors.
pub fn send(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let flags = SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, flags);
    assert_eq!(sent, Ok(bytes.len()), "the socket takes it");
}

/// The payload of a register read: offset, region and length.
pub fn access(region: u32, offset: u64, len: u32) -> Vec<u8> {
    [longs(&[offset]), words(&[region, len])].concat()
}

/// The payload of a register write.
pub fn store(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    [&access(region, offset, data.len() as u32), data].concat()
}

pub fn unmap_payload(iova: u64, len: u64) -> Vec<u8> {
    [words(&[24, 0]), longs(&[iova, len])].concat()
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

pub fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
}
