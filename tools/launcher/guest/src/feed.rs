// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Sends a program's standard input to a command in a guest.

use std::io::{self, IsTerminal, Read};
use std::sync::mpsc::Receiver;

use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;

use crate::proto::CHUNK;

/// Maximum number of input bytes in flight. More bytes would accumulate in the guest's memory if
/// the command did not read its input.
const WINDOW: usize = 16 * CHUNK;

/// Whether standard input may be read. In the background, a read from the terminal would stop this
/// process.
pub fn has_input() -> bool {
    let stdin = io::stdin();
    !stdin.is_terminal() || tcgetpgrp(&stdin).is_ok_and(|foreground| foreground == getpgrp())
}

/// Sends `input` up to its end, then a message without bytes. `send` returns false if the receiver
/// is gone. `taken` receives the numbers of bytes that the command has read.
pub fn feed(mut send: impl FnMut(&[u8]) -> bool, input: &mut impl Read, taken: &Receiver<usize>) {
    let mut chunk = vec![0; CHUNK];
    let mut under_way = 0;
    loop {
        while under_way > WINDOW - CHUNK {
            match taken.recv() {
                Ok(length) => under_way -= length.min(under_way),
                Err(_) => return,
            }
        }
        let length = match input.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result.unwrap_or(0),
        };
        if !send(&chunk[..length]) || length == 0 {
            return;
        }
        under_way += length;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::proto::{Frame, Kind};

    #[test]
    fn input_that_is_not_taken_is_not_read() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let (taken, lengths) = mpsc::channel();
        let mut input = io::repeat(7).take(3 * WINDOW as u64 + 5);
        let send = move |bytes: &[u8]| Frame::new(Kind::Stdin, 0, bytes).write(&mut here).is_ok();
        let feeder = thread::spawn(move || feed(send, &mut input, &lengths));
        let mut under_way = 0;
        let mut total = 0;
        loop {
            while under_way < WINDOW {
                let frame = Frame::read(&mut there).unwrap();
                assert_eq!(frame.kind, Kind::Stdin);
                if frame.payload.is_empty() {
                    feeder.join().unwrap();
                    assert_eq!(total, 3 * WINDOW + 5);
                    return;
                }
                under_way += frame.payload.len();
                total += frame.payload.len();
            }
            assert_eq!(under_way, WINDOW);
            there.set_nonblocking(true).unwrap();
            let more = Frame::read(&mut there).unwrap_err();
            assert_eq!(more.kind(), io::ErrorKind::WouldBlock);
            there.set_nonblocking(false).unwrap();
            taken.send(under_way).unwrap();
            under_way = 0;
        }
    }
}
