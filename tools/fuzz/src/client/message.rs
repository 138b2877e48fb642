// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Limits of the server's input, and replies as the model expects them.

use testkit::vfio::message::{Header, ERROR_REPLY, HEADER_LEN, REPLY};

/// Longest message that the server accepts, in bytes.
pub const MAX_MESSAGE: usize = 0x1_0100;
/// Maximum number of descriptors in one message.
pub const MAX_FDS: usize = 16;
/// Longest register access in bytes.
pub const MAX_TRANSFER: u32 = 0x1000;

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
                flags: if body.is_ok() { REPLY } else { ERROR_REPLY },
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
