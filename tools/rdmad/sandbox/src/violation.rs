// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The last line of a process whose thread made a system call that is not on its list.
//!
//! The kernel does not make that call. It sends SIGSYS instead, whose handler says which call it
//! was, and aborts the process. A thread that blocks the signal is killed by it.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::fmt::Write;
use std::io;
use std::mem;
use std::ptr;

use rustix::event::poll;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::stdio::stderr;
use syscalls::Sysno;

use crate::Kind;

thread_local! {
    static KIND: Cell<Option<Kind>> = const { Cell::new(None) };
}

/// The calling thread is of this kind.
pub(crate) fn set_kind(kind: Kind) {
    KIND.set(Some(kind));
}

/// `siginfo_t` of SIGSYS, of which the C library has no such view. C header:
/// `include/uapi/asm-generic/siginfo.h`.
#[repr(C)]
struct SigSys {
    signal: libc::c_int,
    errno: libc::c_int,
    code: libc::c_int,
    address: *const libc::c_void,
    number: libc::c_int,
    arch: libc::c_uint,
}

const _: () = assert!(size_of::<SigSys>() <= size_of::<libc::siginfo_t>());

/// Installs the handler.
pub(crate) fn install() -> io::Result<()> {
    // SAFETY: All-zero is a value of this C structure: no handler, no flags, no signals.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = on_violation as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: The handler has the signature that SA_SIGINFO asks for and is safe to run in a signal's
    // context, as its comment proves. `action` is readable as long as the call.
    match unsafe { libc::sigaction(libc::SIGSYS, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Handles SIGSYS.
///
/// It may run in the midst of anything. It takes no lock and allocates nothing: the line is formatted
/// into an array, and `KIND` has neither a constructor nor a destructor. All lists allow the system
/// calls that it makes.
extern "C" fn on_violation(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: The kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO, which is of this
    // form for SIGSYS. Another sender's has other values there, which are integers as well.
    let number = unsafe { (*info.cast::<SigSys>()).number };
    let kind = KIND.get().map_or("unknown", Kind::name);
    let name = usize::try_from(number).ok().and_then(Sysno::new);
    let name = name.map_or("unknown", |name| name.name());
    let mut line = Line::default();
    // What does not fit is left out.
    let _ = writeln!(
        line,
        "virtio-rdmad: the sandbox ends the process: a {kind} thread made system call {number} ({name}), \
         which is not on its list (please report it; --sandbox none goes without)"
    );
    let mut stderr_now = [PollFd::from_borrowed_fd(stderr(), PollFlags::OUT)];
    let no_time = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // A pipe that nobody reads does not keep the process. One that has room has enough of it.
    if poll(&mut stderr_now, Some(&no_time)) == Ok(1) {
        let _ = rustix::io::write(stderr(), line.text());
    }
    // SAFETY: It has no conditions, and may be called by a handler of signals.
    unsafe { libc::abort() }
}

/// A line in an array.
struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            bytes: [0; 256],
            len: 0,
        }
    }
}

impl Line {
    fn text(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let rest = &mut self.bytes[self.len..];
        let part = rest.get_mut(..text.len()).ok_or(fmt::Error)?;
        part.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}
