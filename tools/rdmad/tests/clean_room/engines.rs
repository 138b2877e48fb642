// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The daemon's engine is killed under its drivers, and another one takes its place.

use std::fs;
use std::fs::File;
use std::io::ErrorKind;
use std::io::Write;
use std::marker;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::ExitStatus;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::fs::ftruncate;
use rustix::fs::memfd_create;
use rustix::fs::MemfdFlags;
use rustix::process::kill_process;
use rustix::process::Pid;
use rustix::process::Signal;
use testkit::vfio::message::access;
use testkit::vfio::message::message;
use testkit::wait_until;

use crate::daemon;
use crate::daemon_of;
use crate::daemon_with;
use crate::driver::Driver;
use crate::endpoint::Endpoint;
use crate::endpoint::PLAIN;
use crate::endpoint::RECEIVE_COOKIE;
use crate::memory::PAGE;
use crate::only;
use crate::pattern;
use crate::pci::CONFIGURATION_SPACE;
use crate::process::child_of;
use crate::rings;
use crate::wire::*;
use crate::PROGRAM;

/// Connects the QPs of both sides, and sends a message.
pub fn exchange(a: &mut Endpoint, b: &mut Endpoint) {
    a.connect(b.peer(), 1, 2);
    b.connect(a.peer(), 2, 1);
    send(a, b);
}

/// A message whose receiver sleeps until the event: rings, memory and interrupts work.
pub fn send(a: &mut Endpoint, b: &mut Endpoint) {
    let message = pattern(5001);
    a.region.write(7, &message);
    b.post_receive(&receive(1, &[b.region.sge(3000, 5001)]));
    b.recv_cq.arm(&mut b.driver, rings::NEXT);
    a.post_send(&Send::new(opcode::SEND, 2).with(&[a.region.sge(7, 5001)]));
    assert_eq!(b.driver.sleep(), (COMPLETION, RECEIVE_COOKIE));
    b.recv_cq.told();
    assert_eq!(only(&mut b.recv_cq), Cqe::received(b.qpn(), 1, 5001));
    assert_eq!(
        only(&mut a.send_cq),
        Cqe::sent(a.qpn(), 2, opcode::SEND, 5001)
    );
    b.region.expect(&[(3000, &message)]);
}

/// A page for the device.
pub fn memory() -> File {
    let memory = File::from(memfd_create("more", MemfdFlags::CLOEXEC).unwrap());
    ftruncate(&memory, PAGE).unwrap();
    memory
}

/// The next engine serves the drivers at their connections, asks for a reset, and then works.
#[test]
fn another_engine_serves_the_drivers() {
    for path in ["direct", "wire"] {
        let dir = tempfile::tempdir().unwrap();
        let daemon = daemon(dir.path(), path);
        let [mut a, mut b] = ["a", "b"].map(|name| Endpoint::new(&dir.path().join(name), PLAIN));
        exchange(&mut a, &mut b);
        for _ in 0..2 {
            daemon.kill_engine();
            for side in [&mut a, &mut b] {
                // abi: R-1140
                side.driver.await_failure();
            }
            [a, b] = [a, b].map(|side| side.again(PLAIN));
            exchange(&mut a, &mut b);
        }
    }
}

/// Drivers that ask without a pause. Each request must be answered once.
struct Asking([Arc<AtomicU64>; 2]);

impl Asking {
    /// Drivers at the sockets a and b of `dir`.
    fn start(dir: &Path) -> Self {
        let mut identity = None;
        let ask = move |driver: &mut Driver| {
            let answer = driver.config(&[(4, 8)]);
            assert_eq!(identity.get_or_insert_with(|| answer.clone()), &answer);
            driver.reset();
        };
        let memory = memory();
        let map = move |driver: &mut Driver| {
            driver.map_more(1 << 40, PAGE, &memory);
            driver.unmap(1 << 40, PAGE);
        };
        Self([Self::ask(dir.join("a"), ask), Self::ask(dir.join("b"), map)])
    }

    /// Asks in another thread. Returns the number of answers.
    fn ask(
        path: PathBuf,
        mut ask: impl FnMut(&mut Driver) + marker::Send + 'static,
    ) -> Arc<AtomicU64> {
        let count = Arc::new(AtomicU64::new(0));
        let answered = count.clone();
        // Not joined, since an answer that is lost is waited for without end.
        thread::spawn(move || {
            let mut driver = Driver::new(&path, RING_ADDR);
            loop {
                ask(&mut driver);
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
        count
    }

    fn counts(&self) -> [u64; 2] {
        self.0.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Waits until each driver has got some more answers.
    fn go_on(&self, when: &str) {
        let before = self.counts();
        wait_until(&format!("answers {when}"), || {
            let answers = self.counts().into_iter().zip(before);
            answers.into_iter().all(|(now, before)| now >= before + 20)
        });
    }
}

/// Engines die while their drivers ask without a pause.
#[test]
fn no_answer_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path(), "direct");
    let drivers = Asking::start(dir.path());
    for engine in 0..7 {
        drivers.go_on(&format!("of engine {engine}"));
        daemon.kill_engine();
    }
}

/// An engine dies when one of its threads begins a certain system call for the first, second or
/// third time. This covers each step of a request.
#[test]
#[ignore = "pauses between engines take a minute"]
fn an_engine_can_die_at_each_system_call() {
    const CALLS: [&str; 9] = [
        "recvmsg", "recvfrom", "write", "splice", "mmap", "munmap", "close", "fstat", "ppoll",
    ];
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path(), "direct");
    let drivers = Asking::start(dir.path());
    for (call, count) in CALLS
        .into_iter()
        .flat_map(|call| [1, 2, 3].map(|count| (call, count)))
    {
        let when = format!("before the engine dies at {call} {count}");
        drivers.go_on(&when);
        let engine = daemon.engine();
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-p", &engine.to_string()]);
        strace.args(["-e", &format!("trace={call}")]);
        strace.args(["-e", &format!("inject={call}:signal=KILL:when={count}")]);
        let mut strace = strace.spawn().unwrap();
        wait_until(&format!("death at {call} {count}"), || {
            daemon.try_engine().is_some_and(|other| other != engine)
        });
        strace.wait().unwrap();
    }
    drivers.go_on("of the last engine");
}

/// Requests that the dead engine has not read are answered by the next one, each once and in order.
#[test]
fn the_next_engine_answers_what_the_last_one_has_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path(), "direct");
    let mut driver = Driver::new(&dir.path().join("a"), RING_ADDR);
    let memory = memory();
    let identity = driver.config(&[(4, 8)]);
    // Requests while the engine is stopped, until it is killed.
    let held = |work: &mut dyn FnMut()| {
        daemon.stop_engine();
        let is_killed = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                is_killed.store(true, Ordering::Relaxed);
                daemon.kill_engine();
            });
            work();
            assert!(is_killed.load(Ordering::Relaxed), "the engine is stopped");
        });
    };
    held(&mut || assert_eq!(driver.config(&[(4, 8)]), identity));
    held(&mut || driver.map_more(1 << 40, PAGE, &memory));
    held(&mut || driver.unmap(1 << 40, PAGE));
    held(&mut || driver.map_more(1 << 40, PAGE, &memory));
    // A reset is a write without an answer, and the driver waits for its effect.
    held(&mut || driver.initialize());
}

/// Replaces the program `path` by a script.
fn replace(path: &Path, script: &str) {
    let new = path.with_extension("new");
    fs::write(&new, script).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o700)).unwrap();
    fs::rename(new, path).unwrap();
}

/// The program at the path of the daemon takes over the process, the drivers and the sockets.
#[test]
fn another_program_takes_over() {
    for path in ["direct", "wire"] {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("virtio-rdmad");
        fs::copy(PROGRAM, &program).unwrap();
        let daemon = daemon_of(&program, dir.path(), path, &[]);
        let [mut a, mut b] = ["a", "b"].map(|name| Endpoint::new(&dir.path().join(name), PLAIN));
        exchange(&mut a, &mut b);
        let runs = || fs::read_link(format!("/proc/{}/exe", daemon.0.id())).unwrap();
        // The broker has nothing of the drivers.
        let files_of_broker = || {
            let broker = child_of(daemon.engine())?;
            Some(fs::read_dir(format!("/proc/{broker}/fd")).ok()?.count())
        };
        let files = files_of_broker();
        assert!(files.is_some());
        for version in 1..=3 {
            let new = dir.path().join(format!("version-{version}"));
            fs::copy(PROGRAM, &new).unwrap();
            fs::rename(&new, &program).unwrap();
            assert!(runs().to_str().unwrap().ends_with(" (deleted)"));
            daemon.upgrade();
            assert_eq!(runs(), program, "the new file");
            wait_until("the broker is started", || files_of_broker() == files);
            // All objects are kept.
            send(&mut a, &mut b);
        }
        // An engine that dies afterwards is replaced as before.
        daemon.kill_engine();
        for side in [&mut a, &mut b] {
            side.driver.await_failure();
        }
        [a, b] = [a, b].map(|side| side.again(PLAIN));
        exchange(&mut a, &mut b);
    }
}

/// The socket of an uplink, which only one process can have, is free when the next engine needs it.
#[test]
fn an_uplink_is_bound_again() {
    let dir = tempfile::tempdir().unwrap();
    let free = || {
        UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
    };
    let uplink = format!("udp:{}:{}", free(), free());
    let daemon = daemon_with(dir.path(), "direct", &["--uplink", &uplink]);
    let [mut a, mut b] = ["a", "b"].map(|name| Endpoint::new(&dir.path().join(name), PLAIN));
    exchange(&mut a, &mut b);
    for _ in 0..4 {
        daemon.upgrade();
        send(&mut a, &mut b);
    }
}

/// Requests that come while an engine starts, or that reach the engine instead of the supervisor,
/// cost no object.
#[test]
fn requests_at_any_time_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path(), "direct");
    let [mut a, mut b] = ["a", "b"].map(|name| Endpoint::new(&dir.path().join(name), PLAIN));
    exchange(&mut a, &mut b);
    let request = |process: u32| {
        let process = Pid::from_raw(process as i32).unwrap();
        kill_process(process, Signal::USR2).unwrap();
    };
    for pause in [0, 10, 30, 60] {
        daemon.upgrade();
        for _ in 0..4 {
            request(daemon.0.id());
            thread::sleep(Duration::from_millis(pause));
        }
        send(&mut a, &mut b);
    }
    let engine = daemon.engine();
    request(engine);
    wait_until("another engine has started", || {
        daemon.try_engine().is_some_and(|other| other != engine)
    });
    send(&mut a, &mut b);
    assert!(!a.driver.has_failed() && !b.driver.has_failed());
}

/// A monitor that reads no replies keeps nobody from an upgrade, and finds each reply afterwards.
#[test]
fn a_monitor_that_reads_nothing_is_upgraded_too() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("c");
    let port = format!("c,vfio={},mac=52:54:00:09:00:03", socket.display());
    let daemon = daemon_with(dir.path(), "direct", &["--port", &port]);
    let [mut a, mut b] = ["a", "b"].map(|name| Endpoint::new(&dir.path().join(name), PLAIN));
    exchange(&mut a, &mut b);
    let mut monitor = testkit::vfio::Client::new(&socket);
    monitor.stream.set_nonblocking(true).unwrap();
    let payload = access(CONFIGURATION_SPACE, 0, 256);
    let mut asked = 0;
    loop {
        let request = message(asked, vfio_user::Command::RegionRead as u16, 0, &payload);
        match monitor.stream.write(&request) {
            Ok(len) => assert_eq!(len, request.len()),
            // The daemon reads no more requests until it can reply, unless it was slow.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                thread::sleep(Duration::from_millis(50));
                if monitor.stream.write(&request).is_err() {
                    break;
                }
            }
            Err(error) => panic!("{error}"),
        }
        asked += 1;
    }
    for _ in 0..2 {
        daemon.upgrade();
        send(&mut a, &mut b);
    }
    monitor.stream.set_nonblocking(false).unwrap();
    for number in 0..asked {
        let (id, reply) = monitor.reply();
        assert_eq!(id, number);
        assert_eq!(reply.unwrap().len(), payload.len() + 256);
    }
}

/// Drivers that reset their devices and set them up anew without a pause notice no upgrade.
#[test]
fn a_driver_is_set_up_during_upgrades() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path(), "direct");
    let (rounds, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut driver = Driver::new(&dir.path().join("a"), RING_ADDR);
            while !ends.load(Ordering::Relaxed) {
                driver.initialize();
                assert!(!driver.has_failed());
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..8 {
            let before = rounds.load(Ordering::Relaxed);
            wait_until("the driver goes on", || {
                rounds.load(Ordering::Relaxed) > before + 2
            });
            daemon.upgrade();
        }
        ends.store(true, Ordering::Relaxed);
    });
}

/// Requests for upgrades come while one is under way, and then the end. A driver is served until
/// then, and another daemon can begin at the same sockets.
#[test]
fn upgrades_at_once_and_an_end_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let mut last = None;
    let mut ends = Vec::new();
    for round in 0..4 {
        let mut daemon = daemon(dir.path(), "direct");
        let number = Pid::from_child(&daemon.0);
        let signal = |signal| kill_process(number, signal).unwrap();
        let mut driver = Driver::new(&path, RING_ADDR);
        let identity = driver.config(&[(4, 8)]);
        for _ in 0..8 {
            signal(Signal::USR2);
            assert_eq!(driver.config(&[(4, 8)]), identity);
            signal(Signal::USR2);
            thread::sleep(Duration::from_millis(7 * round));
        }
        assert_eq!(driver.config(&[(4, 8)]), identity);
        signal(Signal::USR2);
        thread::sleep(Duration::from_millis(5 * round));
        last = daemon.try_engine().or(last);
        signal(Signal::TERM);
        ends.push(daemon.0.wait().unwrap());
    }
    // The new program may be executed at this moment, and then is ended by the signal.
    let is_orderly = |end: &ExitStatus| end.success() || end.signal() == Some(15);
    assert!(ends.iter().all(is_orderly), "{ends:?}");
    let is_gone = || !fs::exists(format!("/proc/{}", last.unwrap())).unwrap();
    wait_until("the last engine has ended", is_gone);
}

/// A monitor that ends while there is no engine does not keep the next one from connecting.
#[test]
fn a_monitor_that_ends_meanwhile_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path(), "direct");
    let [mut a, mut b] = ["a", "b"].map(|name| Endpoint::new(&dir.path().join(name), PLAIN));
    exchange(&mut a, &mut b);
    daemon.without_engine(|| drop(a));
    let mut a = Endpoint::new(&dir.path().join("a"), PLAIN);
    b.driver.await_failure();
    let mut b = b.again(PLAIN);
    exchange(&mut a, &mut b);
}

/// A program that does not take over changes nothing, and `ctl` tells the reason.
#[test]
fn a_program_that_does_not_take_over_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("virtio-rdmad");
    fs::copy(PROGRAM, &program).unwrap();
    let socket = dir.path().join("ctl");
    let more = ["--ctl", socket.to_str().unwrap()];
    let daemon = daemon_of(&program, dir.path(), "direct", &more);
    let engine = daemon.engine();
    let [mut a, mut b] = ["a", "b"].map(|name| Endpoint::new(&dir.path().join(name), PLAIN));
    let upgrade = || {
        let mut ctl = Command::new(PROGRAM);
        ctl.args(["ctl", "--socket"]).arg(&socket).arg("upgrade");
        let output = ctl.output().unwrap();
        (
            output.status.success(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    for (script, reason) in [
        (
            "#!/bin/sh\necho I do not >&2\nexit 3\n",
            "does not take over: exit status: 3: I do not",
        ),
        ("#!/bin/sh\nexec sleep 60\n", "does not answer"),
        ("no program", "can't be started"),
    ] {
        replace(&program, script);
        let (is_done, error) = upgrade();
        assert!(!is_done && error.contains(reason), "{error}");
        assert!(error.contains("nothing has changed"), "{error}");
        assert_eq!(daemon.engine(), engine);
    }
    fs::remove_file(&program).unwrap();
    assert!(upgrade().1.contains("No such file"));
    exchange(&mut a, &mut b);
    fs::copy(PROGRAM, &program).unwrap();
    assert_eq!(upgrade(), (true, String::new()));
    assert_ne!(daemon.engine(), engine);
    send(&mut a, &mut b);
}

/// Monitors that connect between two engines wait for the second one.
#[test]
fn a_monitor_can_connect_while_there_is_no_engine() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = daemon(dir.path(), "direct");
    let path = dir.path().join("a");
    let mut monitor = None;
    daemon.without_engine(|| {
        let connecting = path.clone();
        monitor = Some(thread::spawn(move || {
            Driver::new(&connecting, RING_ADDR).config(&[(4, 8)])
        }));
        // The attempt is made now, and would fail at once.
        thread::sleep(Duration::from_millis(50));
    });
    let identity = monitor.unwrap().join().expect("the monitor is served");
    assert_eq!(Driver::new(&path, RING_ADDR).config(&[(4, 8)]), identity);
}
