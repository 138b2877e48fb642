// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The remote ends of links. A remote end can be slow, disappear and come back.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;

/// Length of the receive buffer in bytes: more than the longest valid frame, so that a frame that
/// is too long is noticed.
const LONGEST: usize = 16 << 10;

/// Number of bytes before each frame on a stream: the length of the frame.
const LENGTH: usize = 4;

enum Socket {
    Stream(UnixStream),
    Unix(UnixDatagram),
    Udp(UdpSocket),
}

enum Place {
    /// QEMU's end of a network interface, which connects to the switch.
    Stream {
        switch: PathBuf,
    },
    Unix {
        ours: PathBuf,
        switch: PathBuf,
    },
    Udp {
        ours: SocketAddr,
        switch: SocketAddr,
    },
}

/// The far end of a link.
pub struct Far {
    /// The open socket. `None` while the far end is closed.
    socket: Option<Socket>,
    place: Place,
    /// Whether the far end reads frames.
    pub reads: bool,
    buffer: Vec<u8>,
    /// Received bytes of a stream that were not taken yet.
    arrived: Vec<u8>,
    /// Bytes for a stream that had no room yet.
    rest: Vec<u8>,
}

impl Far {
    /// A connection to the switch's socket at this path. It is opened later.
    pub fn stream(switch: PathBuf) -> Self {
        Self::new(Place::Stream { switch })
    }

    /// A Unix socket at the path `ours`, whose peer is at the path `switch`.
    pub fn unix(ours: PathBuf, switch: PathBuf) -> Self {
        Self::new(Place::Unix { ours, switch })
    }

    /// A UDP socket at the address `ours`, whose peer is at the address `switch`.
    pub fn udp(ours: SocketAddr, switch: SocketAddr) -> Self {
        Self::new(Place::Udp { ours, switch })
    }

    fn new(place: Place) -> Self {
        let mut far = Self {
            socket: None,
            place,
            reads: true,
            buffer: vec![0; LONGEST],
            arrived: Vec::new(),
            rest: Vec::new(),
        };
        far.open();
        far
    }

    /// Opens the socket again. A Unix socket is replaced, even if the old one is still open. A
    /// stream is connected anew.
    pub fn open(&mut self) {
        self.arrived.clear();
        self.rest.clear();
        let opened = match &self.place {
            Place::Stream { switch } => {
                // Before the switch starts, nobody listens.
                let stream = UnixStream::connect(switch).ok();
                stream.map(|stream| {
                    stream.set_nonblocking(true).expect("a socket");
                    Socket::Stream(stream)
                })
            }
            Place::Unix { ours, .. } => {
                let _ = fs::remove_file(ours);
                let socket = UnixDatagram::bind(ours).expect("a socket of its own directory");
                socket.set_nonblocking(true).expect("a socket");
                Some(Socket::Unix(socket))
            }
            Place::Udp { ours, switch } => {
                self.socket = None;
                // Another process may have taken the address.
                let socket = UdpSocket::bind(ours).ok();
                socket.map(|socket| {
                    socket.set_nonblocking(true).expect("a socket");
                    let _ = socket.connect(switch);
                    Socket::Udp(socket)
                })
            }
        };
        self.socket = opened;
    }

    /// Closes the socket. A Unix socket's path remains, as after the process of the remote end was
    /// killed.
    pub fn close(&mut self) {
        self.socket = None;
    }

    /// Connects to the switch, like another switch would. This socket then refuses datagrams of
    /// other senders.
    pub fn connect(&self) {
        if let (Some(Socket::Unix(socket)), Place::Unix { switch, .. }) =
            (&self.socket, &self.place)
        {
            let _ = socket.connect(switch);
        }
    }

    /// Shuts down reading: the socket stays open, but accepts no datagrams.
    pub fn deafen(&self) {
        let _ = match &self.socket {
            Some(Socket::Unix(socket)) => socket.shutdown(Shutdown::Read),
            Some(Socket::Stream(stream)) => stream.shutdown(Shutdown::Read),
            Some(Socket::Udp(_)) | None => Ok(()),
        };
    }

    /// Sends a frame to the switch. Fails if the switch's socket is full.
    pub fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        if matches!(self.socket, Some(Socket::Stream(_))) {
            self.write_rest()?;
            self.rest.extend((frame.len() as u32).to_be_bytes());
            self.rest.extend(frame);
            // Bytes without room are sent before the next frame.
            return self.write_rest().or_else(is_full);
        }
        let sent = match (&self.socket, &self.place) {
            (Some(Socket::Unix(socket)), Place::Unix { switch, .. }) => {
                socket.send_to(frame, switch)
            }
            (Some(Socket::Udp(socket)), _) => socket.send(frame),
            _ => Err(io::ErrorKind::NotConnected.into()),
        };
        sent.map(drop)
    }

    /// Sends a malformed length, if the far end is a stream.
    pub fn send_malformed(&mut self) {
        self.rest.extend([0; LENGTH]);
        let _ = self.write_rest();
    }

    /// Writes bytes that had no room. Fails if some still have none.
    fn write_rest(&mut self) -> io::Result<()> {
        let Some(Socket::Stream(stream)) = &mut self.socket else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        while !self.rest.is_empty() {
            let written = stream.write(&self.rest)?;
            self.rest.drain(..written);
        }
        Ok(())
    }

    /// Takes the next frame of a stream.
    fn take(&mut self) -> Option<&[u8]> {
        if let Some(Socket::Stream(stream)) = &mut self.socket {
            while let Ok(len @ 1..) = stream.read(&mut self.buffer) {
                self.arrived.extend(&self.buffer[..len]);
            }
        }
        let length = *self.arrived.first_chunk::<LENGTH>()?;
        let len = u32::from_be_bytes(length) as usize;
        let frame = self.arrived.get(LENGTH..)?.get(..len)?;
        self.buffer[..len].copy_from_slice(frame);
        self.arrived.drain(..LENGTH + len);
        Some(&self.buffer[..len])
    }

    /// Takes the next received frame. Skips greetings and batches of switches, whose source address
    /// is zero.
    pub fn receive(&mut self) -> Option<&[u8]> {
        if matches!(self.place, Place::Stream { .. }) {
            return self.take();
        }
        let into = &mut self.buffer;
        // The first error may be a late error of an earlier send, so the read is retried once.
        let mut errors = 0;
        while errors < 2 {
            let received = match &self.socket {
                Some(Socket::Unix(socket)) => socket.recv(into),
                Some(Socket::Udp(socket)) => socket.recv(into),
                Some(Socket::Stream(_)) | None => return None,
            };
            match received {
                // After `deafen` a read returns 0 bytes.
                Ok(0) => return None,
                Ok(len) if into[..len].get(6..12) == Some(&[0; 6]) => {}
                Ok(len) => return Some(&self.buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => errors += 1,
            }
        }
        None
    }
}

/// Ignores that a stream has no room.
fn is_full(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::WouldBlock => Ok(()),
        _ => Err(error),
    }
}
