// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Readiness messages of the daemon.

mod process;

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use process::{ready, Daemon};
use rustix::process::{kill_process, Pid, Signal};

/// How long a test waits for an expected message.
const PATIENCE: Duration = Duration::from_secs(20);

/// A daemon with one port in `dir` and this `NOTIFY_SOCKET`.
fn daemon(dir: &Path, notify: &str) -> Command {
    let port = format!(
        "a,vfio={},mac=52:54:00:09:00:01",
        dir.join("vfio").display()
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"));
    command
        .args(["--port", &port])
        .env_remove("RUST_LOG")
        .env("NOTIFY_SOCKET", notify)
        .env("WATCHDOG_USEC", "30000000")
        .stderr(Stdio::piped());
    command
}

/// The next message to a service manager.
fn message(manager: &UnixDatagram) -> String {
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = [0; 4096];
    let len = manager.recv(&mut bytes).unwrap();
    String::from_utf8(bytes[..len].to_vec()).unwrap()
}

/// The next message that does not tell of life.
fn last_message(manager: &UnixDatagram) -> String {
    let messages = std::iter::repeat_with(|| message(manager));
    messages.into_iter().find(|it| it != "WATCHDOG=1").unwrap()
}

fn terminate(child: &Child) {
    kill_process(Pid::from_child(child), Signal::TERM).unwrap();
}

fn stderr(mut child: Child) -> String {
    let stderr = child.stderr.take().unwrap();
    assert!(child.wait().unwrap().success());
    std::io::read_to_string(stderr).unwrap()
}

/// Checks the messages to a service manager with the socket `manager`. Also checks that a client
/// can connect after the first message.
fn tells(manager: UnixDatagram, notify: &str) {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon(daemon(dir.path(), notify).spawn().unwrap());
    assert_eq!(message(&manager), "READY=1");
    let mut client = vfio_user::Client::new(&dir.path().join("vfio")).unwrap();
    client.region_read(7, 0, &mut [0; 4]).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.engine())).unwrap();
    assert!(status.contains("Seccomp:\t2\n"), "{status}");
    for _ in 0..2 {
        assert_eq!(message(&manager), "WATCHDOG=1");
    }
    terminate(&daemon.0);
    assert_eq!(last_message(&manager), "STOPPING=1");
}

#[test]
fn a_service_manager_is_told_of_readiness_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    tells(UnixDatagram::bind(&path).unwrap(), path.to_str().unwrap());
}

#[test]
fn the_socket_of_a_service_manager_may_be_abstract() {
    let name = format!("virtio-rdmad-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let manager = UnixDatagram::bind_addr(&address).unwrap();
    tells(manager, &format!("@{name}"));
}

/// Readiness is reported to the descriptor and to the service manager. The broker, another process,
/// can't send messages to the service manager.
#[test]
fn a_descriptor_and_a_service_manager_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    let mut daemon = daemon(dir.path(), path.to_str().unwrap());
    daemon.args(["--ready-fd", "1"]);
    let daemon = Daemon(ready(daemon));
    assert_eq!(message(&manager), "READY=1");
    let id = daemon.engine();
    let broker = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let environment = fs::read(format!("/proc/{}/environ", broker.trim())).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    assert!(!environment.contains("NOTIFY_SOCKET"), "{environment}");
}

/// The daemon starts even if it can't send to `NOTIFY_SOCKET`. This variable may be inherited from
/// another service that started the daemon's parent.
#[test]
fn a_service_manager_out_of_reach_stops_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let long = format!("/{}", "x".repeat(200));
    for notify in ["/nonexistent/notify", "vsock:2:1", "", &long] {
        let mut daemon = daemon(dir.path(), notify);
        daemon.args(["--ready-fd", "1"]);
        let child = ready(daemon);
        terminate(&child);
        let log = stderr(child);
        let line = format!("can't notify the service manager (NOTIFY_SOCKET={notify})");
        assert_eq!(log.contains(&line), !notify.is_empty(), "{log}");
    }
}
