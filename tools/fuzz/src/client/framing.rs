// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A model of the stream: writes with descriptors in, messages with descriptors out.
//!
//! A read of the socket ends behind a write that brings descriptors. A message owns the descriptors
//! that came last in reads that ended within it.

use std::collections::VecDeque;

use super::message::{Header, HEADER_LEN, MAX_FDS, MAX_MESSAGE};
use super::things::Thing;

/// A write of the client.
#[derive(Clone, Debug)]
pub struct Write {
    pub bytes: Vec<u8>,
    pub fds: Vec<Thing>,
}

/// A message.
#[derive(Clone, Debug)]
pub struct Message {
    pub header: Header,
    pub payload: Vec<u8>,
    pub fds: Vec<Thing>,
}

/// The client broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// Bytes that the server has read, and those that it has not.
#[derive(Clone, Debug, Default)]
pub struct Framing {
    writes: VecDeque<Write>,
    buffer: Vec<u8>,
    /// Descriptors, and the length of the buffer when they came.
    waiting: VecDeque<(usize, Vec<Thing>)>,
}

impl Framing {
    /// The client writes.
    pub fn write(&mut self, write: Write) {
        self.writes.push_back(write);
    }

    /// Bytes and writes that are not read yet.
    pub fn unread(&self) -> (usize, usize) {
        let bytes = self.writes.iter().map(|write| write.bytes.len()).sum();
        (bytes, self.writes.len())
    }

    /// The server reads once. Returns whether there was anything.
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

    /// The next message that was read to its end.
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

    /// Descriptors that wait for their message.
    pub fn waiting(&self) -> impl Iterator<Item = Thing> + '_ {
        self.waiting.iter().flat_map(|(_, fds)| fds).copied()
    }
}
