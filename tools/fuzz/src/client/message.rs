// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Messages of vfio-user, version 0.1. Integers are in host order.

/// Bytes of a header.
pub const HEADER_LEN: usize = 16;
/// Most descriptors in one message.
pub const MAX_FDS: usize = 16;
/// Longest register access.
pub const MAX_TRANSFER: u32 = 0x1_0000;

const ERROR: u32 = 1 << 5;

/// Numbers of commands.
pub mod command {
    pub const VERSION: u16 = 1;
    pub const REGION_READ: u16 = 9;
}

/// A header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The client's number of the message.
    pub id: u16,
    /// The command's number.
    pub command: u16,
    /// Bytes of the whole message.
    pub size: u32,
    /// Type, and whether a reply is wanted.
    pub flags: u32,
}

impl Header {
    /// As bytes, which end with the error number 0.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..2].copy_from_slice(&self.id.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.command.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.size.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.flags.to_ne_bytes());
        bytes
    }
}

/// A reply that is expected.
#[derive(Clone, Debug)]
pub struct Reply {
    header: Header,
    /// Bytes behind the header, or an error number.
    body: Result<Vec<u8>, u32>,
}

impl Reply {
    /// The reply to this command.
    pub fn new(to: &Header, body: Result<Vec<u8>, u32>) -> Self {
        let len = body.as_ref().map_or(0, Vec::len);
        Self {
            header: Header {
                size: (HEADER_LEN + len) as u32,
                flags: if body.is_ok() { 1 } else { 1 | ERROR },
                ..*to
            },
            body,
        }
    }

    /// Bytes of the message.
    pub fn len(&self) -> usize {
        self.header.size as usize
    }

    /// Takes the reply off the front of `stream`, and panics if that holds another.
    pub fn take(&self, stream: &mut &[u8]) {
        let (shown, rest) = stream.split_at_checked(self.len()).unwrap_or((stream, &[]));
        *stream = rest;
        let mut expected = self.header.encode().to_vec();
        match &self.body {
            Ok(body) => expected.extend_from_slice(body),
            Err(number) => expected[12..16].copy_from_slice(&number.to_ne_bytes()),
        }
        assert_eq!(shown, expected, "reply to {:?}", self.header);
    }
}
