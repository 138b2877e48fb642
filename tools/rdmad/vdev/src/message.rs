// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Messages of the vfio-user protocol, version 0.1 (QEMU, docs/interop/vfio-user). Integers are in
//! host order.

/// Length of a message's header.
pub(crate) const HEADER_LEN: usize = 16;
/// Longest message that is taken, header included.
pub(crate) const MAX_MESSAGE: usize = 0x1_0000 + 0x100;
/// Longest register access, as told to the client.
pub(crate) const MAX_TRANSFER: u32 = 0x1_0000;
/// Most file descriptors in one message, as told to the client.
pub const MAX_FDS: usize = 16;

const FLAG_TYPE: u32 = 0xf;
const TYPE_COMMAND: u32 = 0;
const FLAG_REPLY: u32 = 1;
const FLAG_NO_REPLY: u32 = 1 << 4;
const FLAG_ERROR: u32 = 1 << 5;

/// Header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) id: u16,
    pub(crate) command: u16,
    /// Length of the whole message.
    pub(crate) size: u32,
    flags: u32,
}

impl Header {
    pub(crate) fn decode(bytes: &[u8; HEADER_LEN]) -> Self {
        let [i0, i1, c0, c1, s0, s1, s2, s3, f0, f1, f2, f3, ..] = *bytes;
        Self {
            id: u16::from_ne_bytes([i0, i1]),
            command: u16::from_ne_bytes([c0, c1]),
            size: u32::from_ne_bytes([s0, s1, s2, s3]),
            flags: u32::from_ne_bytes([f0, f1, f2, f3]),
        }
    }

    pub(crate) fn is_command(&self) -> bool {
        self.flags & FLAG_TYPE == TYPE_COMMAND
    }

    pub(crate) fn wants_reply(&self) -> bool {
        self.flags & FLAG_NO_REPLY == 0
    }

    /// Starts a reply to this message in `out`; [`finish`] completes it.
    pub(crate) fn begin_reply(&self, out: &mut Vec<u8>) -> ReplyStart {
        let start = ReplyStart(out.len());
        out.extend_from_slice(&self.id.to_ne_bytes());
        out.extend_from_slice(&self.command.to_ne_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&FLAG_REPLY.to_ne_bytes());
        out.extend_from_slice(&[0; 4]);
        start
    }
}

/// Where a reply starts in the output.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct ReplyStart(usize);

/// Takes back a reply that is not to be sent.
pub(crate) fn discard(out: &mut Vec<u8>, start: ReplyStart) {
    out.truncate(start.0);
}

/// Completes a reply whose payload has been appended.
pub(crate) fn finish(out: &mut [u8], start: ReplyStart) {
    // Replies are as bounded as messages are.
    let size = (out.len() - start.0) as u32;
    out[start.0 + 4..start.0 + 8].copy_from_slice(&size.to_ne_bytes());
}

/// Makes a reply an error without payload.
pub(crate) fn finish_error(out: &mut Vec<u8>, start: ReplyStart, errno: i32) {
    out.truncate(start.0 + HEADER_LEN);
    out[start.0 + 8..start.0 + 12].copy_from_slice(&(FLAG_REPLY | FLAG_ERROR).to_ne_bytes());
    // Linux error numbers are positive.
    out[start.0 + 12..start.0 + 16].copy_from_slice(&errno.unsigned_abs().to_ne_bytes());
    finish(out, start);
}

/// Reads a payload field by field. Missing bytes make [`Truncated`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload<'a>(pub(crate) &'a [u8]);

/// A payload shorter than its command's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Truncated;

impl<'a> Payload<'a> {
    pub(crate) fn u16(&mut self) -> Result<u16, Truncated> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Truncated> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Truncated> {
        self.array().map(u64::from_ne_bytes)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], Truncated> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Truncated)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or(Truncated)?;
        self.0 = rest;
        Ok(*bytes)
    }
}
