// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The system calls that start an engine, and those before another program is executed.

#![allow(unsafe_code)]

use std::io;

use crate::UPGRADE;
use libc::c_long;
use nix::sys::signal::{signal, SigHandler, Signal};
use rustix::process::{getpid, getppid, set_parent_process_death_signal, Pid};

/// Starts a child that shares the table of open files, and continues in both processes: returns the
/// child's number in the parent, and `None` in the child. The child is killed if the parent dies.
///
/// # Errors
///
/// There are too many processes, or there is not enough memory.
pub(crate) fn start() -> io::Result<Option<Pid>> {
    let parent = getpid();
    let flags = c_long::from(libc::CLONE_FILES | libc::SIGCHLD);
    // SAFETY: Without a stack and without CLONE_VM, this is a fork: the child continues on a copy
    // of the memory. The process has one thread, so the copy holds no lock of another thread, and
    // the child may call any function. The C library's record of the thread's number stays that of
    // the parent; no thread of either process has the other's number.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match child {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            if getppid() != Some(parent) {
                // The parent has died before it could be watched.
                std::process::exit(1);
            }
            Ok(None)
        }
        // The number of a process fits.
        child => Ok(Pid::from_raw(child as i32)),
    }
}

/// Ignores the signal that requests an upgrade where it is not blocked: a process that the
/// supervisor starts would end by it.
pub(crate) fn ignore_requests() -> io::Result<()> {
    // SAFETY: No handler of the program is replaced, since it has none for this signal.
    unsafe { signal(UPGRADE, SigHandler::SigIgn) }?;
    Ok(())
}

/// Ignores SIGPIPE, as the runtime does: an attempt to execute another program has changed that.
pub(crate) fn ignore_broken_pipes() {
    // SAFETY: As above. It can't fail: the signal exists and can be ignored.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) };
}
