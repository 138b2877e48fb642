// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Signals eventfds without ever blocking, by system calls of AIO. No other module of this crate
//! needs `unsafe`.
//!
//! A `write` to an eventfd blocks while its counter is full, unless O_NONBLOCK is set. That flag
//! belongs to the open file description, which the client shares and may change at any time. There
//! is no way to get a private description of an eventfd, or to write without ever blocking. But the
//! kernel itself signals an eventfd when an AIO request ends (IOCB_FLAG_RESFD), and then saturates
//! the counter instead of blocking. A request that polls an always readable descriptor ends before
//! `io_submit` returns.
//!
//! Measured on two CPUs as a ping-pong of two threads: a signal costs 0.7 µs more than a `write`,
//! and the round trip of 9 µs does not change. With a separate thread for each port, which may
//! block in `write`, each signal would cost 7 to 15 µs more.
//!
//! C header: `include/uapi/linux/aio_abi.h`
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use libc::{c_long, c_ulong};
use rustix::event::{eventfd, EventfdFlags, PollFlags};
use rustix::io::Errno;

const IOCB_CMD_POLL: u16 = 5;
const IOCB_FLAG_RESFD: u32 = 1 << 0;

/// Capacity of a context in requests. A completed request takes up room until
/// [`forget_ended`](Aio::forget_ended) collects it.
const REQUESTS: usize = 32;
/// How many times a submission to a full context is tried. The second try succeeds, unless other
/// threads have used up the room again.
const TRIES: usize = 1000;

/// `struct iocb` on little-endian hosts, where `aio_key` precedes `aio_rw_flags`.
#[derive(Default)]
#[repr(C)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct IoEvent {
    data: u64,
    request: u64,
    result: i64,
    second: i64,
}

const _: () = assert!(size_of::<Iocb>() == 64 && size_of::<IoEvent>() == 32);
const _: () = assert!(cfg!(target_endian = "little"));

/// An AIO context. Any thread may use it, several at a time.
#[derive(Debug)]
pub(crate) struct Aio {
    context: c_ulong,
    /// An eventfd that is always readable: its counter is 1, and no other code uses its descriptor.
    ready: OwnedFd,
}

impl Aio {
    pub(crate) fn new() -> io::Result<Self> {
        let ready = eventfd(1, EventfdFlags::CLOEXEC)?;
        let mut context: c_ulong = 0;
        // The contexts of the last engine may still be there.
        let set_up = sockets::while_busy(Errno::AGAIN, || {
            // SAFETY: io_setup writes the number of the context, an unsigned long, through its
            // second argument. That argument points to `context`, which is borrowed mutably during
            // the call.
            check(unsafe {
                libc::syscall(
                    libc::SYS_io_setup,
                    REQUESTS as c_long,
                    ptr::from_mut(&mut context),
                )
            })
        });
        match set_up {
            Ok(_) => Ok(Self { context, ready }),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Err(io::Error::new(
                error.kind(),
                "no room for interrupts in the limit fs.aio-max-nr; raise it with sysctl",
            )),
            Err(error) => Err(io::Error::new(
                error.kind(),
                format!("interrupts need the kernel's AIO (io_setup): {error}"),
            )),
        }
    }

    /// Adds 1 to the counter of `eventfd`, or leaves it at its maximum. Never blocks.
    pub(crate) fn signal(&self, eventfd: BorrowedFd<'_>) -> io::Result<()> {
        let mut request = Iocb {
            opcode: IOCB_CMD_POLL,
            // A valid descriptor is not negative.
            fd: self.ready.as_raw_fd() as u32,
            buffer: PollFlags::IN.bits().into(),
            flags: IOCB_FLAG_RESFD,
            resfd: eventfd.as_raw_fd() as u32,
            ..Iocb::default()
        };
        let mut requests = [ptr::from_mut(&mut request)];
        let mut result = Ok(0);
        for _ in 0..TRIES {
            // SAFETY: the third argument points to an array of one pointer to a `struct iocb`.
            // io_submit reads both, and may write the key of the structure. Both live during the
            // call; the kernel does not use these pointers later. A request to poll has no buffer:
            // its field `buffer` holds the events to wait for.
            result = check(unsafe {
                libc::syscall(
                    libc::SYS_io_submit,
                    self.context,
                    1 as c_long,
                    requests.as_mut_ptr(),
                )
            });
            match &result {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => self.forget_ended()?,
                _ => break,
            }
        }
        result.map(drop)
    }

    /// Makes room in the context: collects the completed requests.
    fn forget_ended(&self) -> io::Result<()> {
        let mut events = [IoEvent::default(); REQUESTS];
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the third argument is the length of `events`. io_getevents writes at most that
        // many `struct io_event` to `events`, and reads the timeout. Both are borrowed mutably
        // during the call.
        check(unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                0 as c_long,
                events.len() as c_long,
                events.as_mut_ptr(),
                ptr::from_mut(&mut now),
            )
        })
        .map(drop)
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: io_destroy accesses no memory of this process. No thread uses the context any
        // more, since it is being dropped.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

fn check(result: c_long) -> io::Result<c_long> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}
