// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `on N COMMAND` in a guest: runs a command in another guest.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;

use anyhow::{bail, Context, Result};
use guest::feed::{feed, has_input};
use guest::proto::{Exec, Frame, Kind, User};
use guest::setup::Setup;
use guest::SETUP;

use crate::agent::SOCKET;
use crate::hosts::{find, hosts};

/// The message about wrong arguments.
const USAGE: &str = "usage: on [-n] VM COMMAND [ARGUMENT...]
Runs a command on another VM. Standard input, output, error and the status are the command's own.
  VM  its number; or a name or address of it, as in /etc/hosts, and then a shell there runs the
      words, as ssh does
  -n  no standard input, this one's is left unread
`on 0 daemon kill VM` kills the daemon that has a VM's device.";

/// Runs the command of the arguments, and returns its status.
pub fn main(words: &[String]) -> Result<u8> {
    let (input, words) = match words {
        [first, rest @ ..] if first == "-n" || first == "--no-input" => (false, rest),
        _ => (true, words),
    };
    let [vm, command @ ..] = words else {
        bail!("{USAGE}");
    };
    if command.is_empty() {
        bail!("{USAGE}");
    }
    if let Ok(number) = vm.parse() {
        return run(number, command.to_vec(), input);
    }
    let setup = fs::read_to_string(SETUP).context("`on` works in a guest")?;
    let setup: Setup = serde_json::from_str(&setup)?;
    let Some(number) = find(&hosts(setup.vms, setup.ports)?, vm) else {
        bail!("no VM has the name {vm}: see /etc/hosts\n{USAGE}");
    };
    let words = ["sh", "-c", &command.join(" ")].map(str::to_owned);
    run(number, words.to_vec(), input)
}

/// Runs a command in guest `vm` and returns its status. If `input`, the command receives this
/// process's standard input, otherwise an empty input.
fn run(vm: usize, argv: Vec<String>, input: bool) -> Result<u8> {
    let mut agent = UnixStream::connect(SOCKET)
        .with_context(|| format!("no agent at {SOCKET}: `on` works in a guest"))?;
    let cwd = env::current_dir()
        .map(|dir| dir.to_string_lossy().into_owned())
        .unwrap_or_default();
    let text = |word: std::ffi::OsString| word.to_string_lossy().into_owned();
    let exec = Exec {
        vm,
        argv,
        cwd,
        env: env::vars_os()
            .map(|(name, value)| (text(name), text(value)))
            .collect(),
        user: Some(User::own()?),
        terminal: None,
    };
    Frame::exec(0, &exec).write(&mut agent)?;

    let mut sender = agent.try_clone()?;
    let (taken, lengths) = mpsc::channel();
    let mut send = move |bytes: &[u8]| Frame::new(Kind::Stdin, 0, bytes).write(&mut sender).is_ok();
    if input && has_input() {
        // The thread is never joined, since its read may never return.
        thread::spawn(move || feed(send, &mut io::stdin(), &lengths));
    } else {
        send(&[]);
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
                // Once the input has ended, its thread no longer receives these numbers.
                let _ = taken.send(frame.number() as usize);
            }
            Kind::Exit => return Ok(frame.status()),
            _ => {}
        }
    }
}
