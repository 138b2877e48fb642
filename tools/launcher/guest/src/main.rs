// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The test bed's program in a guest, linked statically so that it runs in any root.
//!
//! As process 1 it mounts the root and starts the agent. Called as `on`, it runs a command in
//! another guest.
#![forbid(unsafe_code)]

mod agent;
mod disk;
mod hosts;
mod init;
mod marks;
mod messages;
mod modules;
mod netlink;
mod on;
mod port;
mod ports;
mod restored;
mod spawn;
mod tools;
mod up;

use std::env;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{bail, Context, Result};
use guest::NAME;
use rustix::process::{getpid, ioctl_tiocsctty, setsid};
use rustix::stdio::stdin;

/// The status of `on` if it can't reach the other guest's agent, or its arguments are wrong.
const FAILED: u8 = 125;

fn main() -> ExitCode {
    let mut words: Vec<String> = env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let called = words.first().cloned().unwrap_or_default();
    let name = Path::new(&called).file_name().unwrap_or_default();
    let name = name.to_string_lossy().into_owned();
    words.drain(..1.min(words.len()));
    if name == "init" && getpid().is_init() {
        init::run();
    }
    let result = match name.as_str() {
        "on" => on::main(&words),
        "guest" => command(&words),
        _ => tools::run(&name, &words),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

fn command(words: &[String]) -> Result<u8> {
    match words {
        [word] if word == "agent" => agent::run().map(|()| 0),
        [word] if word == "up" => up::run().map(|()| 0),
        [word] if word == "dmesg" => messages::show().map(|()| 0),
        [word, program, arguments @ ..] if word == "terminal" => {
            // Job control and Ctrl-C need a session with this controlling terminal.
            setsid()?;
            ioctl_tiocsctty(stdin()).context("standard input is not a terminal")?;
            let error = Command::new(program).args(arguments).exec();
            let path = env::var_os("PATH");
            let (status, message) = spawn::cannot_run(program, path.as_deref(), error);
            eprintln!("{NAME}: {message}");
            Ok(status)
        }
        _ => bail!("this program is started by the host"),
    }
}
