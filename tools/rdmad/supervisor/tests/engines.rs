// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Supervisors and their engines. This program starts itself for each supervisor, with the name of
//! the engine as its argument. It runs without libtest and has its output format.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::{IntoRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use rustix::process::{getpid, kill_process, test_kill_process, Pid, Signal};
use supervisor::{supervise, Start};
use vm_memory::VolatileMemory;

/// Bytes of memory that the engines share.
const MEMORY: usize = 64;
/// Longest time that a test waits.
const PATIENCE: Duration = Duration::from_secs(30);

/// Names and functions of the tests.
macro_rules! tests {
    ($($test:ident,)*) => { &[$((stringify!($test), $test as fn()),)*] };
}

const TESTS: &[(&str, fn())] = tests![
    an_engine_takes_what_the_last_one_has_left,
    an_engine_that_fails_at_its_start_is_not_started_again,
    a_signal_ends_the_engine,
    an_engine_is_killed_with_its_supervisor,
    a_signal_ends_the_pause_between_engines,
    a_signal_ends_an_upgrade_to_which_the_engine_does_not_react,
];

fn main() -> ExitCode {
    // The program takes over from itself.
    if env::args().any(|argument| argument == "--takes-over") {
        return ExitCode::SUCCESS;
    }
    match env::args().nth(1).as_deref() {
        Some("heirs") => run(heir),
        Some("failing") => run(|_| ExitCode::from(7)),
        Some("waiting") => run(waiting),
        Some("dying") => run(dying),
        Some("deaf") => run(deaf),
        _ => {
            println!("\nrunning {} tests", TESTS.len());
            for (name, test) in TESTS {
                test();
                println!("test {name} ... ok");
            }
            println!(
                "\ntest result: ok. {} passed; 0 failed; 0 ignored",
                TESTS.len()
            );
            ExitCode::SUCCESS
        }
    }
}

fn run(engine: fn(Start) -> ExitCode) -> ExitCode {
    supervise(MEMORY, "1", engine).unwrap()
}

fn word(start: &Start, index: usize) -> &AtomicU64 {
    start.memory.get_atomic_ref(8 * index).unwrap()
}

/// The first two engines kill themselves. The first one leaves a stream and another descriptor.
fn heir(mut start: Start) -> ExitCode {
    let number = word(&start, 0).fetch_add(1, Ordering::Relaxed);
    match number {
        0 => {
            assert!(start.deaths.last.is_none() && start.inherited.take_all().is_empty());
            let (ours, theirs) = UnixStream::pair().unwrap();
            (&theirs).write_all(b"left behind").unwrap();
            word(&start, 1).store(ours.into_raw_fd() as u64, Ordering::Relaxed);
            word(&start, 2).store(theirs.into_raw_fd() as u64, Ordering::Relaxed);
            start.supervision.tell_ready();
        }
        _ => {
            assert_eq!(start.deaths.count, 1);
            assert_eq!(
                start.deaths.last.take().unwrap().cause,
                "was ended by SIGKILL"
            );
            let numbers = [1, 2].map(|at| word(&start, at).load(Ordering::Relaxed) as RawFd);
            let stream = start.inherited.take(numbers[0]).unwrap();
            assert!(start.inherited.take(numbers[0]).is_none(), "it was taken");
            assert!(
                start.inherited.take(0).is_none(),
                "it is not the last engine's"
            );
            let is_open = |number| fs::exists(format!("/proc/self/fd/{number}")).unwrap();
            assert!(is_open(numbers[1]));
            drop(start.inherited);
            assert!(!is_open(numbers[1]), "it was not taken");
            let mut text = String::new();
            // The other end is closed now.
            UnixStream::from(stream).read_to_string(&mut text).unwrap();
            assert_eq!(text, "left behind");
            println!("inherited");
            return ExitCode::SUCCESS;
        }
    }
    die()
}

/// Is ready, prints its number, and waits for a signal.
fn waiting(start: Start) -> ExitCode {
    start.supervision.tell_ready();
    println!("{}", getpid().as_raw_nonzero());
    loop {
        sleep(PATIENCE);
    }
}

/// Is ready, and reacts to no signal.
fn deaf(start: Start) -> ExitCode {
    SigSet::all().thread_block().unwrap();
    waiting(start)
}

/// Dies at once.
fn dying(start: Start) -> ExitCode {
    start.supervision.tell_ready();
    println!("dies");
    die()
}

fn die() -> ! {
    kill_process(getpid(), Signal::KILL).unwrap();
    unreachable!()
}

/// A supervisor of engines of this kind.
fn start(kind: &str) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    let command = command
        .arg(kind)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn end(child: Child) -> (Output, String) {
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, told)
}

fn an_engine_takes_what_the_last_one_has_left() {
    let (output, told) = end(start("heirs"));
    assert!(output.status.success(), "{told}");
    assert_eq!(output.stdout, b"inherited\n");
    assert!(
        told.contains("was ended by SIGKILL: another one starts in 0ns"),
        "{told}"
    );
}

fn an_engine_that_fails_at_its_start_is_not_started_again() {
    let (output, told) = end(start("failing"));
    assert_eq!(output.status.code(), Some(7), "{told}");
    assert_eq!(told, "");
}

/// The next line of a child's output.
fn line(output: &mut impl Read) -> String {
    let mut text = String::new();
    while !text.ends_with('\n') {
        let mut byte = [0];
        output.read_exact(&mut byte).unwrap();
        text.push(byte[0].into());
    }
    text
}

/// The number of a child's engine, which the engine prints.
fn engine_of(child: &mut Child) -> Pid {
    let text = line(child.stdout.as_mut().unwrap());
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

fn a_signal_ends_the_engine() {
    let mut child = start("waiting");
    let engine = engine_of(&mut child);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let (output, told) = end(child);
    // The engine does not handle the signal, as at its start.
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(test_kill_process(engine).is_err(), "the engine still runs");
    assert_eq!(told, "");
}

fn an_engine_is_killed_with_its_supervisor() {
    let mut child = start("waiting");
    let engine = engine_of(&mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    let until = Instant::now() + PATIENCE;
    while test_kill_process(engine).is_ok() {
        assert!(Instant::now() < until, "the engine still runs");
        sleep(Duration::from_millis(1));
    }
}

/// The second engine in a row that dies at once is followed by a pause.
fn a_signal_ends_the_pause_between_engines() {
    let mut child = start("dying");
    let errors = child.stderr.as_mut().unwrap();
    assert!(line(errors).contains("another one starts in 0ns"));
    assert!(line(errors).contains("another one starts in 250ms"));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let (output, told) = end(child);
    assert_eq!(
        (output.stdout.as_slice(), told.as_str()),
        (&b"dies\ndies\n"[..], "")
    );
}

fn a_signal_ends_an_upgrade_to_which_the_engine_does_not_react() {
    let mut child = start("deaf");
    let engine = engine_of(&mut child);
    for signal in [Signal::USR2, Signal::TERM] {
        kill_process(Pid::from_child(&child), signal).unwrap();
    }
    let (output, told) = end(child);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(test_kill_process(engine).is_err(), "the engine still runs");
}
