// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `on N COMMAND` in a guest: runs a command in another one.

use std::env;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use anyhow::{Context, Result};
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;

use crate::agent::SOCKET;
use crate::proto::{Exec, Frame, Kind, CHUNK};

/// Bytes of input that are on their way at most. More would pile up in the memory of the other
/// guest if its command did not read them.
const WINDOW: usize = 16 * CHUNK;

/// Runs a command in guest `vm` and returns its status. With `input` it reads this one's standard
/// input, else none.
pub fn run(vm: usize, argv: Vec<String>, input: bool) -> Result<u8> {
    let mut agent = UnixStream::connect(SOCKET)
        .with_context(|| format!("no agent at {SOCKET}: `on` works in a guest"))?;
    let cwd = env::current_dir()
        .map(|dir| dir.to_string_lossy().into_owned())
        .unwrap_or_default();
    let exec = Exec {
        vm,
        argv,
        cwd,
        env: Vec::new(),
    };
    Frame::exec(0, &exec).write(&mut agent)?;

    let mut sender = agent.try_clone()?;
    let (taken, lengths) = mpsc::channel();
    if input && has_input() {
        // Never joined: it may be in a read that nothing ends.
        thread::spawn(move || feed(&mut sender, &mut io::stdin(), &lengths));
    } else {
        Frame::new(Kind::Stdin, 0, []).write(&mut sender)?;
    }

    loop {
        let frame = Frame::read(&mut agent).context("the agent ended")?;
        match frame.kind {
            Kind::Stdout => {
                let mut out = io::stdout();
                out.write_all(&frame.payload)?;
                out.flush()?;
            }
            Kind::Stderr => io::stderr().write_all(&frame.payload)?,
            Kind::Taken => {
                // The input may have ended.
                let _ = taken.send(frame.length());
            }
            Kind::Exit => return Ok(frame.status()),
            _ => {}
        }
    }
}

/// Whether standard input may be read. In the background, a read from the terminal would stop this
/// process.
fn has_input() -> bool {
    let stdin = io::stdin();
    !stdin.is_terminal() || tcgetpgrp(&stdin).is_ok_and(|foreground| foreground == getpgrp())
}

/// Sends `input` to the command, to its end. `taken` says how much of it the command took.
fn feed(agent: &mut impl Write, input: &mut impl Read, taken: &Receiver<usize>) {
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
        let frame = Frame::new(Kind::Stdin, 0, &chunk[..length]);
        if frame.write(agent).is_err() || length == 0 {
            return;
        }
        under_way += length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_that_is_not_taken_is_not_read() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let (taken, lengths) = mpsc::channel();
        let mut input = io::repeat(7).take(3 * WINDOW as u64 + 5);
        let feeder = thread::spawn(move || feed(&mut here, &mut input, &lengths));
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
