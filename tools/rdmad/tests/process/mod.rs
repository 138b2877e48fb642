// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The daemon as a child process of a test.
// Each test program uses a part of this module.
#![allow(dead_code)]

use std::io::BufRead;
use std::io::BufReader;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;

/// A daemon. Dropping it ends the process.
pub struct Daemon(pub Child);

impl Daemon {
    /// Starts a daemon and waits until it is [ready](ready).
    pub fn start(command: Command) -> Self {
        Self(ready(command))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a daemon whose `--ready-fd` is its standard output, and waits until it is ready.
pub fn ready(mut command: Command) -> Child {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    child
}
