// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The remote ends of links. A remote end can be slow, disappear and come back.

use std::fs;
use std::io;
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

/// Length of the receive buffer in bytes: more than the longest valid frame, so that a frame that
/// is too long is noticed.
const LONGEST: usize = 16 << 10;

enum Socket {
    Unix(UnixDatagram),
    Udp(UdpSocket),
}

enum Place {
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
}

impl Far {
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
        };
        far.open();
        far
    }

    /// Opens the socket again. A Unix socket is replaced, even if the old one is still open.
    pub fn open(&mut self) {
        let opened = match &self.place {
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
        if let Some(Socket::Unix(socket)) = &self.socket {
            let _ = socket.shutdown(Shutdown::Read);
        }
    }

    /// Sends a frame to the switch. Fails if the switch's socket is full.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        let sent = match (&self.socket, &self.place) {
            (Some(Socket::Unix(socket)), Place::Unix { switch, .. }) => {
                socket.send_to(frame, switch)
            }
            (Some(Socket::Udp(socket)), _) => socket.send(frame),
            _ => Err(io::ErrorKind::NotConnected.into()),
        };
        sent.map(drop)
    }

    /// Takes the next received frame. Skips greetings and batches of switches, whose source address
    /// is zero.
    pub fn receive(&mut self) -> Option<&[u8]> {
        let into = &mut self.buffer;
        // The first error may be a late error of an earlier send, so the read is retried once.
        let mut errors = 0;
        while errors < 2 {
            let received = match &self.socket {
                Some(Socket::Unix(socket)) => socket.recv(into),
                Some(Socket::Udp(socket)) => socket.recv(into),
                None => return None,
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
