// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Confinement of the daemon and of its brokers.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{set_dumpable_behavior, set_parent_process_death_signal, DumpableBehavior};
use sandbox::Parts;
use sockets::broker::{self, Broker, Changed};
use sockets::KeptFile;
use supervisor::{Manager, HAND_OVER};
use vswitch::Uplink;

use crate::cli::{Args, BOUND_BROKER};
use crate::limits;

/// The signals that end the engine, or ask it to hand over.
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals in all threads, so that they stay pending until the first thread
    /// [waits](Self::wait) for them.
    pub fn block() -> Result<Self> {
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, HAND_OVER]);
        signals.thread_block().context("can't block signals")?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&signals, flags);
        Ok(Self(signals.context("can't open a descriptor of signals")?))
    }

    /// Waits for a signal, at most for `time` or until `other` is readable. Returns its number.
    pub fn wait(&self, time: Duration, other: BorrowedFd<'_>) -> Result<Option<u32>> {
        let timeout = Timespec::try_from(time).context("a time to wait")?;
        let signal = PollFd::new(&self.0, PollFlags::IN);
        let other = PollFd::from_borrowed_fd(other, PollFlags::IN);
        match poll(&mut [signal, other], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("can't wait for signals"),
        }
        let signal = self.0.read_signal().context("can't read signals")?;
        Ok(signal.map(|signal| signal.ssi_signo))
    }
}

/// Prevents core dumps of this process, and access of other processes of its user to its memory.
pub fn forbid_dumps() -> Result<()> {
    let forbidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    forbidden.context("can't forbid core dumps")
}

/// Starts the broker, and a second broker for `file` if there is one. Turns on the sandbox for all
/// threads that are started later. The first one may pass descriptors to the service `manager`.
pub fn begin(args: &Args, file: Option<&mut KeptFile>, manager: Option<&Manager>) -> Result<()> {
    broker::start(BOUND_BROKER, Stdio::inherit()).context("can't start the broker")?;
    if let Some(file) = file {
        let broker = Broker::start(BOUND_BROKER, Stdio::inherit());
        let kept = broker.and_then(|broker| file.replace_by(&broker));
        kept.context("the broker of the state file")?;
    }
    let links = || args.uplinks.iter().map(|uplink| &uplink.link);
    sandbox::turn_on(Parts {
        unix: links().any(|link| matches!(link, Uplink::Unix(_))),
        udp: links().any(|link| matches!(link, Uplink::Udp { .. })),
        tap: links().any(|link| matches!(link, Uplink::Tap(_))),
        store: manager.map(|manager| manager.as_fd().as_raw_fd()),
    })?;
    Ok(())
}

/// Gives up the rights that were needed only for the start: seals the broker, lowers limits, and
/// confines the first thread.
pub fn complete(args: &Args) -> Result<()> {
    broker::seal().context("the broker")?;
    limits::lower(args)?;
    if !sandbox::confine_main()? {
        tracing::warn!(
            "the kernel has no Landlock (CONFIG_SECURITY_LANDLOCK, lsm=landlock): \
             the sandbox is made of filters of system calls alone"
        );
    }
    Ok(())
}

/// Runs the broker until the other end of its standard input, a socket, is closed. A `bound` broker
/// is killed before, when the process ends that has started it: the supervisor of that process
/// keeps its descriptors open.
pub fn run_broker(bound: bool) -> Result<()> {
    if bound {
        set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    }
    // Signals of the terminal are meant for the process that started the broker: the daemon or ctl.
    // The broker blocks these signals. It ends when the daemon ends or, if ctl started it, when the
    // added port is removed. `setsid` fails only if the broker already has its own session.
    forbid_dumps()?;
    let _signals = Signals::block()?;
    let _ = rustix::process::setsid();
    let confine = |changed: &Changed<'_>| {
        let directory = |path: &&Path| match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => ".".into(),
        };
        let directories: BTreeSet<_> = changed.removed.iter().map(directory).collect();
        let directories = directories.iter().map(|path| &**path);
        let confined = sandbox::confine_broker(directories, &changed.folders);
        confined.map_err(|error| {
            eprintln!("virtio-rdmad: no sandbox for the broker: {error}");
            io::ErrorKind::PermissionDenied.into()
        })
    };
    broker::run(io::stdin(), confine).context("broker")
}
