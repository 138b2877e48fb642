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
//! the descriptor for its signals alone. If the supervisor dies, its engine is killed.

#![deny(unsafe_code)]

mod child;
mod inherited;

use std::fmt;
use std::io::{self, Write};
use std::mem::forget;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{self, SigSet, SigmaskHow};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{kill_process, waitpid, Pid, Signal, WaitOptions, WaitStatus};
use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{MmapRegion, VolatileMemory};

pub use self::inherited::Inherited;

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
    pub deaths: Deaths,
    pub readiness: Readiness,
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

/// The means of an engine to tell the supervisor that it works.
#[derive(Debug)]
pub struct Readiness(Arc<MmapRegion>);

impl Readiness {
    /// Tells that the engine works, so that another one is started if it ends unexpectedly.
    pub fn tell(&self) {
        self.word().store(1, Ordering::Release);
    }

    fn was_told(&self) -> bool {
        self.word().load(Ordering::Acquire) != 0
    }

    fn word(&self) -> &AtomicU64 {
        let word = self.0.get_atomic_ref(0);
        word.expect("the memory has a word")
    }
}

impl Start {
    /// The start of an engine without a supervisor.
    ///
    /// # Errors
    ///
    /// There is not enough memory.
    pub fn alone(memory: usize) -> io::Result<Self> {
        Ok(Self {
            inherited: Inherited::default(),
            memory: shared_memory(memory)?,
            deaths: Deaths::default(),
            readiness: Readiness(shared_memory(size_of::<u64>())?),
        })
    }
}

/// Runs `engine` in a child process, and again in another child if the process ends unexpectedly
/// after it was [ready](Readiness::tell). All engines share `memory` bytes of memory. The calling
/// process must have one thread.
///
/// Returns once in the supervisor, with the exit status of the last engine, and once in each
/// engine, with the result of `engine`. SIGTERM and SIGINT end the engine.
///
/// # Errors
///
/// The first engine can't be started.
pub fn supervise(memory: usize, engine: impl FnOnce(Start) -> ExitCode) -> io::Result<ExitCode> {
    let memory = shared_memory(memory)?;
    let readiness = Readiness(shared_memory(size_of::<u64>())?);
    let mut signals = SigSet::empty();
    for signal in [signal::SIGCHLD, signal::SIGTERM, signal::SIGINT] {
        signals.add(signal);
    }
    let mask = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let mut supervisor = Supervisor {
        signals: SignalFd::with_flags(&signals, flags)?,
        is_ending: false,
        in_a_row: 0,
    };
    let own = inherited::open_files()?;
    let mut deaths = Deaths::default();
    loop {
        let began = Instant::now();
        let Some(engine_id) = child::start()? else {
            mask.thread_set_mask()?;
            // The descriptor is that of the supervisor.
            forget(supervisor);
            return Ok(engine(Start {
                inherited: Inherited::new(&own)?,
                memory,
                deaths,
                readiness,
            }));
        };
        let end = supervisor.await_end(engine_id)?;
        if end.exit_status() == Some(0) || supervisor.is_ending || !readiness.was_told() {
            return Ok(status_of(end));
        }
        let cause = End(end).to_string();
        let pause = supervisor.pause_after(began.elapsed());
        tell(&format!(
            "the engine, process {engine_id}, {cause}: another one starts in {pause:?}"
        ));
        deaths.count += 1;
        let time = SystemTime::now();
        deaths.last = Some(Death { time, cause });
        if supervisor.is_ended_within(pause)? {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// The supervisor of one engine after another.
struct Supervisor {
    signals: SignalFd,
    /// Whether a signal has asked for the end.
    is_ending: bool,
    /// Number of engines in a row that have failed at once.
    in_a_row: u32,
}

impl Supervisor {
    /// Waits for the end of an engine, and passes signals on to it.
    fn await_end(&mut self, engine: Pid) -> io::Result<WaitStatus> {
        loop {
            if let Some((_, end)) = waitpid(Some(engine), WaitOptions::NOHANG)? {
                return Ok(end);
            }
            self.await_signal(None)?;
            while let Some(signal) = self.next_signal()? {
                if signal != Signal::CHILD {
                    self.is_ending = true;
                    // Fails only if the engine has ended.
                    let _ = kill_process(engine, signal);
                }
            }
        }
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
            self.await_signal(Some(left))?;
            while let Some(signal) = self.next_signal()? {
                if signal != Signal::CHILD {
                    return Ok(true);
                }
            }
        }
    }

    fn await_signal(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
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

/// The exit status of an engine that is not started again.
fn status_of(end: WaitStatus) -> ExitCode {
    let status = end
        .exit_status()
        .and_then(|status| u8::try_from(status).ok());
    status.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// How a process has ended.
struct End(WaitStatus);

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.exit_status(), self.0.terminating_signal()) {
            (Some(status), _) => write!(f, "has ended with status {status}"),
            (_, Some(signal)) => match signal::Signal::try_from(signal) {
                Ok(signal) => write!(f, "was ended by {signal}"),
                Err(_) => write!(f, "was ended by signal {signal}"),
            },
            _ => f.write_str("has ended"),
        }
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

/// Memory that a child process shares.
fn shared_memory(len: usize) -> io::Result<Arc<MmapRegion>> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    let flags = flags.bits() as i32 | libc::MAP_ANONYMOUS;
    let protection = (ProtFlags::READ | ProtFlags::WRITE).bits() as i32;
    let builder = MmapRegionBuilder::new(len.next_multiple_of(4096));
    let builder = builder.with_mmap_prot(protection).with_mmap_flags(flags);
    Ok(Arc::new(builder.build().map_err(io::Error::other)?))
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
