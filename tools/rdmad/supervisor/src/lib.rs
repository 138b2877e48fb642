// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Starts the daemon's *engine*, the process that does all work, and starts it again if it ends
//! unexpectedly.
//!
//! The engine is a child that shares the table of open files with the supervisor, but no memory
//! except [`Start::memory`]. So the descriptors that an engine opens or receives stay open when it
//! dies, under their numbers, and the memory tells the next engine what they are. Nothing has to be
//! sent from one process to another, at no time in which the engine could die. The next engine
//! takes what it needs from [`Inherited`], and the rest is closed.
//!
//! The supervisor interprets nothing that an engine, a guest or a network wrote. An engine can
//! close or replace descriptors of the supervisor; of these the supervisor uses standard error and
//! its own few descriptors alone. If the supervisor dies, its engine is killed.
//! A supervisor whose descriptors are replaced may end or wait for ever.
//!
//! For an [upgrade](Supervision::upgrade) the engine is asked to [hand
//! over](Supervision::hand_over) its state and to end. The supervisor then executes the
//! [program](successor) that is at its path now, which starts the next engine with that state. The
//! last engine is killed then, and also if it does not answer.
//!
//! If a service manager has a [store](Store) of descriptors, it keeps the memory and all
//! descriptors that engines have recorded. A supervisor that the manager starts after the death of
//! another one takes them over, and its first engine goes on as after the death of an engine.

#![deny(unsafe_code)]

mod child;
mod inherited;
mod manager;
mod memory;
mod store;
mod successor;
mod supervision;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::mem::forget;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{self, SigSet};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{memfd_create, MemfdFlags};
use rustix::io::Errno;
use rustix::process::{kill_process, waitpid, Pid, Signal, WaitOptions, WaitStatus};
use vm_memory::MmapRegion;

pub use self::inherited::Inherited;
pub use self::manager::{Manager, NOTIFY_SOCKET};
pub use self::memory::format;
use self::memory::{memory_name, Memory, Stored};
pub use self::store::Store;
use self::successor::{Left, Successor};
pub use self::supervision::Supervision;

/// An engine that lives so long has not failed at once.
const STABLE: Duration = Duration::from_secs(10);
/// Pause after the second engine in a row that has failed at once. It is doubled for each further
/// one, up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// QEMU gives up a request after 5 s, and gives up the device when it gets an answer afterwards.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// All that an engine is given at its start.
#[derive(Debug)]
pub struct Start {
    /// Descriptors that the last engine has left open.
    pub inherited: Inherited,
    /// Memory that all engines share. It contains zeroes when the first engine starts.
    pub memory: Arc<MmapRegion>,
    /// The state that the last engine has handed over to this one.
    pub state: Option<Vec<u8>>,
    pub deaths: Deaths,
    pub supervision: Supervision,
    /// The descriptors that the service manager keeps.
    pub store: Arc<Store>,
}

/// The unexpected ends of engines since the start of the supervisor.
#[derive(Clone, Debug, Default)]
pub struct Deaths {
    pub count: u64,
    pub last: Option<Death>,
}

/// The unexpected end of an engine.
#[derive(Clone, Debug)]
pub struct Death {
    pub time: SystemTime,
    /// The end in words, such as "was ended by SIGKILL".
    pub cause: String,
}

impl Deaths {
    fn add(&mut self, cause: String) {
        self.count += 1;
        let time = SystemTime::now();
        self.last = Some(Death { time, cause });
    }
}

impl Start {
    /// The start of an engine without a supervisor.
    ///
    /// # Errors
    ///
    /// There is not enough memory.
    pub fn alone(memory: usize) -> io::Result<Self> {
        let memory = Memory::new(memory)?;
        let supervision = Supervision::new(&memory.file, request()?, state_file()?)?;
        Ok(Self {
            inherited: Inherited::default(),
            memory: memory.of_engines()?,
            state: None,
            deaths: Deaths::default(),
            store: Arc::new(Store::new(None, 0, supervision.clone(), None)?),
            supervision,
        })
    }
}

/// Runs `engine` in a child process, and again in another child if the process ends unexpectedly
/// after it was [ready](Supervision::tell_ready). All engines share `memory` bytes of memory, whose
/// content has this `format`. The calling process must have one thread.
///
/// Returns once in the supervisor, with the exit status of the last engine, and once in each
/// engine, with the result of `engine`. SIGTERM and SIGINT end the engine. SIGUSR2 requests an
/// [upgrade](Supervision::upgrade).
///
/// # Errors
///
/// The first engine can't be started, or the program before this one has left no valid memory.
pub fn supervise(
    memory: usize,
    format: &str,
    engine: impl FnOnce(Start) -> ExitCode,
) -> io::Result<ExitCode> {
    let before = inherited::open_files()?;
    // A program that takes over has the descriptors anyway.
    let stored = Stored::take(format, memory)?;
    let (memory, left_state, own, mut names) = match (Left::take(), stored) {
        (Some(left), _) => {
            // Other programs that this one starts, such as brokers, get none of them.
            inherited::set_kept_over_exec(&(&before - &left.own), false)?;
            let memory = Memory::take_over(left.memory, memory)?;
            (memory, Some(left.state), left.own, None)
        }
        (None, Some(stored)) => {
            let own = &before - &stored.names.values().copied().collect();
            let own = &own - &BTreeSet::from([stored.memory.file.as_raw_fd()]);
            (stored.memory, None, own, Some(stored.names))
        }
        (None, None) => (Memory::new(memory)?, None, before.clone(), None),
    };
    let name = memory_name(format, memory.len);
    let mut signals = SigSet::empty();
    for signal in [signal::SIGCHLD, signal::SIGTERM, signal::SIGINT, UPGRADE] {
        signals.add(signal);
    }
    signals.thread_block()?;
    child::ignore_requests()?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let mut supervisor = Supervisor {
        signals: SignalFd::with_flags(&signals, flags)?,
        supervision: Supervision::new(&memory.file, request()?, state_file()?)?,
        successor: Successor::new(format, memory.len)?,
        is_ending: false,
        upgrade: None,
        is_wanted: false,
        in_a_row: 0,
    };
    let of_engines = memory.of_engines()?;
    let opened = &inherited::open_files()? - &before;
    let of_supervisor = &(&own | &opened) | &BTreeSet::from([memory.file.as_raw_fd()]);
    // Closed here: another file with its number would seem to be the last engine's.
    let mut state = left_state.and_then(|file| supervisor.state_from(&file));
    let mut deaths = Deaths::default();
    if names.is_some() {
        supervisor.supervision.begin_again();
        deaths.add("has ended with its supervisor".to_owned());
    }
    loop {
        let began = Instant::now();
        // Before the engine runs: from then on this process opens and closes files of its own.
        let left = &inherited::open_files()? - &of_supervisor;
        supervisor.supervision.begin();
        let Some(engine_id) = supervisor.start_engine()? else {
            // Also those that the program before this one has blocked. A request to hand over waits
            // until the engine looks for it.
            signals.remove(UPGRADE);
            signals.thread_unblock()?;
            let supervision = supervisor.supervision.clone();
            let are_unknown = names.is_none() && supervision.is_renumbering();
            let store = open_store(&name, &memory, &supervision)?;
            // These and their clones have descriptors of the supervisor, which stay open.
            forget((supervisor, memory.file, of_engines.clone()));
            return Ok(engine(Start {
                inherited: Inherited::of(left, names, are_unknown),
                memory: of_engines,
                state,
                deaths,
                store: Arc::new(store),
                supervision,
            }));
        };
        names = None;
        let end = supervisor.await_end(engine_id)?;
        if !supervisor.is_ending && supervisor.upgrade.take().is_some() {
            let left = &inherited::open_files()? - &of_supervisor;
            let checked = memory.check();
            let handed = &supervisor.supervision.state;
            let successor = &supervisor.successor;
            let error = checked.map(|()| successor.take_over(&memory.file, handed, &own, &left));
            let error = error.unwrap_or_else(|error| error);
            tell(&format!("can't execute the new program: {error}"));
            if let End::HandedOver = end {
                // Engines of one program share descriptors, which the last one may still close.
                waitpid(Some(engine_id), WaitOptions::empty())?;
            }
        }
        // Of this engine, for the next one alone.
        state = supervisor.state_from(&supervisor.supervision.state);
        let end = match end {
            End::Process(end) if supervisor.is_ending || !has_handed_over(end) => end,
            // Somebody else has asked the engine for it, or the new program can't be executed.
            _ => continue,
        };
        if end.exit_status() == Some(0)
            || supervisor.is_ending
            || !supervisor.supervision.was_ready()
        {
            memory::forget([&*name]);
            return Ok(supervisor.status_of(end));
        }
        let cause = cause_of(end);
        let pause = supervisor.pause_after(began.elapsed());
        tell(&format!(
            "the engine, process {engine_id}, {cause}: another one starts in {pause:?}"
        ));
        deaths.add(cause);
        if supervisor.is_ended_within(pause)? {
            memory::forget([&*name]);
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// The store of an engine. Engines tell of a manager that can't be reached.
fn open_store(name: &str, memory: &Memory, supervision: &Supervision) -> io::Result<Store> {
    let most = manager::capacity();
    let manager = Manager::connect().ok().flatten().filter(|_| most > 0);
    let file = memory.file.try_clone()?;
    // Without the memory.
    let most = most.saturating_sub(1);
    let memory = Some((name.to_owned(), OwnedFd::from(file)));
    Store::new(manager, most, supervision.clone(), memory)
}

/// The signal that requests an upgrade.
const UPGRADE: signal::Signal = signal::SIGUSR2;
/// The signal by which the supervisor asks an engine to [hand over](Supervision::hand_over) and to
/// end, or to [refuse](Supervision::refuse).
pub const HAND_OVER: signal::Signal = UPGRADE;
/// The exit status of an engine that has handed over.
pub const HANDED_OVER: u8 = 75;
/// How long an engine may take for it. QEMU waits for an answer for 5 s.
const PATIENCE: Duration = Duration::from_secs(3);
/// Interval at which the supervisor looks whether an engine has started, or has refused.
const INTERVAL: Duration = Duration::from_millis(20);

/// An eventfd for requests for an upgrade.
fn request() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// A file for the state that an engine hands over.
fn state_file() -> io::Result<File> {
    Ok(memfd_create("virtio-rdmad-state", MemfdFlags::CLOEXEC)?.into())
}

/// An upgrade for which an engine was asked to hand over.
struct Upgrade {
    /// When the engine is killed if it has not ended.
    until: Instant,
    /// Number of refusals before.
    refusals: u64,
}

/// The supervisor of one engine after another.
struct Supervisor {
    signals: SignalFd,
    supervision: Supervision,
    successor: Successor,
    /// Whether a signal has asked for the end.
    is_ending: bool,
    /// The upgrade that is under way.
    upgrade: Option<Upgrade>,
    /// Whether an upgrade is requested for the time when the engine has started.
    is_wanted: bool,
    /// Number of engines in a row that have failed at once.
    in_a_row: u32,
}

impl Supervisor {
    /// Starts an engine: returns its number, and `None` in the engine. If the host has no process
    /// or memory left, tries again, unless no engine has worked yet.
    fn start_engine(&mut self) -> io::Result<Option<Pid>> {
        loop {
            match child::start() {
                Err(error) if self.supervision.was_ready() => {
                    tell(&format!("no engine can be started: {error}"));
                    if self.is_ended_within(MAX_PAUSE)? {
                        return Err(error);
                    }
                }
                started => return started,
            }
        }
    }

    /// Waits for the end of an engine, and passes signals on to it.
    fn await_end(&mut self, engine: Pid) -> io::Result<End> {
        loop {
            // An engine that the program before this one has killed may end only now.
            while let Some((child, end)) = waitpid(None, WaitOptions::NOHANG)? {
                if child == engine {
                    return Ok(End::Process(end));
                }
            }
            let is_requested = self.await_signal_or_request()?;
            if self.upgrade.is_some() && !self.is_ending && self.supervision.has_handed_over() {
                // Fails only if the engine has ended.
                let _ = kill_process(engine, Signal::KILL);
                return Ok(End::HandedOver);
            }
            // An engine that hands over tells that by the same means.
            if is_requested && !self.supervision.has_handed_over() {
                self.upgrade(engine);
            }
            self.look_after_upgrade(engine);
            if self.is_wanted {
                self.upgrade(engine);
            }
            while let Some(signal) = self.next_signal()? {
                match signal {
                    Signal::CHILD => {}
                    Signal::USR2 => self.upgrade(engine),
                    _ => {
                        self.is_ending = true;
                        // Fails only if the engine has ended.
                        let _ = kill_process(engine, signal);
                    }
                }
            }
        }
    }

    /// Waits for a signal or for the engine's request for an upgrade. Returns whether there was a
    /// request.
    fn await_signal_or_request(&self) -> io::Result<bool> {
        let request = &**self.supervision.request;
        let mut fds = [
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::new(request, PollFlags::IN),
        ];
        let waits = self.upgrade.is_some() || self.is_wanted;
        let timeout = waits.then_some(INTERVAL);
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        match fds[1].revents() {
            none if none.is_empty() => Ok(false),
            PollFlags::IN => Ok(rustix::io::read(request, &mut [0; 8]).map(|_| true)?),
            // The engine has closed or replaced the descriptor.
            _ => Err(Errno::BADF.into()),
        }
    }

    /// The state that the engine of the last program has left in `file`.
    fn state_from(&self, file: &File) -> Option<Vec<u8>> {
        let state = self.supervision.take_state(file);
        state.unwrap_or_else(|error| {
            tell(&format!("the state of the VMs' devices is lost: {error}"));
            None
        })
    }

    /// Ends an upgrade that the engine has refused, or kills an engine that does not hand over.
    fn look_after_upgrade(&mut self, engine: Pid) {
        let Some(upgrade) = &self.upgrade else {
            return;
        };
        if self.supervision.refusals() != upgrade.refusals {
            self.upgrade = None;
        } else if Instant::now() > upgrade.until {
            // Fails only if the engine has ended.
            let _ = kill_process(engine, Signal::KILL);
        }
    }

    /// Asks the engine to hand over for an upgrade, unless the new program does not take over.
    fn upgrade(&mut self, engine: Pid) {
        self.look_after_upgrade(engine);
        if self.upgrade.is_some() {
            return;
        }
        self.is_wanted = !self.supervision.works();
        if self.is_wanted {
            return;
        }
        match self.successor.check() {
            Ok(()) => {
                self.upgrade = Some(Upgrade {
                    until: Instant::now() + PATIENCE,
                    refusals: self.supervision.refusals(),
                });
                // Fails only if the engine has ended.
                let _ = kill_process(engine, Signal::USR2);
            }
            Err(why) => {
                tell(&format!("no upgrade: {why}"));
                self.supervision.refuse(&why);
            }
        }
    }

    /// The exit status after an engine that is not followed by another one.
    fn status_of(&self, end: WaitStatus) -> ExitCode {
        let ends = [signal::SIGTERM, signal::SIGINT].map(|signal| Some(signal as i32));
        // An engine that starts has not blocked the signals yet, or was killed for an upgrade.
        if self.is_ending
            && (self.upgrade.is_some()
                || has_handed_over(end)
                || ends.contains(&end.terminating_signal()))
        {
            return ExitCode::SUCCESS;
        }
        let status = end
            .exit_status()
            .and_then(|status| u8::try_from(status).ok());
        status.map_or(ExitCode::FAILURE, ExitCode::from)
    }

    /// The pause before the next engine, after one that lived for `life`.
    fn pause_after(&mut self, life: Duration) -> Duration {
        self.in_a_row = match life < STABLE {
            true => self.in_a_row.saturating_add(1),
            false => 0,
        };
        pause(self.in_a_row)
    }

    /// Waits for `pause`. Returns whether a signal has asked for the end meanwhile.
    fn is_ended_within(&mut self, pause: Duration) -> io::Result<bool> {
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.await_signal(left)?;
            while let Some(signal) = self.next_signal()? {
                // A request for an upgrade is not kept: there is nobody who waits for an answer.
                if !matches!(signal, Signal::CHILD | Signal::USR2) {
                    return Ok(true);
                }
            }
        }
    }

    fn await_signal(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Timespec::try_from(timeout).ok();
        match poll(
            &mut [PollFd::new(&self.signals, PollFlags::IN)],
            timeout.as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn next_signal(&self) -> io::Result<Option<Signal>> {
        let info = self.signals.read_signal()?;
        // The descriptor reports the signals of its set alone, which have names.
        Ok(info.and_then(|info| Signal::from_named_raw(info.ssi_signo as i32)))
    }
}

/// The pause before an engine that follows so many that have failed at once.
fn pause(in_a_row: u32) -> Duration {
    match in_a_row {
        0 | 1 => Duration::ZERO,
        _ => FIRST_PAUSE
            .saturating_mul(1 << (in_a_row - 2).min(30))
            .min(MAX_PAUSE),
    }
}

/// The end of an engine.
enum End {
    Process(WaitStatus),
    /// It has handed over for an upgrade and does nothing more. It is killed, but the kernel may
    /// need longer to remove its memory than the next engine to start.
    HandedOver,
}

fn has_handed_over(end: WaitStatus) -> bool {
    end.exit_status() == Some(HANDED_OVER.into())
}

/// How a process has ended, in words.
fn cause_of(end: WaitStatus) -> String {
    match (end.exit_status(), end.terminating_signal()) {
        (Some(status), _) => format!("has ended with status {status}"),
        (_, Some(signal)) => match signal::Signal::try_from(signal) {
            Ok(signal) => format!("was ended by {signal}"),
            Err(_) => format!("was ended by signal {signal}"),
        },
        _ => "has ended".to_owned(),
    }
}

/// Writes a line to standard error, unless that would block.
fn tell(line: &str) {
    let error = rustix::stdio::stderr();
    let mut fds = [PollFd::from_borrowed_fd(error, PollFlags::OUT)];
    if poll(&mut fds, Some(&Timespec::default())) == Ok(1) {
        let _ = writeln!(io::stderr(), "virtio-rdmad: {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_that_fail_at_once_start_ever_later() {
        let ms = |in_a_row| pause(in_a_row).as_millis();
        assert_eq!([0, 1, 2, 3, 4, 5].map(ms), [0, 0, 250, 500, 1000, 2000]);
        assert_eq!([6, 33, 34, u32::MAX].map(ms), [2000; 4]);
    }
}
