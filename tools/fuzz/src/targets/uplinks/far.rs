// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Far ends of links, which are slow, end and come back.

use std::fs;
use std::io;
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

/// More than the longest frame, so that one that is too long is seen whole.
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
    /// None if it has ended.
    socket: Option<Socket>,
    place: Place,
    /// Whether it takes what comes.
    pub reads: bool,
    buffer: Vec<u8>,
}

impl Far {
    /// A Unix socket at a path, whose peer is at another.
    pub fn unix(ours: PathBuf, switch: PathBuf) -> Self {
        Self::new(Place::Unix { ours, switch })
    }

    /// A UDP socket and its peer's address.
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

    /// Comes back, if it had ended. A Unix socket does so while the former may still be alive.
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

    /// Ends. The path stays, as it does when a process is killed.
    pub fn close(&mut self) {
        self.socket = None;
    }

    /// Takes datagrams of the switch alone from now on, as another switch does.
    pub fn connect(&self) {
        if let (Some(Socket::Unix(socket)), Place::Unix { switch, .. }) =
            (&self.socket, &self.place)
        {
            let _ = socket.connect(switch);
        }
    }

    /// Stays, but takes nothing more.
    pub fn deafen(&self) {
        if let Some(Socket::Unix(socket)) = &self.socket {
            let _ = socket.shutdown(Shutdown::Read);
        }
    }

    /// Sends a frame to the switch, which may be full.
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

    /// The next frame that came.
    pub fn receive(&mut self) -> Option<&[u8]> {
        let into = &mut self.buffer;
        // An error is that of a frame that was sent.
        for _ in 0..2 {
            let received = match &self.socket {
                Some(Socket::Unix(socket)) => socket.recv(into),
                Some(Socket::Udp(socket)) => socket.recv(into),
                None => return None,
            };
            match received {
                // After `deafen` there is an end of what comes.
                Ok(0) => return None,
                Ok(len) => return Some(&self.buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => {}
            }
        }
        None
    }
}
