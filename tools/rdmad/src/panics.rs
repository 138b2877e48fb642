// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tests of panics: a panic outside of contained work for a port ends the process, whichever thread
//! panics.

use std::env;
use std::io::{self, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Output};
use std::thread;

use roce::headers::{Bth, Headers, RcRequest, SendPart};
use roce::net::{Addresses, Mac};
use roce::packet::{build, frame_size};
use roce::work::With;
use roce::{Path, Psn};
use sandbox::{Kind, Parts};
use sockets::Access;
use virtio_rdma_abi::number::Qpn;
use vswitch::pcap::PcapWriter;
use vswitch::{Config, DatagramPath, PortConfig, Switch, Uplink};

use crate::line_server::LineServer;
use crate::log::Log;
use crate::status::{self, Form, Status};

/// MAC address of the port.
const MAC: Mac = [2, 0, 0, 0, 0, 1];

/// Runs the ignored test `name` of this module in a separate process, which must end by the panic
/// that the test causes.
fn ends(name: &str) {
    let output = panicked(name);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(101), "{name}: {told}");
    assert!(told.contains("planted"), "{name}: {told}");
    assert!(told.contains("the process ends"), "{name}: {told}");
}

/// Runs the ignored test `name` of this module in a separate process, and returns its output.
fn panicked(name: &str) -> Output {
    Command::new(env::current_exe().unwrap())
        .args([
            &format!("panics::{name}"),
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .output()
        .unwrap()
}

#[test]
fn a_panic_for_all_ports_ends_the_process() {
    ends("of_the_status_thread");
    ends("of_the_switch_thread");
    ends("of_the_capture_thread");
    ends("of_any_thread");
}

#[test]
#[ignore = "ends its process"]
fn of_the_status_thread() {
    sandbox::end_process_on_panic(io::stderr);
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("status");
    let status = Status(|_| panic!("planted"));
    let _server = LineServer::start(&socket, &Access::default(), status).unwrap();
    // The process ends before the status thread closes the connection.
    let _ = status::show(&socket, Form::Text, &mut Vec::new());
}

/// The switch's thread panics in the callback by which it notifies an engine of frames.
#[test]
#[ignore = "ends its process"]
fn of_the_switch_thread() {
    sandbox::end_process_on_panic(io::stderr);
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let far = UnixDatagram::bind(path("far")).unwrap();
    let (_switch, engines) = Switch::start(Config {
        ports: vec![PortConfig {
            mac: MAC,
            ..PortConfig::default()
        }],
        uplinks: vec![Uplink::Unix(DatagramPath {
            local: path("near"),
            remote: path("far"),
        })
        .into()],
        ..Config::default()
    })
    .unwrap();
    engines[0].on_ready(|_| panic!("planted"));
    far.send_to(&packet(), path("near")).unwrap();
    loop {
        thread::park();
    }
}

/// A RoCE packet for the engine of [`MAC`].
fn packet() -> Vec<u8> {
    let addresses = Addresses::V4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let path = Path::new([2, 0, 0, 0, 1, 1], MAC, addresses);
    let send = RcRequest::from(SendPart::Only(With::Nothing));
    let headers = Headers::new(Bth::new(0xffff, Qpn::new(17), Psn::new(0)), send);
    let mut frame = vec![0; frame_size(&path, &headers.body, 0)];
    build(&mut frame, &path, 0, &headers, 0, |_| Ok::<_, ()>(())).unwrap();
    frame
}

/// An output whose writes panic.
struct Bad;

impl Write for Bad {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        panic!("planted")
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
#[ignore = "ends its process"]
fn of_the_capture_thread() {
    sandbox::end_process_on_panic(io::stderr);
    let _capture = PcapWriter::new(Bad).unwrap();
    loop {
        thread::park();
    }
}

#[test]
#[ignore = "ends its process"]
fn of_any_thread() {
    let log = Log::start(io::stderr()).unwrap();
    sandbox::end_process_on_panic(move || log.clone());
    let contained = thread::spawn(|| sandbox::contain::<()>(|| panic!("in the work of a port")));
    assert!(matches!(contained.join(), Ok(Err(_))));
    let _ = thread::spawn(|| panic!("planted")).join();
}

/// The handling of a panic, with its backtrace, makes only system calls that a confined
/// thread may make.
#[test]
fn panics_reach_as_far_in_the_sandbox() {
    let output = panicked("contained_in_every_kind_of_thread");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(told.matches("planted").count(), Kind::ALL.len() - 1);
    // The backtrace of each panic names the work that panicked.
    let names = told.matches("contained_in_every_kind_of_thread::{{closure}}");
    assert!(names.count() >= Kind::ALL.len() - 1, "{told}");
    ends("of_a_confined_thread");
}

#[test]
#[ignore = "confines its process"]
fn contained_in_every_kind_of_thread() {
    sandbox::end_process_on_panic(io::stderr);
    sandbox::read_symbols();
    sandbox::turn_on(Parts::default()).unwrap();
    // The first thread does not work for ports.
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Main) {
        let work = || assert!(sandbox::contain::<()>(|| panic!("planted")).is_err());
        sandbox::spawn(kind, kind.name(), work)
            .unwrap()
            .join()
            .unwrap();
    }
}

#[test]
#[ignore = "ends its process"]
fn of_a_confined_thread() {
    sandbox::end_process_on_panic(io::stderr);
    sandbox::read_symbols();
    sandbox::turn_on(Parts::default()).unwrap();
    let worker = sandbox::spawn(Kind::Worker, "worker", || panic!("planted"));
    let _ = worker.unwrap().join();
}

#[test]
fn a_panic_needs_no_reader() {
    let output = panicked("in_a_process_whose_log_nobody_reads");
    assert_eq!(output.status.code(), Some(101), "{output:?}");
}

#[test]
#[ignore = "ends its process"]
fn in_a_process_whose_log_nobody_reads() {
    let (_unread, mut out) = UnixStream::pair().unwrap();
    out.set_nonblocking(true).unwrap();
    while out.write(&[0; 4096]).is_ok() || out.write(&[0]).is_ok() {}
    out.set_nonblocking(false).unwrap();
    let log = Log::start(out).unwrap();
    sandbox::end_process_on_panic(move || log.clone());
    for _ in 0..3 {
        let contained = sandbox::contain::<()>(|| panic!("in the work of a port"));
        assert!(contained.is_err());
    }
    let _ = thread::spawn(|| panic!("planted")).join();
}
