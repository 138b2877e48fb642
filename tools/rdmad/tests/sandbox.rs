// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The program from outside: what its threads may still do.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;

/// A daemon with all kinds of threads, ended with the test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(dir: &Path, more: &[&str]) -> Daemon {
    let at = |name: &str| dir.join(name).display().to_string();
    let net = format!("net={}:{}", at("net"), at("qemu"));
    let port = format!("a,vfio={},{net},mac=52:54:00:09:00:01", at("vfio"));
    let mut child = Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"))
        .args(["--port", &port, "--ready-fd", "1"])
        .args(["--status", &at("status"), "--pcap", &at("pcap")])
        .args(["--workers", "2"])
        .args(more)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let ready = child.stdout.as_mut().unwrap();
    ready.read_exact(&mut [0; 6]).unwrap();
    Daemon(child)
}

/// The fields of /proc/PID/task/TID/status of all threads, by the thread's name.
fn threads(daemon: &Daemon) -> BTreeMap<String, BTreeMap<String, String>> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.0.id())).unwrap();
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
        "log",
        "pcap",
        "status",
        "virtio-rdmad",
        "vswitch",
        "worker-0",
        "worker-1",
    ];
    assert_eq!(names, expected);
    for (name, fields) in threads {
        assert_eq!(fields["NoNewPrivs"], "1", "{name}");
        // 2: a filter. One forbids for ever, the other is the list of the thread's kind.
        assert_eq!(fields["Seccomp"], "2", "{name}");
        assert_eq!(fields["Seccomp_filters"], "2", "{name}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            let capabilities = u64::from_str_radix(&fields[set], 16).unwrap();
            assert_eq!(capabilities, 0, "{name}: {set}");
        }
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
