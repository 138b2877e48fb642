// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Frames between the host and the agents in the guests, and between an agent and `on`.
//!
//! A frame consists of the payload's length, the kind, the stream's number, and the payload. A
//! stream is one command: it begins with [`Kind::Exec`] and ends with [`Kind::Exit`]. Both ends of
//! a link open streams: the host uses even numbers, an agent odd ones.

use std::io::{self, Read, Write};

use rustix::process::{getegid, geteuid, getgroups};
use serde::{Deserialize, Serialize};

/// Maximum length of an accepted payload, in bytes. Limits the memory that a faulty peer can use
/// up.
const MAX_PAYLOAD: usize = 1 << 20;
/// Maximum number of bytes that are read from a pipe at a time, and thus in a frame of input or
/// output.
pub const CHUNK: usize = 16 << 10;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The agent is up, or a guest without a description waits for one. Stream 0, no payload.
    Hello = 1,
    /// Runs a command; the payload is an [`Exec`] as JSON.
    Exec,
    /// Bytes for the command's standard input. An empty payload ends the input.
    Stdin,
    /// Bytes of the command's standard output.
    Stdout,
    /// Bytes of the command's standard error.
    Stderr,
    /// The command has ended. Payload: its status, one byte, as in a shell's `$?`.
    Exit,
    /// Kills the command. No payload.
    Kill,
    /// Ends the guest. Stream 0, no payload.
    PowerOff,
    /// The command has read bytes of its standard input. Payload: their number, an le32.
    Taken,
    /// Sends the command a signal. Payload: the signal's number, an le32.
    Signal,
    /// Sets the size of the command's terminal. Payload: rows and columns, an le16 each.
    Resize,
    /// The description of a restored guest. Stream 0; the payload is a
    /// [`Resumption`](crate::setup::Resumption) as JSON.
    Setup,
}

impl Kind {
    const ALL: [Self; 12] = [
        Self::Hello,
        Self::Exec,
        Self::Stdin,
        Self::Stdout,
        Self::Stderr,
        Self::Exit,
        Self::Kill,
        Self::PowerOff,
        Self::Taken,
        Self::Signal,
        Self::Resize,
        Self::Setup,
    ];

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }
}

/// A command to run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Exec {
    /// The number of the guest that is to run the command, from 1. Agents also send requests to the
    /// host, whose number is 0.
    pub vm: usize,
    /// The command and its arguments. The command is found in the guest's PATH.
    pub argv: Vec<String>,
    /// The working directory. If the guest has no such directory, the agent's is used.
    pub cwd: String,
    /// Environment variables. If `user` is set, the command has only these variables; otherwise
    /// they are added to the agent's environment.
    pub env: Vec<(String, String)>,
    /// The user that runs the command; `None` for root.
    pub user: Option<User>,
    /// Rows and columns of the command's terminal, or `None` for pipes.
    pub terminal: Option<(u16, u16)>,
}

/// A user, as the kernel knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl User {
    /// The user of this process.
    pub fn own() -> io::Result<Self> {
        Ok(Self {
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            groups: getgroups()?.iter().map(|group| group.as_raw()).collect(),
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The kind of the frame, which determines the payload.
    pub kind: Kind,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    pub fn new(kind: Kind, stream: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            kind,
            stream,
            payload: payload.into(),
        }
    }

    /// The frame that starts a command.
    pub fn exec(stream: u32, exec: &Exec) -> Self {
        // Serializing can't fail: an Exec has only strings and numbers.
        let payload = serde_json::to_vec(exec).unwrap_or_default();
        Self::new(Kind::Exec, stream, payload)
    }

    /// The frame that ends a command's stream.
    pub fn exit(stream: u32, status: u8) -> Self {
        Self::new(Kind::Exit, stream, [status])
    }

    /// The frame that reports how many bytes of input the command has read.
    pub fn taken(stream: u32, length: usize) -> Self {
        // The length fits: it is the length of a frame's payload.
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Self::new(Kind::Taken, stream, length.to_le_bytes())
    }

    /// The frame that sends a signal.
    pub fn signal(stream: u32, number: u32) -> Self {
        Self::new(Kind::Signal, stream, number.to_le_bytes())
    }

    /// The frame that sets the size of a terminal.
    pub fn resize(stream: u32, (rows, columns): (u16, u16)) -> Self {
        let payload = [rows.to_le_bytes(), columns.to_le_bytes()].concat();
        Self::new(Kind::Resize, stream, payload)
    }

    /// The number in a [`Kind::Taken`] or [`Kind::Signal`] frame.
    pub fn number(&self) -> u32 {
        let bytes = self.payload.first_chunk().copied().unwrap_or_default();
        u32::from_le_bytes(bytes)
    }

    /// Rows and columns in a [`Kind::Resize`] frame.
    pub fn size(&self) -> (u16, u16) {
        let [a, b, c, d] = self.number().to_le_bytes();
        (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]))
    }

    /// The status in a [`Kind::Exit`] frame.
    pub fn status(&self) -> u8 {
        self.payload.first().copied().unwrap_or(255)
    }

    /// Sends the frame in one write.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let length = u32::try_from(self.payload.len())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "payload too long"))?;
        let mut bytes = Vec::with_capacity(9 + self.payload.len());
        bytes.extend(length.to_le_bytes());
        bytes.push(self.kind as u8);
        bytes.extend(self.stream.to_le_bytes());
        bytes.extend(&self.payload);
        to.write_all(&bytes)?;
        to.flush()
    }

    /// Receives a frame; `UnexpectedEof` when the link has ended.
    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut head = [0; 9];
        from.read_exact(&mut head)?;
        let [l0, l1, l2, l3, code, s0, s1, s2, s3] = head;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let length = usize::try_from(length)
            .ok()
            .filter(|length| *length <= MAX_PAYLOAD)
            .ok_or_else(|| invalid(format!("frame of {length} bytes")))?;
        let kind = Kind::from_code(code).ok_or_else(|| invalid(format!("frame of kind {code}")))?;
        let mut payload = vec![0; length];
        from.read_exact(&mut payload)?;
        Ok(Self {
            kind,
            stream: u32::from_le_bytes([s0, s1, s2, s3]),
            payload,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_the_link() {
        let frames: Vec<_> = Kind::ALL
            .iter()
            .zip(1..)
            .map(|(kind, stream)| Frame::new(*kind, stream, vec![stream as u8; stream as usize]))
            .collect();
        let mut link = Vec::new();
        for frame in &frames {
            frame.write(&mut link).unwrap();
        }
        let mut link = link.as_slice();
        for frame in frames {
            assert_eq!(Frame::read(&mut link).unwrap(), frame);
        }
        let end = Frame::read(&mut link).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn nonsense_is_refused() {
        let huge = [0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0];
        assert!(Frame::read(&mut huge.as_slice()).is_err());
        for code in [0, Kind::ALL.len() as u8 + 1, 255] {
            let unknown = [0, 0, 0, 0, code, 0, 0, 0, 0];
            assert!(Frame::read(&mut unknown.as_slice()).is_err());
        }
    }

    #[test]
    fn a_command_survives_the_link() {
        let exec = Exec {
            vm: 2,
            argv: vec!["echo".into(), "a b\n\"".into()],
            cwd: "/x".into(),
            env: vec![("K".into(), "V=1".into())],
            user: Some(User::own().unwrap()),
            terminal: Some((24, 300)),
        };
        let frame = Frame::exec(3, &exec);
        let got: Exec = serde_json::from_slice(&frame.payload).unwrap();
        assert_eq!((got.vm, got.argv, got.cwd), (2, exec.argv, exec.cwd));
        assert_eq!(got.env, exec.env);
        assert_eq!((got.user, got.terminal), (exec.user, exec.terminal));
    }

    #[test]
    fn sizes_and_signals_survive_the_link() {
        assert_eq!(Frame::resize(3, (24, 300)).size(), (24, 300));
        assert_eq!(Frame::signal(3, 15).number(), 15);
        assert_eq!(Frame::taken(3, 1 << 14).number(), 1 << 14);
    }
}
