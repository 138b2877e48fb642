// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The daemon is killed under its drivers, with its supervisor, and started again by a service
//! manager that has kept its descriptors.

use std::fs;
use std::io::IoSliceMut;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::Mutex;
use std::thread;

use rustix::event::poll;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::io::fcntl_setfd;
use rustix::io::FdFlags;
use rustix::net::recvmsg;
use rustix::net::RecvAncillaryBuffer;
use rustix::net::RecvAncillaryMessage;
use rustix::net::RecvFlags;
use rustix::process::kill_process;
use rustix::process::Pid;
use rustix::process::Signal;
use tempfile::TempDir;
use testkit::wait_until;

use crate::command_of;
use crate::driver::Driver;
use crate::endpoint::Endpoint;
use crate::endpoint::PLAIN;
use crate::engines::exchange;
use crate::engines::memory;
use crate::memory::PAGE;
use crate::process::Daemon;
use crate::wire::*;
use crate::PROGRAM;

/// Numbers of descriptors of a test that no daemon uses.
const HIGH: i32 = 600;

/// The name of the manager's socket.
const NOTIFY: &str = "notify";

/// A service manager that keeps descriptors of its daemon. As systemd does, it ignores a descriptor
/// of a file that it has.
struct Manager {
    dir: TempDir,
    command: Command,
    kept: Arc<Mutex<Vec<(String, OwnedFd)>>>,
}

impl Manager {
    /// A manager of a daemon that takes this path, see [`command_of`].
    fn start(path: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let kept = Arc::new(Mutex::new(Vec::new()));
        let own = UnixDatagram::bind(dir.path().join(NOTIFY)).unwrap();
        let store = kept.clone();
        thread::spawn(move || loop {
            let (message, file) = receive(&own);
            keep(&mut store.lock().unwrap(), &message, file);
        });
        let command = command_of(Path::new(PROGRAM), dir.path(), path, &[]);
        Self { dir, command, kept }
    }

    /// The socket of a port.
    fn socket(&self, port: &str) -> PathBuf {
        self.dir.path().join(port)
    }

    /// Starts the daemon, and passes to it what the manager has kept.
    fn run(&self) -> Daemon {
        let kept = self.kept.lock().unwrap();
        let names: Vec<_> = kept.iter().map(|(name, _)| name.as_str()).collect();
        // Only those above the numbers that the shell gives them are passed.
        let passed = kept.iter().map(|(_, file)| {
            let file = fcntl_dupfd_cloexec(file, HIGH).unwrap();
            fcntl_setfd(&file, FdFlags::empty()).unwrap();
            file
        });
        let passed: Vec<_> = passed.collect();
        let moves = (3..).zip(&passed).map(|(number, file)| {
            let from = file.as_raw_fd();
            format!("exec {number}<&{from} {from}<&-\n")
        });
        let script = moves.collect::<String>() + "LISTEN_PID=$$ exec \"$0\" \"$@\"";
        let mut shell = Command::new("bash");
        shell.args(["-c", &script]).arg(self.command.get_program());
        shell.args(self.command.get_args());
        shell.env("NOTIFY_SOCKET", self.dir.path().join(NOTIFY));
        shell.env("FDSTORE", "500");
        shell.env("LISTEN_FDS", passed.len().to_string());
        shell.env("LISTEN_FDNAMES", names.join(":"));
        drop(kept);
        shell.stderr(Stdio::inherit());
        Daemon::start(shell)
    }

    /// Waits until it keeps so many descriptors.
    fn await_count(&self, count: usize) {
        wait_until(&format!("{count} descriptors"), || {
            self.names().len() == count
        });
    }

    fn names(&self) -> Vec<String> {
        let kept = self.kept.lock().unwrap();
        kept.iter().map(|(name, _)| name.clone()).collect()
    }
}

/// The next message of a daemon, and the descriptor that comes with it.
fn receive(socket: &UnixDatagram) -> (String, Option<OwnedFd>) {
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let len = recvmsg(socket, &mut buffers, &mut control, flags).unwrap();
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let file = files.flatten().next();
    let message = String::from_utf8(bytes[..len.bytes].to_vec()).unwrap();
    (message, file)
}

/// Does what a message says (sd_notify(3), sd_pid_notify_with_fds(3)).
fn keep(kept: &mut Vec<(String, OwnedFd)>, message: &str, file: Option<OwnedFd>) {
    let Some((_, name)) = message.split_once("FDNAME=") else {
        return;
    };
    match file {
        Some(file)
            if kept
                .iter()
                .all(|(_, other)| identity(other) != identity(&file)) =>
        {
            assert!(kept.iter().all(|(other, _)| other != name), "{name} twice");
            kept.push((name.to_owned(), file));
        }
        Some(_) => {}
        None => kept.retain(|(other, _)| other != name),
    }
}

/// Facts that descriptors of one open file have in common.
fn identity(file: &OwnedFd) -> Vec<String> {
    let number = file.as_raw_fd();
    let lines = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap();
    let is_fixed = |line: &&str| {
        ["flags", "ino", "eventfd-id"]
            .iter()
            .any(|it| line.starts_with(it))
    };
    lines.lines().filter(is_fixed).map(str::to_owned).collect()
}

/// The daemon is killed and started again, also after the death of an engine and after an upgrade.
#[test]
fn the_next_supervisor_serves_the_drivers() {
    for path in ["direct", "wire"] {
        let manager = Manager::start(path);
        let mut daemon = manager.run();
        let [mut a, mut b] = ["a", "b"].map(|name| Endpoint::new(&manager.socket(name), PLAIN));
        // One file of the monitor is mapped twice.
        let memory = memory();
        for at in [1 << 40, 1 << 41] {
            a.driver.map_more(at, PAGE, &memory);
        }
        exchange(&mut a, &mut b);
        // The memory of the engines and, of each client, its connection, a pipe, its memory and two
        // vectors; and the file.
        manager.await_count(1 + 2 * 6 + 1);
        for round in 0..3 {
            if round == 2 {
                daemon.upgrade();
            }
            drop(daemon);
            daemon = manager.run();
            if round == 1 {
                daemon.kill_engine();
            }
            for side in [&mut a, &mut b] {
                // abi: R-1140
                side.driver.await_failure();
            }
            manager.await_count(14);
            a.driver.unmap(1 << 40, PAGE);
            a.driver.map_more(1 << 40, PAGE, &memory);
            [a, b] = [a, b].map(|side| side.again(PLAIN));
            exchange(&mut a, &mut b);
            manager.await_count(14);
        }
    }
}

/// A client that was disconnected while the daemon was dead costs no other client a file that both
/// have: ports of one VM.
#[test]
fn a_client_that_is_gone_takes_no_file_of_others_along() {
    let manager = Manager::start("direct");
    let mut daemon = manager.run();
    let [mut a, mut b] = ["a", "b"].map(|name| Driver::new(&manager.socket(name), RING_ADDR));
    let memory = memory();
    for driver in [&mut a, &mut b] {
        driver.map_more(1 << 40, PAGE, &memory);
    }
    manager.await_count(1 + 2 * 6 + 1);
    drop(daemon);
    let is_connection = |file: &OwnedFd| {
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        path.to_string_lossy().starts_with("socket:")
    };
    // As systemd does at the end of a connection.
    drop(a);
    let mut kept = manager.kept.lock().unwrap();
    kept.retain(|(_, file)| !is_connection(file) || !is_closed(file));
    drop(kept);
    for _ in 0..2 {
        daemon = manager.run();
        b.await_failure();
        // The memory of the engines, five files of the client with its memory, and the file.
        manager.await_count(1 + 6 + 1);
        b.unmap(1 << 40, PAGE);
        b.map_more(1 << 40, PAGE, &memory);
        b.initialize();
        drop(daemon);
    }
}

/// Whether the other end of a connection is closed.
fn is_closed(file: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(file, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::default())).unwrap();
    fds[0].revents().contains(PollFlags::HUP)
}

/// Checks that the daemon has closed this connection.
fn is_disconnected(client: &mut UnixStream) {
    let end = client.read(&mut [0]).unwrap();
    assert_eq!(end, 0, "the end of the connection");
}

/// A daemon that was stopped begins anew, and its clients are disconnected.
#[test]
fn a_stopped_daemon_leaves_nothing() {
    let manager = Manager::start("direct");
    let mut daemon = manager.run();
    let mut client = UnixStream::connect(manager.socket("a")).unwrap();
    manager.await_count(1 + 3);
    kill_process(Pid::from_child(&daemon.0), Signal::TERM).unwrap();
    assert!(daemon.0.wait().unwrap().success());
    drop(daemon);
    let _daemon = manager.run();
    is_disconnected(&mut client);
    manager.await_count(1);
}

/// Descriptors that a client does not use any more are not kept: its monitor would not notice the
/// end of its connection.
#[test]
fn the_service_manager_keeps_what_is_in_use() {
    let manager = Manager::start("direct");
    let mut daemon = manager.run();
    manager.await_count(1);
    let [a, b] = ["a", "b"].map(|name| Driver::new(&manager.socket(name), RING_ADDR));
    manager.await_count(1 + 2 * 6);
    drop(a);
    manager.await_count(1 + 6);
    daemon.kill_engine();
    manager.await_count(1 + 6);
    // An engine that is dead can't tell what is gone; the next one does.
    daemon.without_engine(|| drop(b));
    manager.await_count(1);
    drop(daemon);
    daemon = manager.run();
    Endpoint::new(&manager.socket("a"), PLAIN);
    drop(daemon);
}

/// A program that does not know the memory begins anew, and drops what was kept.
#[test]
fn what_another_version_has_kept_is_dropped() {
    let manager = Manager::start("direct");
    let daemon = manager.run();
    let mut client = UnixStream::connect(manager.socket("a")).unwrap();
    // Its connection and a pipe.
    manager.await_count(1 + 3);
    drop(daemon);
    for (name, _) in manager.kept.lock().unwrap().iter_mut() {
        *name = name.replace("memory-", "memory-0.");
    }
    let _daemon = manager.run();
    manager.await_count(1);
    assert!(!manager.names()[0].starts_with("memory-0."));
    is_disconnected(&mut client);
    Endpoint::new(&manager.socket("a"), PLAIN);
}
