// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Frames between the host and the agents in the guests, and between an agent and `on`.
//!
//! A frame is its payload's length, its kind, and the number of the stream it belongs to, then the
//! payload. A stream is one command: it begins with [`Kind::Exec`] and ends with [`Kind::Exit`].
//! Both ends of a link open streams; the host takes even numbers, an agent odd ones.

use std::io::{self, Read, Write};

use rustix::process::{getegid, geteuid, getgroups};
use serde::{Deserialize, Serialize};

/// Largest payload that is accepted, a bound on what a confused peer can make this end allocate.
const MAX_PAYLOAD: usize = 1 << 20;
/// Bytes that are read from a pipe at a time: a virtio-serial buffer holds no more than a page or
/// so.
pub const CHUNK: usize = 16 << 10;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The agent is up. Stream 0, no payload.
    Hello = 1,
    /// Runs a command; the payload is an [`Exec`] as JSON.
    Exec,
    /// Bytes for the command's standard input; none means that it ends.
    Stdin,
    /// Bytes of the command's standard output.
    Stdout,
    /// Bytes of its standard error.
    Stderr,
    /// It ended: one status byte, as a shell has it in `$?`.
    Exit,
    /// Ends the command. No payload.
    Kill,
    /// Ends the guest. Stream 0, no payload.
    PowerOff,
    /// The command took so many bytes of its standard input: an le32.
    Taken,
    /// Sends the command a signal: its number, an le32.
    Signal,
    /// The size of the command's terminal: rows and columns, an le16 each.
    Resize,
}

impl Kind {
    const ALL: [Self; 11] = [
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
    ];

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == code)
    }
}

/// A command to run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Exec {
    /// The guest that runs it, from 1; what an agent asks of the host carries another's number.
    pub vm: usize,
    /// The command and its arguments, found in the guest's PATH.
    pub argv: Vec<String>,
    /// Where it runs; the agent's own directory if the guest has none of that name.
    pub cwd: String,
    /// Added to the agent's environment, or all of it if there is a user.
    pub env: Vec<(String, String)>,
    /// The user that runs it; root if there is none.
    pub user: Option<User>,
    /// Rows and columns of a terminal that it is to have.
    pub terminal: Option<(u16, u16)>,
}

/// A user, as the kernel knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The user's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
    /// Further groups.
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

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its kind.
    pub kind: Kind,
    /// The stream that it belongs to.
    pub stream: u32,
    /// The bytes it carries.
    pub payload: Vec<u8>,
}

impl Frame {
    /// A frame with a payload.
    pub fn new(kind: Kind, stream: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            kind,
            stream,
            payload: payload.into(),
        }
    }

    /// The frame that starts a command.
    pub fn exec(stream: u32, exec: &Exec) -> Self {
        // Strings and numbers only: nothing that JSON can't hold.
        let payload = serde_json::to_vec(exec).unwrap_or_default();
        Self::new(Kind::Exec, stream, payload)
    }

    /// The frame that ends a command's stream.
    pub fn exit(stream: u32, status: u8) -> Self {
        Self::new(Kind::Exit, stream, [status])
    }

    /// The frame that says how many bytes of input were taken.
    pub fn taken(stream: u32, length: usize) -> Self {
        // A frame's payload is no longer than that.
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Self::new(Kind::Taken, stream, length.to_le_bytes())
    }

    /// The frame that sends a signal.
    pub fn signal(stream: u32, number: u32) -> Self {
        Self::new(Kind::Signal, stream, number.to_le_bytes())
    }

    /// The frame that tells the size of a terminal.
    pub fn resize(stream: u32, (rows, columns): (u16, u16)) -> Self {
        let payload = [rows.to_le_bytes(), columns.to_le_bytes()].concat();
        Self::new(Kind::Resize, stream, payload)
    }

    /// The number that a [`Kind::Taken`] or [`Kind::Signal`] frame carries.
    pub fn number(&self) -> u32 {
        let bytes = self.payload.first_chunk().copied().unwrap_or_default();
        u32::from_le_bytes(bytes)
    }

    /// Rows and columns that a [`Kind::Resize`] frame carries.
    pub fn size(&self) -> (u16, u16) {
        let [a, b, c, d] = self.number().to_le_bytes();
        (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]))
    }

    /// The status that an [`Kind::Exit`] frame carries.
    pub fn status(&self) -> u8 {
        self.payload.first().copied().unwrap_or(255)
    }

    /// Sends the frame in one write, so that frames of several threads do not mix on a locked
    /// writer.
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
