// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Control commands to the daemon, which runs in its sandbox.

mod ctl;
mod process;

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use ctl::{answer, done, log, port, refused, start};
use rustix::net::{send, socketpair, AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::process::getgid;
use sockets::passed;
use testkit::wait_until;

#[test]
fn ports_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), &["--port", &port(dir.path(), "b", 2)]);
    let text = done(dir.path(), &["ports"]);
    let names: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(names, ["a", "b"], "{text}");
    assert!(text.contains("52:54:00:09:00:02"), "{text}");
    let json = done(dir.path(), &["--json", "ports"]);
    assert!(json.starts_with("{\"ports\":[{\"name\":\"a\","), "{json}");
    assert!(!log(daemon).contains("refused system call"));
}

#[test]
fn workers_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path(), &["--workers", "2"]);
    wait_until("sleep of the workers", || {
        let text = done(dir.path(), &["workers"]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        for (number, line) in lines.iter().enumerate() {
            assert!(line.starts_with(&format!("worker {number}: ")), "{text}");
        }
        lines.iter().all(|line| line.contains(": sleeps, "))
    });
    let json = done(dir.path(), &["--json", "workers"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    for number in 0..2 {
        let worker = &json["workers"][number];
        assert_eq!(worker["worker"], number, "{json}");
        assert_eq!(worker["does"], "sleeps", "{json}");
        assert_eq!(worker["waiting"], serde_json::json!([]), "{json}");
    }
}

/// Rules of scenarios come from a file or a name, for one port or for all, and change while the
/// daemon runs.
#[test]
fn scenarios_are_told_and_change() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("scenario");
    let file = file.to_str().unwrap();
    fs::write(
        file,
        "# Of one port.\nlate: send SEND port b nth 3 then fail REM_OP_ERR\n",
    )
    .unwrap();
    let more = ["--port", &port(dir.path(), "b", 2), "--chaos", file];
    let daemon = start(dir.path(), &more);
    assert_eq!(done(dir.path(), &["chaos", "a"]), "");
    let late = "late: send SEND port b nth 3 then fail REM_OP_ERR: applied to 0 of 0\n";
    assert_eq!(done(dir.path(), &["chaos", "b"]), late);
    done(dir.path(), &["chaos", "a", "--add", "slow-commands"]);
    let slow = "slow-commands: command any then wait 50ms: applied to 0 of 0\n";
    assert_eq!(done(dir.path(), &["chaos", "a"]), slow);
    let json = done(dir.path(), &["--json", "chaos", "a"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["rules"][0]["applied"], 0, "{json}");
    done(
        dir.path(),
        &["chaos", "b", "--add", "receive nth 2 then withhold"],
    );
    done(dir.path(), &["chaos", "b", "--remove", "late"]);
    let left = "line-1: receive nth 2 then withhold: applied to 0 of 0\n";
    assert_eq!(done(dir.path(), &["chaos", "b"]), left);
    for (change, told) in [
        (
            ["--add", "slow-commands"],
            "there is a rule \"slow-commands\" already",
        ),
        (["--add", file], "there is no rule for port a"),
        (
            ["--add", "receive twice"],
            "line 1, column 9: \"twice\" is not",
        ),
        (["--add", "/no/such"], "no file that can be read"),
        (
            ["--add", "device then lack srq"],
            "rule \"line-1\" is about a device that begins",
        ),
        (["--remove", "late"], "there is no rule \"late\""),
    ] {
        let error = refused(dir.path(), &[&["chaos", "a"], &change[..]].concat());
        assert!(error.contains(told), "{error}");
    }
    assert!(refused(dir.path(), &["chaos", "c"]).contains("there is no port \"c\""));
    assert!(!log(daemon).contains("refused system call"));
}

#[test]
fn the_level_of_the_log_changes() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), &[]);
    assert_eq!(done(dir.path(), &["log-level", "warn"]), "");
    // At this level, connections are not logged.
    drop(UnixStream::connect(dir.path().join("a.vfio")).unwrap());
    let error = refused(dir.path(), &["log-level", "loud"]);
    assert!(error.contains("\"loud\" is not a log level"), "{error}");
    done(dir.path(), &["log-level", "info"]);
    let log = log(daemon);
    assert!(log.contains("ready"), "{log}");
    assert!(log.contains("the log level is info"), "{log}");
    assert!(!log.contains("the log level is warn"), "{log}");
}

#[test]
fn bad_requests_get_a_sentence_and_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path(), &[]);
    let long = vec![b' '; 5000];
    for (request, complaint) in [
        (&b"\n"[..], "the command is malformed"),
        (b"ports\n", "the command is malformed"),
        (b"{\"command\":\"fly\"}\n", "unknown variant"),
        (b"{\"command\":\"log-level\"}\n", "missing field"),
        (b"{\"command\":\"ports\",\"more\":1}\n", "unknown field"),
        (b"\xff\xff\n", "the command is malformed"),
        (&long, "longer than 4096 bytes"),
    ] {
        let answer = answer(dir.path(), request);
        assert!(answer.starts_with("{\"error\":\""), "{answer}");
        assert!(answer.contains(complaint), "{answer}");
        assert_eq!(answer.lines().count(), 1);
    }
    let ports = answer(dir.path(), b"{\"command\":\"ports\"}");
    assert!(ports.starts_with("{\"ports\":"), "{ports}");
}

#[test]
fn the_socket_is_private_unless_a_group_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let mode = || {
        let meta = fs::symlink_metadata(dir.path().join("ctl")).unwrap();
        meta.permissions().mode() & 0o777
    };
    let daemon = start(dir.path(), &["--socket-mode", "666"]);
    assert_eq!(mode(), 0o600, "the modes of other sockets do not count");
    log(daemon);
    let group = getgid().as_raw().to_string();
    let _daemon = start(dir.path(), &["--ctl-group", &group]);
    assert_eq!(mode(), 0o660);
}

#[test]
fn limits_change_while_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let status = dir.path().join("status").display().to_string();
    let _daemon = start(dir.path(), &["--status", &status]);
    let limits = || {
        let text = done(dir.path(), &["--json", "ports"]);
        let at = text.find("\"rate\"").unwrap();
        text[at..].trim_end_matches("}]}\n").to_owned()
    };
    assert_eq!(limits(), "\"rate\":\"none\",\"messages\":\"none\"");
    let both = ["limit", "a", "--rate", "100M:64K", "--messages", "5000"];
    done(dir.path(), &both);
    let limited = "\"rate\":\"104857600:65536\",\"messages\":\"5000\"";
    assert_eq!(limits(), limited);
    let metrics = Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"))
        .args(["status", "--metrics", "--socket", &status])
        .output()
        .unwrap();
    let metrics = String::from_utf8(metrics.stdout).unwrap();
    let limit = "virtio_rdmad_port_limit{port=\"a\",kind=\"bytes\"} 104857600";
    assert!(metrics.contains(limit), "{metrics}");
    let throttled = "virtio_rdmad_port_throttled_seconds_total{port=\"a\",kind=\"messages\"} 0.0";
    assert!(metrics.contains(throttled), "{metrics}");
    for (command, complaint) in [
        (&["limit", "b", "--rate", "1M"][..], "no port \"b\""),
        (&["limit", "a", "--rate", "0"], "lets nothing through"),
        (&["limit", "a", "--messages", "1K"], "not a number"),
        (&["limit", "a"], "required"),
    ] {
        let error = refused(dir.path(), command);
        assert!(error.contains(complaint), "{error}");
    }
    assert_eq!(limits(), limited, "what is refused changes nothing");
    done(dir.path(), &["limit", "a", "--rate", "none"]);
    assert_eq!(limits(), "\"rate\":\"none\",\"messages\":\"5000\"");
}

/// Other users may not control the daemon, even if the socket's mode allows them to connect. This
/// test must run as root or by tools/dev/enter, because it changes its user.
#[test]
fn another_user_is_refused_whatever_the_mode() {
    const OTHER: u32 = 1;
    let dir = tempfile::tempdir().unwrap();
    let _daemon = start(dir.path(), &[]);
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    open(dir.path(), 0o755);
    let as_other = || {
        let output = Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"))
            .args(["ctl", "--socket"])
            .arg(dir.path().join("ctl"))
            .arg("ports")
            .uid(OTHER)
            .gid(OTHER)
            .output()
            .unwrap();
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let error = as_other();
    assert!(error.contains("Permission denied"), "{error}");
    open(&dir.path().join("ctl"), 0o666);
    let error = as_other();
    assert!(
        error.contains("user 1 may not control the daemon"),
        "{error}"
    );
    assert!(done(dir.path(), &["ports"]).starts_with('a'));
}

/// Adds a port with these sockets and a broker that reads no requests. Returns the reply, and the
/// other end of the broker's socket.
fn add_with_deaf_broker(dir: &Path, port: &str, sockets: &[OwnedFd]) -> (String, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    let (broker, far) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    while send(&broker, &[0; 64], SendFlags::DONTWAIT).is_ok() {}
    let mut client = UnixStream::connect(dir.join("ctl")).unwrap();
    let request = format!("{{\"command\":\"add-port\",\"port\":{port:?}}}\n");
    let fds: Vec<_> = [&broker]
        .into_iter()
        .chain(sockets)
        .map(AsFd::as_fd)
        .collect();
    passed::send(&client, request.as_bytes(), &fds).unwrap();
    let mut reply = String::new();
    client.read_to_string(&mut reply).unwrap();
    (reply, far)
}

/// A client passes a broker that reads no requests. Neither refusing the port, nor giving up the
/// port, nor removing it, nor the end of the daemon waits for this broker indefinitely.
#[test]
fn a_broker_that_reads_nothing_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let daemon = start(dir, &[]);
    let listener = |name: &str| OwnedFd::from(UnixListener::bind(dir.join(name)).unwrap());
    let datagrams = || OwnedFd::from(UnixDatagram::unbound().unwrap());
    let net = |name: &str| format!(",net={}", dir.join(name).display());

    let with_net = port(dir, "b", 2) + &net("b.net");
    let (reply, first) = add_with_deaf_broker(dir, &with_net, &[listener("b.vfio"), datagrams()]);
    assert!(reply.contains("is of another kind"), "{reply}");
    let greedy = port(dir, "c", 3) + ",memory=1T";
    let (reply, second) = add_with_deaf_broker(dir, &greedy, &[listener("c.vfio")]);
    assert!(reply.contains("set aside"), "{reply}");
    let elsewhere = [listener("elsewhere")];
    let (reply, third) = add_with_deaf_broker(dir, &port(dir, "d", 4), &elsewhere);
    assert!(reply.contains("not bound to this path"), "{reply}");
    let added: Vec<_> = [("e", 5), ("f", 6)]
        .into_iter()
        .map(|(name, number)| {
            let sockets = [listener(&format!("{name}.vfio"))];
            let (reply, far) = add_with_deaf_broker(dir, &port(dir, name, number), &sockets);
            assert_eq!(reply, "\"done\"\n");
            far
        })
        .collect();
    done(dir, &["remove-port", "e"]);
    let ports = done(dir, &["ports"]);
    let names: Vec<_> = ports.lines().map(|line| &line[..1]).collect();
    assert_eq!(names, ["a", "f"]);
    assert!(!log(daemon).contains("refused system call"));
    drop((first, second, third, added));
}
