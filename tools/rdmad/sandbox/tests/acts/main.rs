// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tries every system call of the [table](list) in each kind of thread, each time in a separate
//! process. The sandbox must refuse the call or end the process. Outside of the sandbox the call
//! must not be refused: this shows that the refusal is due to the sandbox. Work that every thread
//! must be able to do, such as to free memory, must not be refused.

mod list;

use std::env;
use std::hint::black_box;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Output};
use std::sync::mpsc::channel;
use std::thread::available_parallelism;

use list::{Act, ACTS};
use sandbox::{Kind, Parts};

/// First argument of a process that tries one system call.
const ATTEMPT: &str = "attempt";
/// Argument in the place of a kind of thread: the system call is tried outside of the sandbox.
const FREE: &str = "free";
/// Argument in the place of a system call: the process does [`work`] that every thread must be able
/// to do.
const WORK: &str = "work";
/// Output of a process whose system call was executed, with any result.
const DONE: &str = "done";
/// Output of a process whose system call failed with EPERM.
const REFUSED: &str = "refused";

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [ATTEMPT, kind, act] => {
            attempt(kind, act);
            ExitCode::SUCCESS
        }
        // The test runner's arguments select only other tests.
        [filter, ..] if !filter.starts_with('-') && !"acts".contains(filter) => ExitCode::SUCCESS,
        _ => no_thread_does_what_is_forbidden(),
    }
}

/// Makes the allocator grow and shrink its heap, and map large blocks.
fn work() {
    for size in [16, 4 << 10, 64 << 10, 8 << 20] {
        let blocks = (0..64).map(|_| black_box(vec![1_u8; size]));
        drop(black_box(blocks.collect::<Vec<_>>()));
    }
}

/// Tries a system call in a thread of this kind.
fn attempt(kind: &str, act: &str) {
    let act = ACTS.iter().find(|known| known.name == act);
    let call = move || {
        act.map_or_else(
            || {
                work();
                0
            },
            Act::call,
        )
    };
    if kind == FREE {
        let _ = call();
        return println!("{DONE}");
    }
    let (sender, result) = channel();
    let act = move || {
        let is_refused =
            call() == -1 && io::Error::last_os_error().raw_os_error() == Some(libc::EPERM);
        sender.send(is_refused).unwrap();
    };
    let kind = Kind::ALL.into_iter().find(|known| known.name() == kind);
    let kind = kind.unwrap();
    // With all parts, the lists allow the most system calls.
    let parts = Parts {
        unix: true,
        udp: true,
        tap: true,
        store: Some(libc::STDOUT_FILENO),
    };
    sandbox::turn_on(parts).unwrap();
    if kind == Kind::Main {
        sandbox::confine_main().unwrap();
        act();
    } else {
        sandbox::spawn(kind, "test", act).unwrap().join().unwrap();
    }
    // Printed here, since the confined thread may not write to standard output.
    let is_refused = result.recv().unwrap();
    println!("{}", if is_refused { REFUSED } else { DONE });
}

fn no_thread_does_what_is_forbidden() -> ExitCode {
    let kinds: Vec<_> = Kind::ALL.into_iter().map(Some).chain([None]).collect();
    let cases = kinds
        .iter()
        .flat_map(|kind| ACTS.iter().map(|act| (*kind, act)));
    let cases: Vec<_> = cases.collect();
    let share = cases
        .len()
        .div_ceil(available_parallelism().map_or(1, usize::from));
    let failures: Vec<_> = std::thread::scope(|scope| {
        let parts = cases.chunks(share).map(|part| {
            scope.spawn(|| {
                part.iter()
                    .filter_map(|(kind, act)| judge(*kind, act))
                    .collect::<Vec<_>>()
            })
        });
        let parts: Vec<_> = parts.collect();
        parts
            .into_iter()
            .flat_map(|part| part.join().unwrap())
            .collect()
    });
    let workless = kinds.iter().filter_map(|kind| judge_work(*kind));
    let failures: Vec<_> = failures.into_iter().chain(workless).collect();
    for failure in &failures {
        println!("{failure}");
    }
    println!(
        "{} acts in {} kinds of threads and outside of the sandbox: {} failures",
        ACTS.len(),
        Kind::ALL.len(),
        failures.len()
    );
    match failures.len() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Does [`work`] in a thread of this kind, or outside of the sandbox for `None`. Returns a
/// description of the failure, if the work fails.
fn judge_work(kind: Option<Kind>) -> Option<String> {
    let place = kind.map_or(FREE, Kind::name);
    let output = try_in(place, WORK);
    let told = String::from_utf8_lossy(&output.stderr);
    let is_good = output.status.success() && is_done(&output) && told.is_empty();
    (!is_good).then(|| format!("{place}: {WORK}: {}, {told}", output.status))
}

/// Runs a process that tries the system call `act`, or [`work`], in a thread of the kind `place`.
/// If `place` is [`FREE`], the call is made outside of the sandbox.
fn try_in(place: &str, act: &str) -> Output {
    Command::new(env::current_exe().unwrap())
        .args([ATTEMPT, place, act])
        .output()
        .unwrap()
}

/// Tries `act` in a thread of this kind, or outside of the sandbox for `None`. Returns a
/// description of the failure, if the result is not the expected one.
fn judge(kind: Option<Kind>, act: &Act) -> Option<String> {
    let place = kind.map_or(FREE, Kind::name);
    let output = try_in(place, act.name);
    let as_expected = match kind {
        None => output.status.success() && is_done(&output),
        Some(kind) => !is_done(&output) && is_refused(&output, kind, act),
    };
    let Output { status, stderr, .. } = &output;
    let told = String::from_utf8_lossy(stderr);
    (!as_expected).then(|| format!("{place}: {}: {status}, {told}", act.name))
}

fn is_done(output: &Output) -> bool {
    output.stdout.starts_with(DONE.as_bytes())
}

/// Whether the process was killed at once, or its call was refused and the refusal was reported.
fn is_refused(output: &Output, kind: Kind, act: &Act) -> bool {
    let line = format!("refused system call {} ", act.number);
    let told = String::from_utf8_lossy(&output.stderr);
    let is_told = told.contains(&line) && told.contains(&format!(" of a {kind} thread"));
    match output.status.signal() {
        Some(libc::SIGSYS) => true,
        None => is_told && output.stdout.starts_with(REFUSED.as_bytes()),
        _ => false,
    }
}
