// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A daemon with a control socket, and the command `ctl`.
// Each test program uses a part of this module.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{kill_process, Pid, Signal};

use crate::process::Daemon;

/// Starts a daemon with port a and the control socket `dir`/ctl.
pub fn start(dir: &Path, more: &[&str]) -> Daemon {
    let at = |name: &str| dir.join(name).display().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"));
    command
        .args(["--port", &port(dir, "a", 1), "--ctl", &at("ctl")])
        .args(["--ready-fd", "1"])
        .args(more)
        .env_remove("RUST_LOG")
        .stderr(Stdio::piped());
    Daemon::start(command)
}

pub fn port(dir: &Path, name: &str, number: u8) -> String {
    let vfio = dir.join(format!("{name}.vfio"));
    format!(
        "{name},vfio={},mac=52:54:00:09:00:{number:02x}",
        vfio.display()
    )
}

/// Runs `virtio-rdmad ctl` with this command.
pub fn ctl(dir: &Path, command: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"))
        .args(["ctl", "--socket"])
        .arg(dir.join("ctl"))
        .args(command)
        .output()
        .unwrap()
}

/// The status of the daemon whose status socket is `dir`/status.
pub fn status(dir: &Path, more: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"))
        .args(["status", "--socket"])
        .arg(dir.join("status"))
        .args(more)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must succeed, and returns its output.
pub fn done(dir: &Path, command: &[&str]) -> String {
    let output = ctl(dir, command);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail, and returns its error message.
pub fn refused(dir: &Path, command: &[&str]) -> String {
    let output = ctl(dir, command);
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Sends raw bytes to the control socket, and returns the reply.
pub fn answer(dir: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(dir.join("ctl")).unwrap();
    stream.write_all(request).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Ends a daemon and returns its log.
pub fn log(mut daemon: Daemon) -> String {
    let stderr = daemon.0.stderr.take().unwrap();
    kill_process(Pid::from_child(&daemon.0), Signal::TERM).unwrap();
    assert!(daemon.0.wait().unwrap().success());
    std::io::read_to_string(stderr).unwrap()
}
