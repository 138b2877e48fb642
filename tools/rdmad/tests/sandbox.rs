// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Confinement of the daemon's threads, and the work that they can still do.

use std::collections::BTreeMap;
use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::{chown, MetadataExt};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

mod process;
use process::Daemon;
use testkit::{wait_until, Netdev};

/// How long a test waits for an expected event.
const PATIENCE: Duration = Duration::from_secs(20);

/// Starts a daemon with threads of all kinds, including two workers.
fn start(dir: &Path, more: &[&str]) -> Daemon {
    start_with(dir, &[&["--workers", "2"], more].concat())
}

/// Starts a daemon with threads of all kinds.
fn start_with(dir: &Path, more: &[&str]) -> Daemon {
    start_port(dir, "52:54:00:09:00:01", more)
}

/// Like [`start_with`], with the MAC address `mac` of the port.
fn start_port(dir: &Path, mac: &str, more: &[&str]) -> Daemon {
    let at = |name: &str| dir.join(name).display().to_string();
    let net = format!("net={}", at("net"));
    let port = format!("a,vfio={},{net},mac={mac}", at("vfio"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"));
    command
        .args(["--port", &port, "--ready-fd", "1"])
        .args(["--status", &at("status"), "--pcap", &at("pcap")])
        .args(["--ctl", &at("ctl")])
        .args(more);
    Daemon::start(command)
}

/// The fields of /proc/PID/task/TID/status of all threads, by the thread's name.
fn threads(daemon: &Daemon) -> BTreeMap<String, BTreeMap<String, String>> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.engine())).unwrap();
    let fields = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("status")).unwrap();
        let pairs = text.lines().filter_map(|line| line.split_once(":\t"));
        let fields = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
        fields.collect::<BTreeMap<_, _>>()
    };
    let fields = tasks.map(|task| fields(task.unwrap()));
    fields
        .map(|fields| (fields["Name"].clone(), fields))
        .collect()
}

#[test]
fn every_thread_is_confined() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), &[]);
    let threads = threads(&daemon);
    let names: Vec<_> = threads.keys().map(String::as_str).collect();
    let expected = [
        "a-service",
        "a-socket",
        "capture",
        "control",
        "log",
        "pcap",
        // The next two are spare threads, for ports that are added later.
        "service",
        "socket",
        "status",
        "virtio-rdmad",
        "vswitch",
        "worker-0",
        "worker-1",
    ];
    assert_eq!(names, expected);
    for (name, fields) in threads {
        assert_eq!(fields["NoNewPrivs"], "1", "{name}");
        // Mode 2 is a filter. Of the two filters, one forbids the system calls that no thread
        // needs, and the other allows those that threads of this kind need.
        assert_eq!(fields["Seccomp"], "2", "{name}");
        assert_eq!(fields["Seccomp_filters"], "2", "{name}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            let capabilities = u64::from_str_radix(&fields[set], 16).unwrap();
            assert_eq!(capabilities, 0, "{name}: {set}");
        }
    }
}

#[test]
fn a_worker_that_owns_a_cpu_is_alone_there() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start_with(dir.path(), &["--dedicate", "1"]);
    let mut cpus = threads(&daemon).into_iter().map(|(name, fields)| {
        let mask = fields["Cpus_allowed"].replace(',', "");
        (name, u128::from_str_radix(&mask, 16).unwrap())
    });
    let (workers, others): (Vec<_>, Vec<_>) =
        { &mut cpus }.partition(|(name, _)| name == "worker-0");
    let [(_, own)] = workers[..] else {
        panic!("{workers:?}");
    };
    assert_eq!(own.count_ones(), 1);
    assert!(!others.is_empty());
    for (name, cpus) in others {
        assert_eq!(cpus & own, 0, "{name}");
        assert_ne!(cpus, 0, "{name}");
    }
}

#[test]
fn limits_are_lowered() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), &["--memory", "64M", "--spare-ports", "3"]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.engine())).unwrap();
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name));
        let words = line.unwrap().split_whitespace().take(2);
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(limit("Max processes"), ["0", "0"]);
    // The limit is twice the sum of 512 MiB for the daemon itself, and of 64 MiB for the port and
    // for each spare port.
    let data = ((2 * (4 * 64 + 512)) << 20).to_string();
    assert_eq!(limit("Max data size"), [data.as_str(), data.as_str()]);
    let files = limit("Max open files");
    assert_eq!(files[0], files[1]);
}

/// Process ID of a daemon's broker, its only child.
fn broker(daemon: &Daemon) -> u32 {
    let id = daemon.engine();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    children.trim().parse().unwrap()
}

/// A core dump would hold the memory of all VMs. A process without core dumps also denies its
/// memory to other processes of its user: files about it in /proc belong to root.
#[test]
fn no_core_dump_shows_the_memory_of_vms() {
    const USER: u32 = 1;
    let dir = tempfile::tempdir().unwrap();
    chown(dir.path(), Some(USER), Some(USER)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"));
    let socket = dir.path().join("vfio");
    let port = format!("a,vfio={},mac=52:54:00:09:00:01", socket.display());
    command.args(["--port", &port]).uid(USER).gid(USER);
    let daemon = Daemon(command.spawn().unwrap());
    wait_until("the daemon listens", || socket.exists());
    for id in [daemon.engine(), broker(&daemon)] {
        let owner = |file: &str| fs::metadata(format!("/proc/{id}/{file}")).unwrap().uid();
        assert_eq!(owner("task"), USER);
        wait_until("dumps are forbidden", || owner("maps") == 0);
    }
}

#[test]
fn the_broker_is_confined_and_ends_with_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), &[]);
    let broker = format!("/proc/{}/status", broker(&daemon));
    let status = fs::read_to_string(&broker).unwrap();
    assert!(status.contains("NoNewPrivs:\t1\n"), "{status}");
    assert!(status.contains("Seccomp:\t2\n"), "{status}");
    for set in ["CapPrm", "CapEff", "CapAmb"] {
        let none = format!("{set}:\t0000000000000000\n");
        assert!(status.contains(&none), "{status}");
    }
    // A process that has ended but was not waited for has no field `VmSize`.
    let is_alive = |path: &str| fs::read_to_string(path).is_ok_and(|text| text.contains("VmSize"));
    assert!(is_alive(&broker));
    drop(daemon);
    wait_until("the end of the broker", || !is_alive(&broker));
}

/// A restarted monitor connects again to the daemon, in its sandbox.
#[test]
fn a_monitor_that_comes_anew_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let uplink = dir.path().join("up").display().to_string();
    let far = dir.path().join("far");
    let uplink = format!("unix:{uplink}:{}", far.display());
    let far = UnixDatagram::bind(far).unwrap();
    let _daemon = start(dir.path(), &["--uplink", &uplink]);
    let broadcast = [[0xff; 6], [2; 6], [8, 0, 0, 0, 0, 0]].concat();
    for _ in 0..2 {
        let monitor = Netdev::at(&dir.path().join("net"));
        let own = [[0xff; 6], [0x52, 0x54, 0, 9, 0, 1], [8, 0, 0, 0, 0, 0]].concat();
        monitor.send(&own);
        // The daemon also sends greetings to the far end.
        let mut received = [0; 100];
        while far.recv(&mut received).unwrap() != own.len() || !received.starts_with(&own) {}
        far.send_to(&broadcast, dir.path().join("up")).unwrap();
        assert_eq!(monitor.receive(), broadcast);
    }
}

/// A UDP uplink transfers consecutive frames of the same length in both directions. The kernel
/// sends and receives these frames as one packet.
#[test]
fn udp_uplinks_are_served() {
    const FRAMES: usize = 40;
    let dir = tempfile::tempdir().unwrap();
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    // An address with a UDP port that is free now.
    let local = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = local.local_addr().unwrap();
    drop(local);
    let uplink = format!("udp:{at}:{}", peer.local_addr().unwrap());
    let _daemon = start(dir.path(), &["--uplink", &uplink]);
    let monitor = Netdev::at(&dir.path().join("net"));
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let frame = |from: [u8; 6]| [&[0xff; 6], &from, &[8, 0][..], &[0; 1000]].concat();
    let (out, back) = (frame([0x52, 0x54, 0, 9, 0, 1]), frame([2; 6]));
    let mut received = [0; 2000];
    for _ in 0..FRAMES {
        monitor.send(&out);
    }
    for _ in 0..FRAMES {
        assert_eq!(peer.recv(&mut received).unwrap(), out.len());
    }
    for _ in 0..FRAMES {
        peer.send_to(&back, at).unwrap();
        assert_eq!(monitor.receive(), back);
    }
}

/// Two daemons that have greeted each other send batches. For these, the sandbox must allow other
/// system calls than for single frames.
#[test]
fn unix_uplinks_between_daemons_are_served() {
    const LEFT: [u8; 6] = [0x52, 0x54, 0, 9, 0, 1];
    const RIGHT: [u8; 6] = [0x52, 0x54, 0, 9, 0, 2];
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [left, right] = dirs.each_ref().map(|dir| dir.path());
    let [near, far] = [left, right].map(|dir| dir.join("up").display().to_string());
    let uplinks = [format!("unix:{near}:{far}"), format!("unix:{far}:{near}")];
    let _left = start(left, &["--uplink", &uplinks[0]]);
    let _right = start_port(right, "52:54:00:09:00:02", &["--uplink", &uplinks[1]]);
    let monitors = [left, right].map(|dir| Netdev::at(&dir.join("net")));
    let cross = |from: usize, to: usize, dst: [u8; 6], src: [u8; 6]| {
        let frame = [&dst, &src, &[8, 0][..], &[7; 1000]].concat();
        monitors[from].send(&frame);
        // The first frame may have arrived several times.
        while monitors[to].receive() != frame {}
    };
    // Frames that arrive before a daemon has connected to the other one are lost.
    let first = [&[0xff; 6], &RIGHT, &[8, 0][..], &[7; 1000]].concat();
    monitors[1].meet(&monitors[0], &first);
    for _ in 0..3 {
        cross(0, 1, RIGHT, LEFT);
        cross(1, 0, LEFT, RIGHT);
    }
}

#[test]
fn without_the_sandbox_no_thread_is_confined() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = start(dir.path(), &["--sandbox", "none"]);
    for (name, fields) in threads(&daemon) {
        assert_eq!(fields["NoNewPrivs"], "0", "{name}");
        assert_eq!(fields["Seccomp"], "0", "{name}");
    }
}
