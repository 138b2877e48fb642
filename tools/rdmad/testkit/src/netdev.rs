// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! QEMU's end of a network interface.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time limit of a wait, which only a broken switch exceeds.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to the switch. Each frame follows its length.
pub struct Netdev(UnixStream);

impl Netdev {
    /// Connects to the switch's socket.
    pub fn at(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("the switch's socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Self(stream)
    }

    pub fn send(&self, frame: &[u8]) {
        let length = (frame.len() as u32).to_be_bytes();
        self.send_raw(&[&length[..], frame].concat());
    }

    /// Sends bytes, which need not be a frame after its length.
    pub fn send_raw(&self, bytes: &[u8]) {
        (&self.0).write_all(bytes).expect("a connection");
    }

    /// Receives the next frame.
    pub fn receive(&self) -> Vec<u8> {
        let mut length = [0; 4];
        (&self.0).read_exact(&mut length).expect("a frame");
        self.receive_rest(length)
    }

    /// Like [`receive`](Self::receive), for a limited time.
    pub fn receive_within(&self, time: Duration) -> Option<Vec<u8>> {
        let mut length = [0; 4];
        self.0.set_read_timeout(Some(time)).expect("a timeout");
        let read = (&self.0).read_exact(&mut length);
        self.0.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        match read {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            read => read.expect("a frame"),
        }
        Some(self.receive_rest(length))
    }

    /// Sends a frame again and again until `to` receives it. Later frames arrive then: the switch
    /// has accepted both connections.
    pub fn meet(&self, to: &Self, frame: &[u8]) {
        const PAUSE: Duration = Duration::from_millis(100);
        let began = Instant::now();
        loop {
            self.send(frame);
            match to.receive_within(PAUSE) {
                None => assert!(began.elapsed() < PATIENCE, "the frame does not arrive"),
                Some(arrived) => return assert_eq!(arrived, frame),
            }
        }
    }

    fn receive_rest(&self, length: [u8; 4]) -> Vec<u8> {
        let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
        (&self.0).read_exact(&mut bytes).expect("a whole frame");
        bytes
    }

    /// Waits until the switch ends the connection. No frame must arrive before.
    pub fn ends(&self) {
        match (&self.0).read(&mut [0; 1]) {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("{other:?}"),
        }
    }
}

impl AsFd for Netdev {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
