// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The handler of SIGSYS: system calls that are not on the list of their thread.
//!
//! The kernel does not execute such a call. It sends SIGSYS instead. The handler reports the call
//! and lets it fail with `EPERM`. The process continues: the C library makes unexpected calls and
//! does not depend on most of them, and if the daemon ended, all its ports would end. SIGSYS kills
//! the process if the calling thread blocks this signal.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt::{self, Write};
use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::stdio::stderr;
use syscalls::Sysno;

use crate::Kind;

thread_local! {
    static KIND: Cell<Option<Kind>> = const { Cell::new(None) };
}

/// Sets the kind of the calling thread, for the handler's message.
pub(crate) fn set_kind(kind: Kind) {
    KIND.set(Some(kind));
}

/// Maximum number of lines that the handler writes, so that an attacker can't fill the disk.
const MAX_LINES: u32 = 100;

static LINES: AtomicU32 = AtomicU32::new(0);

/// `si_code` of a SIGSYS from a seccomp filter. C header: `include/uapi/asm-generic/siginfo.h`.
const SYS_SECCOMP: libc::c_int = 1;

/// `siginfo_t` of SIGSYS. `libc` has no accessors for these fields. C header:
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
    // SAFETY: The handler has the signature that SA_SIGINFO requires and is safe to run in a
    // signal's context, as its comment proves. `action` is readable during the call.
    match unsafe { libc::sigaction(libc::SIGSYS, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Handles SIGSYS.
///
/// The handler may interrupt any code. It takes no lock and allocates nothing: the line is
/// formatted into an array, and `KIND` has neither a constructor nor a destructor. All lists allow
/// the system calls that it makes.
extern "C" fn on_violation(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: The kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO. For a SIGSYS of
    // the kernel, it has the form of `SigSys`. For a SIGSYS of another sender, these fields have
    // other values, but any bytes are valid integers.
    let SigSys { code, number, .. } = unsafe { info.cast::<SigSys>().read() };
    if code != SYS_SECCOMP {
        // The signal was sent by a process instead of the filter.
        // SAFETY: `abort` has no preconditions, and a signal handler may call it.
        unsafe { libc::abort() }
    }
    // SAFETY: The kernel passes a valid `ucontext_t` to a handler with SA_SIGINFO. No other
    // reference to this structure exists.
    refuse(unsafe { &mut *context.cast::<libc::ucontext_t>() });
    if LINES.fetch_add(1, Ordering::Relaxed) >= MAX_LINES {
        // Reset to the limit, so that the counter never wraps to 0.
        LINES.store(MAX_LINES, Ordering::Relaxed);
        return;
    }
    let kind = KIND.get().map_or("unknown", Kind::name);
    let name = usize::try_from(number).ok().and_then(Sysno::new);
    let name = name.map_or("unknown", |name| name.name());
    let mut line = Line::default();
    // A line that is too long is truncated.
    let _ = writeln!(
        line,
        "virtio-rdmad: the sandbox refused system call {number} ({name}) of a {kind} thread, which is not \
         on its list (please report it; --sandbox none goes without)"
    );
    let mut stderr_now = [PollFd::from_borrowed_fd(stderr(), PollFlags::OUT)];
    let no_time = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // Polls first, because the write would block if standard error is a full pipe that no process
    // reads. A pipe that polls as writable has room for the whole line.
    if poll(&mut stderr_now, Some(&no_time)) == Ok(1) {
        let _ = rustix::io::write(stderr(), line.text());
    }
}

/// Lets the refused system call return `EPERM`.
fn refuse(context: &mut libc::ucontext_t) {
    #[cfg(target_arch = "x86_64")]
    {
        context.uc_mcontext.gregs[libc::REG_RAX as usize] = -i64::from(libc::EPERM);
    }
    #[cfg(target_arch = "aarch64")]
    {
        context.uc_mcontext.regs[0] = (-i64::from(libc::EPERM)) as u64;
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    compile_error!("name the register with the result of a system call here");
}

/// A line of text in a fixed array.
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
