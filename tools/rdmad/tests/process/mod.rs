// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The daemon as a child process of a test.
// Each test program uses a part of this module.
#![allow(dead_code)]

use std::fs;
use std::io::BufRead;
use std::io::BufReader;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;

use rustix::process::kill_process;
use rustix::process::Pid;
use rustix::process::Signal;
use testkit::wait_until;

/// A daemon. Dropping it ends the process.
pub struct Daemon(pub Child);

impl Daemon {
    /// Starts a daemon and waits until it is [ready](ready).
    pub fn start(command: Command) -> Self {
        Self(ready(command))
    }

    /// The number of its engine's process.
    pub fn engine(&self) -> u32 {
        engine(&self.0)
    }

    /// The number of its engine's process, unless the engine has died.
    pub fn try_engine(&self) -> Option<u32> {
        child_of(self.0.id())
    }

    /// Stops the engine until it is killed.
    pub fn stop_engine(&self) {
        let engine = self.engine();
        kill_process(Pid::from_raw(engine as i32).unwrap(), Signal::STOP).unwrap();
        let is_stopped = |thread: fs::DirEntry| {
            let state = fs::read_to_string(thread.path().join("stat")).unwrap();
            state.contains(") T ")
        };
        wait_until("all threads are stopped", || {
            let mut threads = fs::read_dir(format!("/proc/{engine}/task")).unwrap();
            threads.all(|thread| is_stopped(thread.unwrap()))
        });
    }

    /// Kills the engine, and waits until the daemon has started the next one.
    pub fn kill_engine(&self) {
        let engine = self.engine();
        let number = Pid::from_raw(engine as i32).unwrap();
        kill_process(number, Signal::KILL).unwrap();
        wait_until("another engine has started", || {
            self.try_engine().is_some_and(|other| other != engine)
        });
    }

    /// Requests an upgrade, and waits until the new program has started its engine.
    pub fn upgrade(&self) {
        let engine = self.engine();
        let daemon = Pid::from_child(&self.0);
        kill_process(daemon, Signal::USR2).unwrap();
        wait_until("the new program has started an engine", || {
            self.try_engine().is_some_and(|other| other != engine)
        });
    }

    /// Kills the engine, and starts no other one until `work` is done.
    pub fn without_engine(&self, work: impl FnOnce()) {
        let number = |process: u32| Pid::from_raw(process as i32).unwrap();
        let supervisor = number(self.0.id());
        kill_process(supervisor, Signal::STOP).unwrap();
        kill_process(number(self.engine()), Signal::KILL).unwrap();
        work();
        kill_process(supervisor, Signal::CONT).unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let engine = child_of(self.0.id());
        let _ = self.0.kill();
        let _ = self.0.wait();
        // The engine is killed with the daemon, but may still end.
        if let Some(engine) = engine {
            let state = || fs::read_to_string(format!("/proc/{engine}/stat"));
            let ended = || state().map_or(true, |state| state.contains(") Z "));
            wait_until("the engine has ended", ended);
        }
    }
}

/// The number of the process of a daemon's engine.
pub fn engine(daemon: &Child) -> u32 {
    child_of(daemon.id()).expect("the daemon has an engine")
}

/// The first child of a process with one thread.
pub fn child_of(process: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
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
