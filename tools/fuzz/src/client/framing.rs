// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A model of the stream: it turns writes with descriptors into messages with descriptors.
//!
//! A read of the socket ends after a write that carries descriptors. The descriptors belong to the
//! message in which this read ended. If several reads with descriptors ended in a message, the
//! message gets only the descriptors of the last one.

use std::collections::VecDeque;

use testkit::vfio::message::{Header, HEADER_LEN};

use super::message::{MAX_FDS, MAX_MESSAGE};
use super::things::Thing;

/// A write of the client.
#[derive(Clone, Debug)]
pub struct Write {
    pub bytes: Vec<u8>,
    pub fds: Vec<Thing>,
}

/// A complete message.
#[derive(Clone, Debug)]
pub struct Message {
    pub header: Header,
    pub payload: Vec<u8>,
    pub fds: Vec<Thing>,
}

/// The error that the client broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The state of the stream: writes that the server has yet to read, and bytes that it has read and
/// not handled.
#[derive(Clone, Debug, Default)]
pub struct Framing {
    writes: VecDeque<Write>,
    buffer: Vec<u8>,
    /// Received descriptors, each set with the length of `buffer` after the read that received it.
    waiting: VecDeque<(usize, Vec<Thing>)>,
}

impl Framing {
    /// Adds a write of the client.
    pub fn write(&mut self, write: Write) {
        self.writes.push_back(write);
    }

    /// Number of bytes and of writes that the server has yet to read.
    pub fn unread(&self) -> (usize, usize) {
        let bytes = self.writes.iter().map(|write| write.bytes.len()).sum();
        (bytes, self.writes.len())
    }

    /// Models one read of the server. Returns whether there was any input.
    pub fn read(&mut self) -> Result<bool, Broken> {
        let before = self.buffer.len();
        while let Some(write) = self.writes.front_mut() {
            let room = MAX_MESSAGE - self.buffer.len();
            if room == 0 {
                break;
            }
            let len = write.bytes.len().min(room);
            self.buffer.extend(write.bytes.drain(..len));
            let fds = std::mem::take(&mut write.fds);
            if write.bytes.is_empty() {
                self.writes.pop_front();
            }
            if fds.len() > MAX_FDS {
                return Err(Broken);
            }
            if !fds.is_empty() {
                if self.waiting.len() > 1 {
                    self.waiting.pop_front();
                }
                self.waiting.push_back((self.buffer.len(), fds));
                break;
            }
        }
        Ok(self.buffer.len() > before)
    }

    /// The next complete message, if there is one.
    pub fn next(&mut self) -> Result<Option<Message>, Broken> {
        let Some(header) = self.buffer.first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let header = Header::decode(header);
        let len = header.size as usize;
        if !(HEADER_LEN..=MAX_MESSAGE).contains(&len) {
            return Err(Broken);
        }
        if self.buffer.len() < len {
            return Ok(None);
        }
        let payload = self.buffer[HEADER_LEN..len].to_vec();
        self.buffer.drain(..len);
        let mut fds = Vec::new();
        while self.waiting.front().is_some_and(|(end, _)| *end <= len) {
            fds = self
                .waiting
                .pop_front()
                .map(|(_, fds)| fds)
                .unwrap_or_default();
        }
        self.waiting.iter_mut().for_each(|(end, _)| *end -= len);
        Ok(Some(Message {
            header,
            payload,
            fds,
        }))
    }

    /// Received descriptors that were not returned with a message yet.
    pub fn waiting(&self) -> impl Iterator<Item = Thing> + '_ {
        self.waiting.iter().flat_map(|(_, fds)| fds).copied()
    }
}
