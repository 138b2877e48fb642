// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The state file: a daemon that is started again restores the ports, the limits and the level of
//! the log that `ctl` has set in the previous daemon.

mod ctl;
mod process;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use ctl::{answer, done, log, port, refused, start};
use process::Daemon;
use rustix::process::{kill_process, Pid, Signal};
use testkit::wait_until;

/// Starts a daemon with port a, more options, and a state file.
fn start_kept(dir: &Path, more: &[&str]) -> Daemon {
    let state = state(dir).display().to_string();
    start(dir, &[&["--state", &state], more].concat())
}

fn state(dir: &Path) -> PathBuf {
    dir.join("state.json")
}

fn content(dir: &Path) -> String {
    fs::read_to_string(state(dir)).unwrap()
}

/// Runs a daemon that must not start, and returns its error message.
fn no_start(dir: &Path, more: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"))
        .args(["--port", &port(dir, "a", 1), "--ctl"])
        .arg(dir.join("ctl"))
        .arg("--state")
        .arg(state(dir))
        .args(more)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn ports(dir: &Path) -> String {
    done(dir, &["--json", "ports"])
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Whether the daemon serves a function at the socket of a port.
fn is_served(dir: &Path, name: &str) -> bool {
    vfio_user::Client::new(&dir.join(format!("{name}.vfio"))).is_ok()
}

#[test]
fn a_restarted_daemon_has_the_same_ports() {
    for sandbox in ["on", "none"] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let second = port(dir, "b", 2);
        let options = ["--port", &second, "--sandbox", sandbox];
        let daemon = start_kept(dir, &options);
        assert_eq!(mode(&state(dir)), 0o600);
        let net = dir.join("c.net").display().to_string();
        let third = port(dir, "c", 3) + &format!(",net={net},group=x,rate=5M");
        done(dir, &["add-port", &third, "--socket-mode", "640"]);
        done(dir, &["add-port", &port(dir, "d", 4)]);
        done(dir, &["limit", "a", "--rate", "1G:1M"]);
        done(dir, &["limit", "d", "--messages", "70"]);
        done(dir, &["remove-port", "b"]);
        done(dir, &["log-level", "warn"]);
        let (before, text) = (ports(dir), content(dir));
        assert!(log(daemon).contains("\"c\" mac=52:54:00:09:00:03"));
        assert!(!dir.join("c.vfio").exists());

        let daemon = start_kept(dir, &options);
        assert_eq!(ports(dir), before);
        assert_eq!(content(dir), text);
        for name in ["a", "c", "d"] {
            assert!(is_served(dir, name), "{name}");
        }
        assert!(!dir.join("b.vfio").exists());
        for (name, expected) in [("c.vfio", 0o640), ("c.net", 0o640), ("d.vfio", 0o600)] {
            assert_eq!(mode(&dir.join(name)), expected, "{name}");
        }
        // Restored ports can be changed as before.
        done(dir, &["remove-port", "c"]);
        done(dir, &["add-port", &port(dir, "b", 2)]);
        let before = ports(dir);
        let written = log(daemon);
        // The level of the log was restored.
        assert!(written.is_empty(), "{written}");
        let daemon = start_kept(dir, &options);
        assert_eq!(ports(dir), before);
        assert_eq!(mode(&state(dir)), 0o600);
        drop(daemon);
        let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
        let temporary = files.filter(|file| file.extension() == Some("new".as_ref()));
        assert_eq!(temporary.count(), 0);
    }
}

#[test]
fn a_later_command_line_wins() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let second = port(dir, "b", 2);
    let daemon = start_kept(dir, &["--port", &second]);
    done(dir, &["limit", "b", "--rate", "1M"]);
    done(dir, &["add-port", &port(dir, "c", 3)]);
    log(daemon);
    let later = second + ",rate=3M";
    let daemon = start_kept(dir, &["--port", &later]);
    let text = ports(dir);
    assert!(text.contains("\"rate\":\"3145728\""), "{text}");
    assert!(text.contains("\"name\":\"c\""), "{text}");
    let log = log(daemon);
    assert!(
        log.contains("port b: the command line was changed"),
        "{log}"
    );
    // The superseded change of port b is no longer in the file.
    assert!(!content(dir).contains("b.vfio"));
}

#[test]
fn a_file_that_can_not_be_used_is_told_and_left() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    log(start_kept(dir, &[]));
    let whole = content(dir);
    let path = state(dir).display().to_string();
    for (text, complaint) in [
        (&whole[..whole.len() / 2], "line "),
        ("", "line 1: "),
        ("a,vfio=/run/a\n", "line 1: "),
        (&whole.replace("1,", "2,"), "line 2: version 2 is newer"),
    ] {
        fs::write(state(dir), text).unwrap();
        let error = no_start(dir, &[]);
        assert!(error.contains(complaint), "{error}");
        assert!(error.contains(&format!("state file {path}")), "{error}");
        assert_eq!(content(dir), text);
        assert!(!dir.join("a.vfio").exists());
    }
    fs::write(state(dir), &whole).unwrap();
    fs::set_permissions(state(dir), fs::Permissions::from_mode(0o622)).unwrap();
    let error = no_start(dir, &[]);
    assert!(error.contains("may write to it"), "{error}");
    fs::set_permissions(state(dir), fs::Permissions::from_mode(0o600)).unwrap();
    // A second daemon does not take the file over.
    let _daemon = start_kept(dir, &[]);
    let error = no_start(dir, &[]);
    assert!(error.contains("another process"), "{error}");
}

/// Ports that can't be restored are left out, and logged. They stay in the file, until a port of
/// this name is added.
#[test]
fn a_port_that_can_not_be_restored_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let daemon = start_kept(dir, &[]);
    for (name, number) in [("b", 2), ("c", 3)] {
        done(dir, &["add-port", &port(dir, name, number)]);
    }
    log(daemon);
    let whole = content(dir);
    let complaints = |daemon: Daemon| {
        let log = log(daemon);
        let left_out = log.lines().filter(|line| line.contains("is left out"));
        left_out.map(str::to_owned).collect::<Vec<_>>().join("\n")
    };
    let names = |text: &str| {
        let parts = text.split("\"name\":\"").skip(1);
        parts.map(|part| part[..1].to_owned()).collect::<String>()
    };
    // Something is at the path, the address belongs to another port, or there is no room.
    fs::write(dir.join("b.vfio"), "").unwrap();
    let other = port(dir, "d", 3);
    for (more, expected, complaint) in [
        (
            &["--spare-ports", "8"][..],
            "ac",
            "b.vfio exists and is not a socket",
        ),
        (
            &["--port", &other],
            "ad",
            "two ports have the MAC address 52:54:00:09:00:03",
        ),
        (&["--spare-ports", "0"], "a", "--spare-ports"),
    ] {
        let daemon = start_kept(dir, more);
        assert_eq!(names(&ports(dir)), expected);
        let complaints = complaints(daemon);
        assert!(complaints.contains(complaint), "{complaints}");
        assert_eq!(content(dir), whole);
    }
    let daemon = start_kept(dir, &[]);
    fs::remove_file(dir.join("b.vfio")).unwrap();
    done(dir, &["add-port", &port(dir, "b", 4)]);
    assert_eq!(complaints(daemon).lines().count(), 1);
    let daemon = start_kept(dir, &[]);
    assert_eq!(names(&ports(dir)), "acb");
    assert!(ports(dir).contains("52:54:00:09:00:04"));
    assert_eq!(complaints(daemon), "");
}

/// A daemon that was taken over, or a client of its control socket, can write any file. The next
/// daemon takes neither another identity nor another path from it.
#[test]
fn a_file_does_not_reach_beyond_the_command_line() {
    let (dir, far) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (dir, far) = (dir.path(), far.path());
    log(start_kept(dir, &[]));
    let asked = port(dir, "a", 1) + ",speed=100";
    let there = port(far, "x", 7);
    let inside = port(dir, "y", 8);
    let text = format!(
        r#"{{"virtio-rdmad-state": 1, "ports": [
            {{"changed": {{"command-line": {asked:?}, "port": {:?}}}}},
            {{"added": {{"port": {there:?}}}}},
            {{"added": {{"port": {inside:?}, "sockets": {{"mode": "666"}}}}}}
        ]}}"#,
        asked.replace(":01", ":66") + ",group=blue"
    );
    fs::write(state(dir), text).unwrap();
    let daemon = start_kept(dir, &[]);
    let text = ports(dir);
    assert_eq!(text.matches("\"name\"").count(), 1, "{text}");
    assert!(text.contains("52:54:00:09:00:01"), "{text}");
    assert!(text.contains("\"group\":null"), "{text}");
    assert_eq!(fs::read_dir(far).unwrap().count(), 0);
    // Such a port is not added either, since it would not be restored.
    let error = refused(dir, &["add-port", &there]);
    assert!(error.contains("--port-directory"), "{error}");
    let error = refused(dir, &["add-port", &inside, "--socket-mode", "666"]);
    assert!(error.contains("not open to all users"), "{error}");
    let log = log(daemon);
    for (name, complaint) in [
        ("a", "ctl limit does not"),
        ("x", "--port-directory"),
        ("y", "open to all"),
    ] {
        let line = log
            .lines()
            .find(|line| line.contains(&format!("port {name}")));
        let line = line.filter(|line| line.contains(complaint));
        assert!(line.is_some(), "{name}: {log}");
    }
    let far = far.display().to_string();
    let daemon = start_kept(dir, &["--port-directory", &far]);
    assert!(ports(dir).contains("\"name\":\"x\""));
    drop(daemon);
}

/// An engine that takes the place of another opens the same sockets and files, and restores what
/// `ctl` has set.
#[test]
fn another_engine_has_what_the_last_one_had() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let at = |name: &str| dir.join(name).display().to_string();
    let far = UnixDatagram::bind(at("far")).unwrap();
    far.set_nonblocking(true).unwrap();
    let uplink = format!("unix:{}:{}", at("up"), at("far"));
    let more = ["--uplink", &uplink, "--pcap", &at("pcap")];
    let daemon = start_kept(dir, &[&more[..], &["--status", &at("status")]].concat());
    done(dir, &["add-port", &port(dir, "b", 2)]);
    done(dir, &["limit", "a", "--rate", "1M"]);
    let before = ports(dir);
    assert!(before.contains("\"name\":\"b\""), "{before}");
    // A broadcast of an experimental protocol.
    let mut frame = [0; 60];
    frame[..6].fill(0xff);
    frame[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 7, 0x88, 0xb5]);
    for deaths in 1..=3 {
        daemon.kill_engine();
        let answers = || ctl::ctl(dir, &["ports"]).status.success();
        wait_until("the next engine answers", answers);
        assert_eq!(ports(dir), before);
        assert!(is_served(dir, "a") && is_served(dir, "b"));
        // The events of the engines before this one are there.
        let links = done(dir, &["events", "a"]).matches("link").count();
        assert_eq!(links, deaths + 1);
        let status = ctl::status(dir, &[]);
        let told = format!("engines that died: {deaths}; the last one, at ");
        assert!(status.contains(&told), "{status}");
        assert!(status.contains(", was ended by SIGKILL\n"), "{status}");
        far.send_to(&frame, at("up")).unwrap();
    }
    let log = log(daemon);
    assert_eq!(log.matches("another one starts").count(), 3, "{log}");
    assert!(!log.contains("ERROR"), "{log}");
    for path in ["a.vfio", "b.vfio", "up", "ctl", "status"] {
        assert!(!dir.join(path).exists(), "{path}");
    }
    // An engine that is killed has not written its last frames.
    let frames = fs::metadata(at("pcap")).unwrap().len() - 24;
    assert!(
        frames > 0 && frames % (16 + 60) == 0,
        "{frames} bytes of frames"
    );
}

/// Changes by `ctl` outlive an engine without a state file too, but not the daemon.
#[test]
fn changes_without_a_file_are_those_of_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let daemon = start(dir, &[]);
    let at_start = ports(dir);
    done(dir, &["add-port", &port(dir, "b", 2)]);
    done(dir, &["limit", "a", "--rate", "1M"]);
    let before = ports(dir);
    for _ in 0..2 {
        daemon.kill_engine();
        let answers = || ctl::ctl(dir, &["ports"]).status.success();
        wait_until("the next engine answers", answers);
        assert_eq!(ports(dir), before);
        assert!(is_served(dir, "a") && is_served(dir, "b"));
    }
    done(dir, &["remove-port", "b"]);
    daemon.kill_engine();
    assert!(!is_served(dir, "b"));
    let log = log(daemon);
    assert!(!log.contains("ERROR"), "{log}");
    let _daemon = start(dir, &[]);
    assert_eq!(ports(dir), at_start);
}

/// The processes that a daemon has started.
fn children(daemon: &Daemon) -> Vec<Pid> {
    let id = daemon.engine();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let children = children.split_whitespace();
    children
        .map(|id| Pid::from_raw(id.parse().unwrap()).unwrap())
        .collect()
}

/// Kills daemons while a limit changes; in every other round also kills their brokers. The next
/// daemon restores the last confirmed limit, or the limit of the request that got no answer.
#[test]
fn a_killed_daemon_loses_nothing_that_it_confirmed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let confirmed = AtomicU64::new(0);
    let limit = || {
        let text = ports(dir);
        let (_, rest) = text.split_once("\"messages\":\"").unwrap();
        rest.split('"').next().unwrap().parse::<u64>().ok()
    };
    for round in 0..12 {
        let daemon = start_kept(dir, &[]);
        let before = confirmed.load(Ordering::Relaxed);
        if let Some(found) = limit() {
            assert!((before..=before + 1).contains(&found), "{before}, {found}");
            confirmed.store(found, Ordering::Relaxed);
        }
        let before = confirmed.load(Ordering::Relaxed);
        thread::scope(|scope| {
            scope.spawn(|| loop {
                let next = confirmed.load(Ordering::Relaxed) + 1;
                let request =
                    format!("{{\"command\":\"limit\",\"port\":\"a\",\"messages\":\"{next}\"}}\n");
                match answer_if_alive(dir, request.as_bytes()) {
                    Some(answer) if answer == "\"done\"\n" => {}
                    _ => break,
                }
                confirmed.store(next, Ordering::Relaxed);
            });
            while confirmed.load(Ordering::Relaxed) < before + round % 5 {
                thread::yield_now();
            }
            let killed = Pid::from_child(&daemon.0);
            let brokers = children(&daemon);
            let brokers = brokers.into_iter().filter(|_| round % 2 == 0);
            for process in brokers.chain([killed]) {
                kill_process(process, Signal::KILL).unwrap();
            }
        });
    }
    assert!(confirmed.load(Ordering::Relaxed) >= 12);
}

/// Sends a request to a daemon that may end at any time.
fn answer_if_alive(dir: &Path, request: &[u8]) -> Option<String> {
    use std::io::Write;
    let mut stream = std::os::unix::net::UnixStream::connect(dir.join("ctl")).ok()?;
    stream.write_all(request).ok()?;
    std::io::read_to_string(stream).ok()
}

/// On a full disk, commands fail and change nothing. This test must run as root, or by
/// tools/dev/enter, because it mounts a file system.
#[test]
fn a_full_disk_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let disk = dir.join("disk");
    fs::create_dir(&disk).unwrap();
    let at = |name: &str| dir.join(name).display().to_string();
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "unchanged", "sh", "-c"])
        .arg("mount -t tmpfs -o size=64k,mode=700 tmpfs \"$0\" && exec \"$@\"")
        .arg(&disk)
        .arg(env!("CARGO_BIN_EXE_virtio-rdmad"))
        .args(["--port", &port(dir, "a", 1), "--ctl", &at("ctl")])
        .args(["--port", &port(dir, "b", 2), "--ready-fd", "1"])
        .arg("--state")
        .arg(disk.join("state"))
        .env_remove("RUST_LOG")
        .stderr(Stdio::piped());
    let daemon = Daemon::start(command);
    done(dir, &["limit", "a", "--rate", "1M"]);
    // The path goes through /proc, because the disk is mounted only in the daemon's namespace.
    let root = format!("/proc/{}/root{}", daemon.0.id(), disk.display());
    let (state, filler) = (
        Path::new(&root).join("state"),
        Path::new(&root).join("filler"),
    );
    fs::write(&filler, vec![0; 1 << 17]).unwrap_err();
    let (before, text) = (ports(dir), fs::read_to_string(&state).unwrap());
    for command in [
        &["limit", "a", "--rate", "2M"][..],
        &["remove-port", "b"],
        &["add-port", &port(dir, "c", 3)],
        &["log-level", "off"],
    ] {
        let error = refused(dir, command);
        assert!(error.contains("No space left on device"), "{error}");
        assert!(error.contains("nothing has changed"), "{error}");
    }
    assert_eq!(ports(dir), before);
    assert_eq!(fs::read_to_string(&state).unwrap(), text);
    assert!(is_served(dir, "b") && !dir.join("c.vfio").exists());
    fs::remove_file(filler).unwrap();
    done(dir, &["remove-port", "b"]);
    assert!(fs::read_to_string(&state).unwrap().contains("removed"));
    let log = log(daemon);
    assert!(!log.contains("refused system call"), "{log}");
}

/// Without the broker that writes the file, commands fail and change nothing.
#[test]
fn a_daemon_without_its_broker_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let daemon = start_kept(dir, &[]);
    let brokers = children(&daemon);
    assert_eq!(brokers.len(), 2);
    for broker in &brokers {
        let status = fs::read_to_string(format!("/proc/{}/status", broker.as_raw_nonzero()));
        let status = status.unwrap();
        assert!(status.contains("NoNewPrivs:\t1\n"), "{status}");
        assert!(status.contains("Seccomp:\t2\n"), "{status}");
        kill_process(*broker, Signal::KILL).unwrap();
    }
    let before = ports(dir);
    let error = refused(dir, &["limit", "a", "--rate", "2M"]);
    assert!(error.contains("the broker has ended"), "{error}");
    assert_eq!(ports(dir), before);
    let answered = answer(dir, b"{\"command\":\"remove-port\",\"port\":\"a\"}\n");
    assert!(answered.contains("nothing has changed"), "{answered}");
}
