// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `on N COMMAND` in a guest: runs a command in another one.

use std::env;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use anyhow::{Context, Result};

use crate::agent::SOCKET;
use crate::proto::{Exec, Frame, Kind, CHUNK};

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
    if input {
        thread::spawn(move || {
            let mut chunk = vec![0; CHUNK];
            loop {
                let length = io::stdin().read(&mut chunk).unwrap_or(0);
                let frame = Frame::new(Kind::Stdin, 0, &chunk[..length]);
                if frame.write(&mut sender).is_err() || length == 0 {
                    break;
                }
            }
        });
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
            Kind::Exit => return Ok(frame.status()),
            _ => {}
        }
    }
}
