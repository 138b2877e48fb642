// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Users of the host who are neither root nor the daemon's user. These tests must run as root, or
//! by tools/dev/enter, because their threads change their users.

mod process;

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{chown, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use process::Daemon;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use tempfile::TempDir;
use testkit::Netdev;

/// The user and the group of the VM's QEMU.
const USER: u32 = 1;
const GROUP: u32 = 2;
/// Another user.
const OTHER: u32 = 3;

/// Does `work` in a thread of this user, who is a member of `group`.
fn as_user<T: Send>(user: u32, group: u32, work: impl FnOnce() -> T + Send) -> T {
    let confined = move || {
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(group));
        set_thread_groups(&[gid]).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        work()
    };
    thread::scope(|scope| scope.spawn(confined).join().unwrap())
}

/// A directory that every user may search.
fn open_dir() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    dir
}

/// The value of `--port` for a port with these sockets in `dir`.
fn port(dir: &Path, name: &str, number: u8, keys: &str) -> String {
    let at = |end: &str| dir.join(format!("{name}.{end}")).display().to_string();
    let (vfio, net) = (at("vfio"), at("net"));
    format!("{name},vfio={vfio},net={net},mac=52:54:00:09:00:{number:02x}{keys}")
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"));
    command.args(args).env_remove("RUST_LOG");
    command
}

fn start(args: &[&str]) -> Daemon {
    let mut command = command(args);
    command.args(["--ready-fd", "1"]);
    Daemon::start(command)
}

/// Runs a daemon that must not start, and returns its error message.
fn refused(args: &[&str]) -> String {
    let output = command(args).stdin(Stdio::null()).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Mode, user and group of a file.
fn rights(path: &Path) -> (u32, u32, u32) {
    let stat = fs::symlink_metadata(path).unwrap();
    (stat.mode() & 0o7777, stat.uid(), stat.gid())
}

fn kind<T>(result: io::Result<T>) -> Result<(), ErrorKind> {
    result.map(drop).map_err(|error| error.kind())
}

#[test]
fn the_group_of_the_ports_reaches_nothing_else() {
    let dir = open_dir();
    let at = |name: &str| dir.path().join(name);
    let text = |name: &str| at(name).display().to_string();
    let (port, group) = (port(dir.path(), "a", 1, ""), GROUP.to_string());
    let uplink = format!("unix:{}:{}", text("up"), text("far"));
    let (status, ctl) = (text("status"), text("ctl"));
    let args = [
        "--port",
        &port,
        "--socket-group",
        &group,
        "--uplink",
        &uplink,
    ];
    let args = [&args[..], &["--status", &status, "--ctl", &ctl]].concat();
    let connects = |name: &str| {
        let path = at(name);
        as_user(USER, GROUP, move || kind(UnixStream::connect(path)))
    };
    let denied = Err(ErrorKind::PermissionDenied);
    let daemon = start(&args);
    for (name, expected) in [
        ("a.vfio", Ok(())),
        ("a.net", Ok(())),
        ("status", denied),
        ("ctl", denied),
    ] {
        assert_eq!(connects(name), expected, "{name}");
    }
    let up = at("up");
    let sent = as_user(USER, GROUP, move || {
        kind(UnixDatagram::unbound().unwrap().send_to(&[0; 60], up))
    });
    assert_eq!(sent, denied);
    drop(daemon);
    let _daemon = start(&[&args[..], &["--status-group", &group]].concat());
    assert_eq!(connects("status"), Ok(()));
    assert_eq!(connects("ctl"), denied);
    assert_eq!(rights(&at("status")), (0o660, 0, GROUP));
    assert_eq!(rights(&at("up")).0, 0o600);
}

#[test]
fn a_port_with_a_user_serves_this_user_alone() {
    let dir = open_dir();
    let at = |name: &str| dir.path().join(name);
    let own = port(dir.path(), "a", 1, &format!(",user={USER}"));
    let shared = format!(",user={USER},socket-group={GROUP}");
    let shared = port(dir.path(), "b", 2, &shared);
    let _daemon = start(&["--port", &own, "--port", &shared]);
    for end in ["vfio", "net"] {
        assert_eq!(rights(&at(&format!("a.{end}"))), (0o600, USER, 0));
        assert_eq!(rights(&at(&format!("b.{end}"))), (0o660, 0, GROUP));
    }
    let connects = |name: &str| {
        let path = at(name);
        as_user(OTHER, GROUP, move || UnixStream::connect(path))
    };
    // The permissions of the file refuse the user, or the daemon ends the connection.
    for name in ["a.vfio", "a.net"] {
        assert_eq!(kind(connects(name)), Err(ErrorKind::PermissionDenied));
    }
    for name in ["b.vfio", "b.net"] {
        let mut stranger = connects(name).unwrap();
        let end = stranger.read(&mut [0]);
        assert!(matches!(end, Ok(0)) || end.is_err(), "{name}: {end:?}");
    }
    for name in ["a", "b"] {
        let (vfio, net) = (at(&format!("{name}.vfio")), at(&format!("{name}.net")));
        let (client, net) = as_user(USER, GROUP, move || {
            (vfio_user::Client::new(&vfio).is_ok(), Netdev::at(&net))
        });
        assert!(client, "{name}");
        let mac = [0x52, 0x54, 0, 9, 0, if name == "a" { 1 } else { 2 }];
        let other = Netdev::at(&at(if name == "a" { "b.net" } else { "a.net" }));
        let frame = [&[0xff; 6][..], &mac, &[8, 0], &[0; 46]].concat();
        let hello = [
            &[0xff; 6][..],
            &[0x52, 0x54, 0, 9, 0, 3 - mac[5]],
            &[8, 0],
            &[1; 46],
        ]
        .concat();
        other.meet(&net, &hello);
        net.send(&frame);
        assert_eq!(other.receive(), frame);
    }
}

#[test]
fn nothing_is_sent_to_the_socket_of_another_user() {
    let dir = open_dir();
    let at = |name: &str| dir.path().join(name);
    let uplink = |far: &str, near: &str| {
        let (near, far) = (
            at(near).display().to_string(),
            at(far).display().to_string(),
        );
        format!("unix:{near}:{far}")
    };
    // Both sockets exist before the daemon starts, and the second one belongs to the daemon's user.
    let [squatter, peer] = ["squatter", "peer"].map(|name| UnixDatagram::bind(at(name)).unwrap());
    chown(at("squatter"), Some(OTHER), None).unwrap();
    fs::set_permissions(at("squatter"), Permissions::from_mode(0o777)).unwrap();
    let (first, second) = (uplink("squatter", "up1"), uplink("peer", "up2"));
    let port = port(dir.path(), "a", 1, "");
    for sandbox in ["on", "none"] {
        let args = ["--port", &port, "--uplink", &first, "--uplink", &second];
        let _daemon = start(&[&args[..], &["--sandbox", sandbox]].concat());
        let vm = Netdev::at(&at("a.net"));
        let secret = [&[0xff; 6][..], &[0x52, 0x54, 0, 9, 0, 1], &[8, 0], &[7; 46]].concat();
        vm.send(&secret);
        let mut received = [0; 100];
        // Greetings are shorter.
        while peer.recv(&mut received).unwrap() != secret.len() {}
        squatter.set_nonblocking(true).unwrap();
        let got = squatter.recv(&mut received);
        assert_eq!(kind(got), Err(ErrorKind::WouldBlock), "{sandbox}");
    }
}

/// A directory in which others may create files, and one below a directory of another user.
#[test]
fn directories_of_others_hold_no_sockets() {
    let top = open_dir();
    let dir = top.path().join("rdma");
    fs::create_dir(&dir).unwrap();
    let [first, second] = [1, 2].map(|number| port(&dir, "a", number, ""));
    fs::set_permissions(&dir, Permissions::from_mode(0o3770)).unwrap();
    let error = refused(&["--port", &first]);
    assert!(error.contains("could take the name first"), "{error}");
    drop(start(&["--port", &first, "--sticky-directories"]));
    fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
    drop(start(&["--port", &second]));
    chown(top.path(), Some(OTHER), None).unwrap();
    let error = refused(&["--port", &second]);
    let owner = format!("{} belongs to user {OTHER}", top.path().display());
    assert!(error.contains(&owner), "{error}");
}
