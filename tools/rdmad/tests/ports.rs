// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Ports that are added to and removed from a running daemon in its sandbox.

mod ctl;
mod process;

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ctl::{answer, done, log, port, refused, start};
use rustix::net::sockopt::set_socket_linger;
use sockets::passed;
use testkit::{wait, wait_until, Netdev, Waiters};

/// Value of `--port` for a port with a network interface.
fn with_net(dir: &Path, name: &str, number: u8) -> String {
    let at = |end: &str| dir.join(format!("{name}.{end}")).display().to_string();
    let net = format!(",net={}", at("net"));
    port(dir, name, number) + &net
}

/// The names of the daemon's ports.
fn names(dir: &Path) -> Vec<String> {
    let text = done(dir, &["ports"]);
    let names = text
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    names.map(str::to_owned).collect()
}

/// The counters of a port's frames at the switch, from the status socket at `socket`. Null if there
/// is no such port.
fn frames_of(socket: &str, name: &str) -> serde_json::Value {
    let report = Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"))
        .args(["status", "--json", "--socket", socket])
        .output()
        .unwrap();
    assert!(report.status.success(), "{report:?}");
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    let mut frames = report["switch"].as_array().unwrap().iter();
    let port = frames.find(|port| port["name"] == name);
    port.cloned().unwrap_or_default()
}

/// Whether the daemon serves a function at the socket of a port.
fn is_served(dir: &Path, name: &str) -> bool {
    let socket = dir.join(format!("{name}.vfio"));
    let client = vfio_user::Client::new(&socket);
    client.is_ok_and(|mut client| {
        let mut id = [0; 4];
        client.region_read(7, 0, &mut id).is_ok() && id == [0xf4, 0x1a, 0x6a, 0x10]
    })
}

#[test]
fn a_port_comes_and_goes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let daemon = start(dir, &[]);
    done(dir, &["add-port", &with_net(dir, "b", 2)]);
    assert_eq!(names(dir), ["a", "b"]);
    assert!(is_served(dir, "a") && is_served(dir, "b"));
    // A client is turned away until the daemon has seen the end of the last one.
    let again = || vfio_user::Client::new(&dir.join("b.vfio")).ok();
    let mut client = wait("the end of the last client", again);
    done(dir, &["remove-port", "b"]);
    assert_eq!(names(dir), ["a"]);
    assert!(client.region_read(7, 0, &mut [0; 4]).is_err(), "it is gone");
    for name in ["b.vfio", "b.net"] {
        assert!(!dir.join(name).exists(), "{name}");
    }
    // A port of the command line can be removed too.
    done(dir, &["remove-port", "a"]);
    assert!(names(dir).is_empty());
    assert!(!dir.join("a.vfio").exists());
    done(dir, &["add-port", &port(dir, "a", 1)]);
    assert!(is_served(dir, "a"));
    let log = log(daemon);
    assert!(!log.contains("refused system call"), "{log}");
    assert!(!dir.join("a.vfio").exists(), "its broker removes it");
}

/// Frames are forwarded between ports, also if a monitor starts later or is restarted.
#[test]
fn the_network_of_a_port_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let daemon = start(dir, &["--port", &with_net(dir, "b", 2)]);
    done(dir, &["add-port", &with_net(dir, "c", 3)]);
    let b = Netdev::at(&dir.join("b.net"));
    let frame = [[0xff; 6], [0x52, 0x54, 0, 9, 0, 2], [8, 0, 0, 0, 0, 0]].concat();
    for _ in 0..2 {
        let c = Netdev::at(&dir.join("c.net"));
        let back = [
            &[0x52, 0x54, 0, 9, 0, 2][..],
            &[0x52, 0x54, 0, 9, 0, 3],
            &[8, 0, 0, 0],
        ]
        .concat();
        c.send(&back);
        assert_eq!(b.receive(), back);
        b.send(&frame);
        assert_eq!(c.receive(), frame);
    }
    let log = log(daemon);
    assert!(!log.contains("refused system call"), "{log}");
}

#[test]
fn a_port_that_can_not_be_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let more = format!("{},ip=192.0.2.1,group=x", port(dir, "b", 2));
    let args = ["--port", &more, "--spare-ports", "1", "--memory", "64M"];
    let daemon = start(dir, &args);
    let c = port(dir, "c", 3);
    for (wrong, complaint) in [
        (
            port(dir, "b", 3).replace("b.vfio", "c.vfio"),
            "two ports have the name b",
        ),
        (
            port(dir, "c", 2),
            "two ports have the MAC address 52:54:00:09:00:02",
        ),
        (
            c.clone() + ",ip=192.0.2.1",
            "two ports have the IP address 192.0.2.1",
        ),
        (c.clone() + ",memory=65M", "more than the 64M"),
        (
            c.clone() + ",guest-memory=96T",
            "the guest memory of all ports",
        ),
        (c.clone() + ",rate=0", "lets nothing through"),
        (c.replace("c.vfio", "no/where"), "No such file"),
    ] {
        let error = refused(dir, &["add-port", &wrong]);
        assert!(error.contains(complaint), "{error}");
        assert!(!dir.join("c.vfio").exists(), "{wrong}");
    }
    // A socket that is in use is not replaced.
    let error = refused(
        dir,
        &["add-port", &port(dir, "c", 3).replace("c.vfio", "a.vfio")],
    );
    assert!(error.contains("is in use by another process"), "{error}");
    assert!(is_served(dir, "a"));
    done(dir, &["add-port", &c]);
    let error = refused(dir, &["add-port", &port(dir, "d", 4)]);
    assert!(
        error.contains("there are 3 ports") && error.contains("--spare-ports"),
        "{error}"
    );
    let error = refused(dir, &["remove-port", "d"]);
    assert!(error.contains("there is no port \"d\""), "{error}");
    assert_eq!(names(dir), ["a", "b", "c"]);
    // After a port was removed, another one can be added.
    done(dir, &["remove-port", "b"]);
    done(dir, &["add-port", &port(dir, "d", 2)]);
    assert_eq!(names(dir), ["a", "c", "d"]);
    let log = log(daemon);
    assert!(!log.contains("refused system call"), "{log}");
}

/// A TCP socket whose close waits for its peer, and the peer.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    while near.write(&[0; 1 << 16]).is_ok() {}
    set_socket_linger(&near, Some(Duration::from_secs(3600))).unwrap();
    (near, far)
}

/// The removal of a port waits for the port's thread, here until a descriptor of its client is
/// closed. Other requests do not wait for the removal. Until the port has ended, nothing of it is
/// given to another one: name, addresses and paths are in use, and its group keeps its number.
#[test]
fn a_port_whose_end_takes_long_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let status = dir.join("status").display().to_string();
    let leaving = with_net(dir, "b", 2) + ",ip=192.0.2.1,group=red";
    let daemon = start(dir, &["--port", &leaving, "--status", &status]);
    let b = Netdev::at(&dir.join("b.net"));
    let mut client = UnixStream::connect(dir.join("b.vfio")).unwrap();
    let (near, far) = lingering();
    // The daemon has the descriptor before the message is complete, and closes it since the length
    // of the message, 0, is invalid.
    passed::send(&client, &[0; 8], &[near.as_fd()]).unwrap();
    drop(near);
    client.write_all(&[0; 8]).unwrap();
    let mut removal = UnixStream::connect(dir.join("ctl")).unwrap();
    let request = b"{\"command\":\"remove-port\",\"port\":\"b\"}\n";
    removal.write_all(request).unwrap();
    wait_until("the removal of b", || names(dir) == ["a"]);
    removal.set_nonblocking(true).unwrap();
    let early = removal.read(&mut [0; 1]).unwrap_err();
    assert_eq!(early.kind(), ErrorKind::WouldBlock, "the removal is over");
    let other = port(dir, "c", 3);
    for (wrong, complaint) in [
        (port(dir, "b", 3).replace("b.vfio", "c.vfio"), "the name b"),
        (port(dir, "c", 2), "the MAC address 52:54:00:09:00:02"),
        (other.clone() + ",ip=192.0.2.1", "the IP address 192.0.2.1"),
    ] {
        let error = refused(dir, &["add-port", &wrong]);
        assert!(error.contains(complaint), "{error}");
    }
    let request = other.replace("c.vfio", "b.vfio");
    let request = format!("{{\"command\":\"add-port\",\"port\":{request:?}}}\n");
    let answer = answer(dir, request.as_bytes());
    assert!(answer.contains("two sockets have the path"), "{answer}");
    // A port of another group, which must not hear the port that ends.
    let [c, d] = ["c", "d"];
    for (name, number) in [(c, 3), (d, 4)] {
        done(
            dir,
            &["add-port", &(with_net(dir, name, number) + ",group=blue")],
        );
    }
    let [c, d] = [c, d].map(|name| Netdev::at(&dir.join(format!("{name}.net"))));
    let frame = |to: u8, from: u8| {
        let mac = |number| [0x52, 0x54, 0, 9, 0, number];
        [&mac(to)[..], &mac(from), &[8, 0], &[from; 46]].concat()
    };
    c.meet(&d, &frame(4, 3));
    b.send(&frame(3, 2));
    wait_until("the frame of b", || {
        frames_of(&status, "b")["no_route"] == 1
    });
    d.send(&frame(3, 4));
    assert_eq!(c.receive(), frame(3, 4), "the frame of b has not arrived");
    drop(far);
    removal.set_nonblocking(false).unwrap();
    assert_eq!(std::io::read_to_string(removal).unwrap(), "\"done\"\n");
    done(dir, &["add-port", &leaving]);
    let log = log(daemon);
    assert!(!log.contains("refused system call"), "{log}");
}

/// Descriptors that are not the sockets of a port are refused.
#[test]
fn wrong_descriptors_get_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let daemon = start(dir, &[]);
    let request = format!(
        "{{\"command\":\"add-port\",\"port\":\"{}\"}}\n",
        port(dir, "b", 2)
    );
    let file = OwnedFd::from(File::open("/dev/null").unwrap());
    let listener = OwnedFd::from(UnixListener::bind(dir.join("b.vfio")).unwrap());
    for (fds, complaint) in [
        (vec![], "needs 2 descriptors, and 0 were passed"),
        (vec![&listener, &listener, &listener], "and 3 were passed"),
        (
            vec![&file, &listener],
            "the broker of the paths is of another kind",
        ),
        (
            vec![&listener, &file],
            "the broker of the paths is of another kind",
        ),
    ] {
        let stream = UnixStream::connect(dir.join("ctl")).unwrap();
        let fds: Vec<_> = fds.into_iter().map(|fd| fd.as_fd()).collect();
        passed::send(&stream, request.as_bytes(), &fds).unwrap();
        let answer = std::io::read_to_string(&stream).unwrap();
        assert!(answer.starts_with("{\"error\":\""), "{answer}");
        assert!(answer.contains(complaint), "{answer}");
    }
    assert_eq!(names(dir), ["a"]);
    done(dir, &["add-port", &port(dir, "c", 3)]);
    let log = log(daemon);
    assert!(!log.contains("refused system call"), "{log}");
}

/// A capture to a file goes on after the death of an engine, which may have written half a frame,
/// and after an upgrade. One to a pipe ends.
#[test]
fn a_capture_goes_on_with_the_next_engine() {
    const LEN: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let daemon = start(
        dir,
        &[
            "--port",
            &with_net(dir, "b", 2),
            "--port",
            &with_net(dir, "c", 3),
        ],
    );
    let pass = |count: usize| {
        // The engine serves all ports.
        done(dir, &["ports"]);
        let [b, c] = ["b.net", "c.net"].map(|name| Netdev::at(&dir.join(name)));
        let mut frame = vec![0; LEN];
        frame[..6].copy_from_slice(&[0x52, 0x54, 0, 9, 0, 3]);
        frame[6..12].copy_from_slice(&[0x52, 0x54, 0, 9, 0, 2]);
        // The switch has accepted the connection of c once a frame of it arrives.
        let mut other = frame.clone();
        other[..6].copy_from_slice(&frame[6..12]);
        other[6..12].copy_from_slice(&frame[..6]);
        c.send(&other);
        b.receive();
        for _ in 1..count {
            b.send(&frame);
            assert_eq!(c.receive().len(), LEN);
        }
    };
    let file = dir.join("b.pcap");
    let has = |frames: usize| {
        let len = (24 + frames * (16 + LEN)) as u64;
        wait_until(&format!("{frames} frames in the file"), || {
            fs::metadata(&file).unwrap().len() == len
        });
    };
    done(
        dir,
        &["capture", "b", "--file", &file.display().to_string()],
    );
    let mut pipe = Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"));
    pipe.args(["ctl", "--socket"]).arg(dir.join("ctl"));
    pipe.args(["capture", "c", "--file", "-"])
        .stdout(Stdio::piped());
    let mut pipe = pipe.spawn().unwrap();
    assert!(pipe.wait().unwrap().success());
    pass(10);
    has(10);
    daemon.without_engine(|| {
        let mut file = File::options().append(true).open(&file).unwrap();
        file.write_all(&[7; 16 + LEN / 2]).unwrap();
    });
    pass(5);
    has(15);
    let mut rest = Vec::new();
    pipe.stdout.take().unwrap().read_to_end(&mut rest).unwrap();
    let told = refused(dir, &["capture", "c", "--stop"]);
    assert!(told.contains("no capture is running"), "{told}");
    daemon.upgrade();
    pass(3);
    let told = done(dir, &["capture", "b", "--stop"]);
    assert_eq!(told, "18 frames, 0 left out\n");
    has(18);
    // Nobody goes on with a capture that was ended.
    daemon.kill_engine();
    pass(1);
    has(18);
}

/// A capture contains the frames of its port. If its reader is too slow, frames are left out and
/// counted, and no other work is delayed.
#[test]
fn the_frames_of_a_port_are_captured() {
    const LEN: usize = 9000;
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let more = [
        "--port",
        &with_net(dir, "b", 2),
        "--port",
        &with_net(dir, "c", 3),
    ];
    let daemon = start(dir, &more);
    let [b, c] = ["b.net", "c.net"].map(|name| Netdev::at(&dir.join(name)));
    let frame = |to: u8, from: u8| {
        let mut frame = vec![0; LEN];
        frame[..6].copy_from_slice(&[0x52, 0x54, 0, 9, 0, to]);
        frame[6..12].copy_from_slice(&[0x52, 0x54, 0, 9, 0, from]);
        frame
    };
    let pass = |frames: usize| {
        for _ in 0..frames {
            b.send(&frame(3, 2));
            assert_eq!(c.receive().len(), LEN);
        }
    };
    // The switch has accepted a connection once a frame of it arrives.
    c.send(&frame(2, 3));
    assert_eq!(b.receive(), frame(2, 3));
    let file = dir.join("b.pcap").display().to_string();
    done(dir, &["capture", "b", "--file", &file]);
    pass(10);
    assert_eq!(
        done(dir, &["capture", "b", "--stop"]),
        "10 frames, 0 left out\n"
    );
    wait_until("the end of the file", || {
        fs::metadata(&file).unwrap().len() == (24 + 10 * (16 + LEN)) as u64
    });
    let mut slow = Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"))
        .args(["ctl", "--socket"])
        .arg(dir.join("ctl"))
        .args(["capture", "b", "--file", "-"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(slow.wait().unwrap().success());
    pass(2000);
    let told = done(dir, &["capture", "b", "--stop"]);
    let counts: Vec<usize> = told
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    assert!(counts[1] > 500, "{told}");
    assert_eq!(counts.iter().sum::<usize>(), 2000, "{told}");
    drop(slow);
    for (wrong, complaint) in [
        (&["capture", "b", "--file", &file][..], "it exists"),
        (&["capture", "b", "--stop"], "no capture is running"),
        (&["capture", "d", "--stop"], "no port \"d\""),
    ] {
        let error = refused(dir, wrong);
        assert!(error.contains(complaint), "{error}");
    }
    let request = b"{\"command\":\"capture\",\"port\":\"b\"}\n";
    let readable = File::open("/dev/null").unwrap();
    let socket = UnixDatagram::unbound().unwrap();
    for (fds, complaint) in [
        (vec![], "one descriptor, not 0"),
        (vec![readable.as_fd()], "not a writable file or pipe"),
        (vec![socket.as_fd()], "not a writable file or pipe"),
    ] {
        let stream = UnixStream::connect(dir.join("ctl")).unwrap();
        passed::send(&stream, request, &fds).unwrap();
        let answer = std::io::read_to_string(&stream).unwrap();
        assert!(answer.contains(complaint), "{answer}");
    }
    let log = log(daemon);
    assert!(!log.contains("refused system call"), "{log}");
}

/// A QEMU with many waiters at its end of a network interface is named, and others are served.
#[test]
fn a_qemu_that_makes_calls_long_is_in_the_status_and_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (b, c) = (with_net(dir, "b", 2), with_net(dir, "c", 3));
    let d = with_net(dir, "d", 4);
    let status = dir.join("status").display().to_string();
    let more = [
        "--port", &b, "--port", &c, "--port", &d, "--status", &status,
    ];
    let daemon = start(dir, &more);
    let [b, c, d] = ["b.net", "c.net", "d.net"].map(|name| Netdev::at(&dir.join(name)));
    let frame = |to: u8, from: u8| {
        let mut frame = vec![0; 60];
        frame[..6].copy_from_slice(&[0x52, 0x54, 0, 9, 0, to]);
        frame[6..12].copy_from_slice(&[0x52, 0x54, 0, 9, 0, from]);
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        frame
    };
    c.meet(&b, &frame(2, 3));
    c.meet(&d, &frame(4, 3));
    let _waiters = Waiters::new(&b, 200, 200);
    let b = wait("frames beyond the share", || {
        c.send(&frame(2, 3));
        c.send(&frame(4, 3));
        assert_eq!(d.receive(), frame(4, 3));
        let b = frames_of(&status, "b");
        (b["over_share"].as_u64() > Some(0)).then_some(b)
    });
    assert!(b["long_calls"]["calls"].as_u64() > Some(0), "{b}");
    assert!(b["long_calls"]["longest_us"].as_u64() > Some(100), "{b}");
    let log = log(daemon);
    assert!(log.contains("b: QEMU makes system calls"), "{log}");
    assert!(!log.contains("refused system call"), "{log}");
}
