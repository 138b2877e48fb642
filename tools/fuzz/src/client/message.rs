// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Messages of vfio-user, version 0.1. Integers are in host byte order.

/// Length of a header in bytes.
pub const HEADER_LEN: usize = 16;
/// Longest message that the server accepts, in bytes.
pub const MAX_MESSAGE: usize = 0x1_0100;
/// Maximum number of descriptors in one message.
pub const MAX_FDS: usize = 16;
/// Longest register access in bytes.
pub const MAX_TRANSFER: u32 = 0x1_0000;

/// The flag of a command without a reply.
pub const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// Numbers of commands.
pub mod command {
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const DMA_UNMAP: u16 = 3;
    pub const DEVICE_INFO: u16 = 4;
    pub const REGION_INFO: u16 = 5;
    pub const IRQ_INFO: u16 = 7;
    pub const SET_IRQS: u16 = 8;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const RESET: u16 = 13;
}

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

/// The payload of a reply.
#[derive(Clone, Debug, Default)]
pub struct Body {
    pub bytes: Vec<u8>,
    /// Index of a byte whose lowest bit the model can't predict, if there is one.
    pub either: Option<usize>,
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            either: None,
        }
    }
}

/// An expected reply.
#[derive(Clone, Debug)]
pub struct Reply {
    header: Header,
    /// The payload, or an error number.
    body: Result<Body, u32>,
}

impl Reply {
    /// The reply to the command with header `to`.
    pub fn new(to: &Header, body: Result<Body, u32>) -> Self {
        let len = body.as_ref().map_or(0, |body| body.bytes.len());
        Self {
            header: Header {
                size: (HEADER_LEN + len) as u32,
                flags: if body.is_ok() { 1 } else { 1 | ERROR },
                ..*to
            },
            body,
        }
    }

    /// Length of the message in bytes.
    pub fn len(&self) -> usize {
        self.header.size as usize
    }

    /// Removes the reply from the front of `stream`. Panics if the stream does not begin with this
    /// reply.
    pub fn take(&self, stream: &mut &[u8]) {
        let (shown, rest) = stream.split_at_checked(self.len()).unwrap_or((stream, &[]));
        *stream = rest;
        let mut shown = shown.to_vec();
        let mut expected = self.header.encode().to_vec();
        match &self.body {
            Ok(body) => {
                expected.extend_from_slice(&body.bytes);
                let at = body.either.map(|at| HEADER_LEN + at);
                if let Some(byte) = at.and_then(|at| shown.get_mut(at)) {
                    *byte &= !1;
                }
            }
            Err(number) => expected[12..16].copy_from_slice(&number.to_ne_bytes()),
        }
        assert_eq!(shown, expected, "reply to {:?}", self.header);
    }
}
