// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Start, signals and errors of the daemon.

mod process;

use std::collections::HashMap;
use std::io::Read;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::process::Command;
use std::process::Output;
use std::process::Stdio;

use process::engine;
use process::ready;
use rustix::process::kill_process;
use rustix::process::Pid;
use rustix::process::Signal;
use vdev::F_INDIRECT_DESC;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::feature::Features;

const MAC: &str = "52:54:00:09:00:01";

fn daemon(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"));
    command
        .args(args)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Starts a daemon with one port in `dir`, and waits until it is ready.
fn start(dir: &Path) -> Child {
    let port = port(dir, "a");
    ready(daemon(&["--port", &port, "--ready-fd", "1"]))
}

/// Like [`start`], with a soft and a hard limit of open files, and more arguments.
fn start_limited(dir: &Path, soft: u32, hard: u32, more: &[&str]) -> Child {
    let port = port(dir, "a");
    let daemon = daemon(&[&["--port", &port, "--ready-fd", "1"], more].concat());
    let mut limited = Command::new("sh");
    limited
        .args([
            "-c",
            &format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\""),
        ])
        .arg(daemon.get_program())
        .args(daemon.get_args())
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    ready(limited)
}

fn port(dir: &Path, name: &str) -> String {
    let at = |suffix: &str| dir.join(format!("{name}.{suffix}")).display().to_string();
    format!("{name},vfio={},net={},mac={MAC}", at("vfio"), at("net"))
}

/// Ends a daemon by a signal. Returns whether the daemon exited with success.
fn end(mut child: Child, signal: Signal) -> bool {
    kill_process(Pid::from_child(&child), signal).unwrap();
    child.wait().unwrap().success()
}

/// Runs a daemon that must fail to start, and returns its error message.
fn refused(args: &[&str]) -> String {
    let output = daemon(args).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_port_is_a_function_until_a_signal_ends_it() {
    for signal in [Signal::TERM, Signal::INT] {
        let dir = tempfile::tempdir().unwrap();
        let child = start(dir.path());
        let socket = dir.path().join("a.vfio");
        let mut client = vfio_user::Client::new(&socket).unwrap();
        let mut id = [0; 4];
        client.region_read(7, 0, &mut id).unwrap();
        assert_eq!(id, [0xf4, 0x1a, 0x6a, 0x10]);
        // The doorbell region has 16 MiB.
        assert_eq!(client.region(4).unwrap().size, 16 << 20);
        // The device configuration contains a GUID that is derived from the MAC address.
        let mut guid = [0; 8];
        client.region_read(2, 0x2004, &mut guid).unwrap();
        assert_eq!(guid, [0x50, 0x54, 0, 0xff, 0xfe, 9, 0, 1]);
        assert!(end(child, signal), "ends with a client connected");
        assert!(!socket.exists());
    }
}

// abi: R-90
#[test]
fn writes_to_the_configuration_are_logged() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = start(dir.path());
    let mut client = vfio_user::Client::new(&dir.path().join("a.vfio")).unwrap();
    let (mut before, mut after) = ([0; 8], [0; 8]);
    client.region_read(2, 0x2004, &mut before).unwrap();
    client.region_write(2, 0x2004, &[!0; 4]).unwrap();
    client.region_read(2, 0x2004, &mut after).unwrap();
    assert_eq!(before, after);
    drop(client);
    let stderr = child.stderr.take().unwrap();
    assert!(end(child, Signal::TERM));
    let log = std::io::read_to_string(stderr).unwrap();
    // The test bed searches logs for these words.
    let line = "write of 4 bytes to the device configuration at 0x4";
    assert!(log.contains(line), "{log}");
}

#[test]
fn sockets_and_captures_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (port, status, pcap) = (port(dir.path(), "a"), at("status"), at("pcap"));
    let uplink = format!("unix:{}:{}", at("up"), at("far"));
    let mut args = vec!["--port", &port, "--ready-fd", "1", "--status", &status];
    args.extend(["--uplink", &uplink, "--pcap", &pcap]);
    let modes = |more: &[&str]| {
        let child = ready(daemon(&[&args, more].concat()));
        let mode = |name: &str| {
            let meta = std::fs::symlink_metadata(at(name)).unwrap();
            meta.permissions().mode() & 0o7777
        };
        let modes = ["a.vfio", "a.net", "up", "status", "pcap"].map(mode);
        assert!(end(child, Signal::TERM));
        std::fs::remove_file(&pcap).unwrap();
        modes
    };
    assert_eq!(modes(&[]), [0o600; 5]);
    let shared = modes(&["--socket-mode", "666"]);
    assert_eq!(shared, [0o666, 0o666, 0o600, 0o600, 0o600]);
}

// abi: R-25
#[test]
fn a_withheld_feature_is_not_offered() {
    let dir = tempfile::tempdir().unwrap();
    let port = port(dir.path(), "a");
    let offered = |more: &[&str]| {
        let mut args = vec!["--port", &port, "--ready-fd", "1"];
        args.extend(more);
        let mut child = daemon(&args).spawn().unwrap();
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut [0; 6])
            .unwrap();
        let mut client = vfio_user::Client::new(&dir.path().join("a.vfio")).unwrap();
        let mut features = [0; 4];
        client.region_read(2, 4, &mut features).unwrap();
        let mut queues = [0; 2];
        client.region_read(2, 0x12, &mut queues).unwrap();
        drop(client);
        assert!(end(child, Signal::TERM));
        let features = Features(u32::from_le_bytes(features).into());
        (features, u16::from_le_bytes(queues))
    };
    let (features, queues) = offered(&[]);
    let transport = Features(1 << F_INDIRECT_DESC);
    assert_eq!(features, Features::ALL.union(transport));
    // One control queue, 64 CQs, 64 SQs and 64 RQs: these exist because a driver may decline
    // `RING_ADDR`.
    assert_eq!(queues, 1 + 64 + 2 * 64);
    let (without, same) = offered(&["--withhold", "ring-addr"]);
    let of_rings = [
        Feature::RingAddr,
        Feature::Srq,
        Feature::ResizeCq,
        Feature::CqModeration,
        Feature::CounterSets,
    ];
    assert_eq!(without, features.without(Features::of(&of_rings)));
    assert_eq!(same, queues);
    assert_eq!(
        offered(&["--withhold", "counters", "--withhold", "peers"]).0,
        features.without(Features::of(&[Feature::Counters, Feature::Peers]))
    );
    // The other features among the first 32 bits belong to the transport.
    assert_eq!(offered(&["--withhold", "all"]).0, transport);
}

#[test]
fn a_killed_daemon_can_be_started_again_but_not_a_living_one() {
    let dir = tempfile::tempdir().unwrap();
    let child = start(dir.path());
    assert!(!end(child, Signal::KILL));
    let child = start(dir.path());
    let complaint = refused(&["--port", &port(dir.path(), "a")]);
    assert!(
        complaint.contains("in use by another process"),
        "{complaint}"
    );
    assert!(end(child, Signal::TERM));
}

/// Runs `virtio-rdmad status` for the daemon with this status socket.
fn status(socket: &Path, more: &[&str]) -> Output {
    let socket = socket.display().to_string();
    daemon(&[&["status", "--socket", &socket], more].concat())
        .output()
        .unwrap()
}

#[test]
fn the_status_is_told_in_each_form() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("status");
    let path = socket.display().to_string();
    let port = format!("{},memory=512M", port(dir.path(), "a"));
    let args = ["--port", &port, "--ready-fd", "1", "--status", &path];
    let start = || {
        let mut child = daemon(&args).spawn().unwrap();
        let pipe = child.stdout.as_mut().unwrap();
        pipe.read_exact(&mut [0; 6]).unwrap();
        child
    };
    let child = start();
    let text = status(&socket, &[]);
    assert!(text.status.success());
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains(&format!("port a  {MAC}  link up  no driver\n")),
        "{text}"
    );
    assert!(text.contains("\nworkers "), "{text}");
    assert!(
        text.contains(" of 512M, guest memory 0M of 4096M, in huge pages 0M\n"),
        "{text}"
    );
    let json = status(&socket, &["--json"]);
    assert!(json.status.success());
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let first = &json["ports"][0];
    assert_eq!((&first["name"], &first["mac"]), (&"a".into(), &MAC.into()));
    assert_eq!(
        (&first["link"], &first["driver"]),
        (&true.into(), &false.into())
    );
    assert_eq!(first["qps"], serde_json::json!([]));
    assert_eq!(first["memory"]["limit"], 512 << 20);
    assert!(first["memory"]["used"].as_u64() < Some(64 << 20));
    assert_eq!(first["guest_memory"]["used"], 0);
    assert_eq!(first["guest_memory_in_huge_pages"], 0);
    assert_eq!(first["counters"]["tx_packets"], 0);
    assert_eq!(json["switch"][0]["name"], "a");
    let workers = &json["workers"];
    assert!(workers["count"].as_u64() >= Some(1));
    assert_eq!(workers["longest_turn"], 0, "nothing was done");
    assert_eq!(workers["turn_budget"], 130 << 10);
    assert_eq!(workers["each"][0]["busy_us"], 0);
    let metrics = status(&socket, &["--metrics"]);
    assert!(metrics.status.success());
    let samples = parsed(&metrics.stdout);
    let value = |sample: &str| {
        samples
            .get(sample)
            .unwrap_or_else(|| panic!("no {sample}: {samples:?}"))
    };
    assert_eq!(value("virtio_rdmad_port_link_up{port=a}"), "1.0");
    assert_eq!(value("virtio_rdmad_port_driver_up{port=a}"), "0.0");
    assert_eq!(value("virtio_rdmad_port_objects{kind=qp,port=a}"), "0.0");
    assert_eq!(
        value("virtio_rdmad_port_memory_limit_bytes{port=a}"),
        "536870912.0"
    );
    assert_eq!(value("virtio_rdmad_port_tx_packets_total{port=a}"), "0.0");
    assert_eq!(
        value("virtio_rdmad_worker_busy_seconds_total{worker=0}"),
        "0.0"
    );
    assert_eq!(
        value("virtio_rdmad_switch_dropped_frames_total{link=a}"),
        "0.0"
    );
    assert_eq!(
        value("virtio_rdmad_switch_queue_limit_frames{link=a,queue=engine}"),
        "4096.0"
    );
    assert_eq!(
        value("virtio_rdmad_switch_queue_longest_frames{link=a,queue=socket}"),
        "0.0"
    );
    for handovers in ["steals", "stand_ins"] {
        let name = format!("virtio_rdmad_worker_{handovers}_total{{worker=0}}");
        assert_eq!(value(&name), "0.0");
    }
    assert_eq!(value("virtio_rdmad_turn_budget{}"), "133120.0");
    let build = format!(
        "virtio_rdmad_build_info{{version={}}}",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(value(&build), "1.0");

    // Clients that send nothing or garbage, or don't read the reply, must not block other clients
    // for long.
    let mut nonsense = UnixStream::connect(&socket).unwrap();
    nonsense.write_all(&[b'x'; 4096]).unwrap();
    let silent = UnixStream::connect(&socket).unwrap();
    assert!(status(&socket, &[]).status.success());
    drop((nonsense, silent));
    let second = self::port(dir.path(), "b");
    let other = refused(&["--port", &second, "--status", &path]);
    assert!(other.contains("in use by another process"), "{other}");
    assert!(end(child, Signal::TERM));
    assert!(!socket.exists());
    let nobody = status(&socket, &[]);
    assert!(!nobody.status.success());
    let complaint = String::from_utf8(nobody.stderr).unwrap();
    assert_eq!(complaint.lines().count(), 1, "{complaint}");

    // A killed daemon leaves its socket behind. The next daemon replaces it.
    assert!(!end(start(), Signal::KILL));
    assert!(socket.exists());
    assert!(end(start(), Signal::TERM));
}

/// Parses metrics by Prometheus's own OpenMetrics parser. Returns samples and their values.
fn parsed(metrics: &[u8]) -> HashMap<String, String> {
    const PARSER: &str = "
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families
for family in families(sys.stdin.read()):
    for sample in family.samples:
        labels = ','.join(f'{name}={sample.labels[name]}' for name in sorted(sample.labels))
        print(f'{sample.name}{{{labels}}}', float(sample.value))
";
    let mut parser = Command::new("python3")
        .args(["-c", PARSER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    parser.stdin.take().unwrap().write_all(metrics).unwrap();
    let output = parser.wait_with_output().unwrap();
    assert!(output.status.success());
    let lines = String::from_utf8(output.stdout).unwrap();
    let sample = |line: &str| {
        line.rsplit_once(' ')
            .map(|(name, value)| (name.into(), value.into()))
    };
    lines.lines().filter_map(sample).collect()
}

/// Number of open file descriptors of a daemon that are below `limit`. The daemon may also have
/// inherited higher ones.
fn descriptors(child: &Child, limit: usize) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", engine(child))).unwrap();
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<usize>().ok();
    let numbers = open.filter_map(|entry| number(entry.unwrap()));
    numbers.filter(|number| *number < limit).count()
}

/// Samples the state of a daemon's thread 100 times. Returns the number of samples in which the
/// thread sleeps.
fn sleeps(child: &Child, thread: &str) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", engine(child))).unwrap();
    let stats = tasks.map(|task| task.unwrap().path().join("stat"));
    let of_thread = |stat: &std::path::PathBuf| {
        let text = std::fs::read_to_string(stat).unwrap();
        text.contains(&format!("({thread})"))
    };
    let stat = stats.into_iter().find(of_thread).unwrap();
    let look = |_: &i32| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        std::fs::read_to_string(&stat).unwrap().contains(") S ")
    };
    (0..100).filter(look).count()
}

#[test]
fn the_limit_on_open_files_is_raised_or_said_to_be_low() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = start_limited(dir.path(), 64, 1000, &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", engine(&child))).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let words: Vec<_> = line.unwrap().split_whitespace().collect();
    assert_eq!(words[3..5], ["1000", "1000"]);
    let mut log = child.stderr.take().unwrap();
    assert!(end(child, Signal::TERM));
    let mut text = String::new();
    log.read_to_string(&mut text).unwrap();
    assert!(!text.contains("open files"), "{text}");

    let mut child = start_limited(dir.path(), 64, 64, &[]);
    let mut log = child.stderr.take().unwrap();
    assert!(end(child, Signal::TERM));
    text.clear();
    log.read_to_string(&mut text).unwrap();
    assert!(text.contains("limit on open files is 64"), "{text}");

    // Ports that are added later count too.
    let ctl = dir.path().join("ctl").display().to_string();
    let more = ["--ctl", &ctl, "--spare-ports", "4"];
    let mut child = start_limited(dir.path(), 64, 1000, &more);
    let mut log = child.stderr.take().unwrap();
    assert!(end(child, Signal::TERM));
    text.clear();
    log.read_to_string(&mut text).unwrap();
    assert!(text.contains("is 1000, 5 ports may need"), "{text}");
}

#[test]
fn without_descriptors_clients_wait_and_nothing_spins() {
    const LIMIT: usize = 64;
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("a.vfio");
    let child = start_limited(dir.path(), LIMIT as u32, LIMIT as u32, &[]);
    let mut first = vfio_user::Client::new(&socket).unwrap();
    let mut iova = 0;
    while descriptors(&child, LIMIT) < LIMIT {
        let memory = dma::testing::guest_memory(4096).unwrap();
        first
            .dma_map(0, iova, 4096, std::os::fd::AsRawFd::as_raw_fd(&memory))
            .unwrap();
        // `dma_map` does not wait for its reply. The reply to this read shows that the daemon has
        // executed the command.
        first.region_read(7, 0, &mut [0; 4]).unwrap();
        iova += 4096;
    }
    let second = UnixStream::connect(&socket).unwrap();
    let sleeps = sleeps(&child, "a-socket");
    assert!(sleeps > 50, "{sleeps} of 100");
    drop(first);
    drop(second);
    let mut third = vfio_user::Client::new(&socket).unwrap();
    third.region_read(7, 0, &mut [0; 4]).unwrap();
    drop(third);
    assert!(end(child, Signal::TERM));
}

/// Encodes posted writes of values to doorbell pages.
fn doorbells(values: impl Iterator<Item = (u64, u32)>) -> Vec<u8> {
    let mut messages = Vec::new();
    for (page, value) in values {
        // Header of a posted REGION_WRITE (ID and command, length, flags, error), followed by
        // offset, region, length and data.
        for word in [10 << 16, 36, 0x10, 0] {
            messages.extend_from_slice(&u32::to_ne_bytes(word));
        }
        messages.extend_from_slice(&(4096 * page).to_ne_bytes());
        for word in [4, 4, value] {
            messages.extend_from_slice(&word.to_ne_bytes());
        }
    }
    messages
}

fn resident_kib(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", engine(child))).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

// abi
#[test]
fn a_storm_of_doorbells_for_queues_that_are_not_there_costs_no_memory() {
    const ROUNDS: u32 = 300;
    let dir = tempfile::tempdir().unwrap();
    let child = start(dir.path());
    let mut storm = UnixStream::connect(dir.path().join("a.vfio")).unwrap();
    let batch = |seed: u32| {
        doorbells((0..1000u32).map(move |i| {
            (
                u64::from(i) % 4096,
                (seed * 1000 + i).wrapping_mul(2_654_435_761),
            )
        }))
    };
    storm.write_all(&batch(0)).unwrap();
    let before = resident_kib(&child);
    for round in 1..ROUNDS {
        storm.write_all(&batch(round)).unwrap();
    }
    let after = resident_kib(&child);
    drop(storm);
    assert!(
        after < before + 4096,
        "{before} KiB before, {after} KiB after"
    );
    // The function serves the next client.
    let mut client = vfio_user::Client::new(&dir.path().join("a.vfio")).unwrap();
    client.region_read(7, 0, &mut [0; 4]).unwrap();
    drop(client);
    assert!(end(child, Signal::TERM));
}

/// Two ends of a socket pair: the reader, and a writer for standard error whose buffer is full. A
/// write blocks until the reader is read.
fn full() -> (UnixStream, Stdio) {
    let (reader, mut writer) = UnixStream::pair().unwrap();
    writer.set_nonblocking(true).unwrap();
    while writer.write(&[b'.'; 4096]).is_ok() || writer.write(b".").is_ok() {}
    writer.set_nonblocking(false).unwrap();
    (reader, OwnedFd::from(writer).into())
}

/// A command that runs the daemon by timeout(1), so that the test fails if the daemon hangs.
fn timely(args: &[&str], stderr: Stdio) -> Command {
    let daemon = daemon(args);
    let mut timely = Command::new("timeout");
    timely
        .args(["--foreground", "--signal=KILL", "100"])
        .arg(daemon.get_program())
        .args(daemon.get_args())
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr);
    timely
}

#[test]
fn a_log_that_nobody_reads_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("status");
    let (port, path) = (port(dir.path(), "a"), socket.display().to_string());
    let args = ["--port", &port, "--ready-fd", "1", "--status", &path];
    let (unread, stderr) = full();
    let child = ready(timely(&args, stderr));
    let mut client = vfio_user::Client::new(&dir.path().join("a.vfio")).unwrap();
    client.region_write(2, 0x2004, &[!0; 4]).unwrap();
    drop(client);
    assert!(status(&socket, &[]).status.success());
    assert!(end(child, Signal::TERM));
    drop(unread);

    // A daemon that can't start must end even if its standard error is not read.
    let (_unread, stderr) = full();
    let port = format!("a,vfio=/nonexistent/socket,mac={MAC}");
    let status = timely(&["--port", &port], stderr).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn a_log_that_is_read_late_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (reader, stderr) = full();
    let args = ["--port", &port(dir.path(), "a"), "--ready-fd", "1"];
    let child = ready(timely(&args, stderr));
    let reader = std::thread::spawn(|| std::io::read_to_string(reader).unwrap());
    assert!(end(child, Signal::TERM));
    let log = reader.join().unwrap();
    assert!(log.contains(" ready\n"), "{log}");
    assert!(log.ends_with("ends by signal 15\n"), "{log}");
}

#[test]
fn what_can_not_work_is_said_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other");
    let _listener = UnixListener::bind(&other).unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let long = dir.path().join("x".repeat(120));
    for (path, reason) in [
        (&other, "in use by another process"),
        (&file, "is not a socket"),
        (&long, "longer than 107 bytes"),
    ] {
        let port = format!("a,vfio={},mac={MAC}", path.display());
        let complaint = refused(&["--port", &port]);
        assert!(complaint.contains(reason), "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
    }
    let port = port(dir.path(), "a");
    let complaint = refused(&["--port", &port, "--pcap", "/nonexistent/file"]);
    assert!(complaint.contains("/nonexistent/file"), "{complaint}");
    let taken = file.display().to_string();
    let complaint = refused(&["--port", &port, "--pcap", &taken]);
    assert!(complaint.contains("it exists; remove it"), "{complaint}");
    let complaint = refused(&["--port", &port, "--ready-fd", "77"]);
    assert!(complaint.contains("file descriptor 77"), "{complaint}");
    let complaint = refused(&["--port", &port, "--port", &port]);
    assert!(
        complaint.contains("two ports have the name a"),
        "{complaint}"
    );
    let complaint = refused(&[]);
    assert!(complaint.contains("--port"), "{complaint}");
}
