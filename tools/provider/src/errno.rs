// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Errors as C callers see them.

use std::fmt;
use std::io;
use std::io::Write;
use std::ptr;

/// The error number in `error`.
pub fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Tells the user what is wrong, in one line.
pub fn complain(what: fmt::Arguments<'_>) {
    // With stderr closed there is nobody to tell.
    let _ = writeln!(io::stderr(), "virtio_rdma: {what}");
}

/// Sets `errno` and returns the number.
pub fn set(number: i32) -> i32 {
    // SAFETY: the pointer is to the calling thread's errno.
    unsafe { *libc::__errno_location() = number };
    number
}

/// Sets `errno` and returns a null pointer, as verbs that create an object fail.
pub fn null<T>(number: i32) -> *mut T {
    set(number);
    ptr::null_mut()
}

/// How a verb ends that creates an object by a command, which had this `status`: with `object`, of
/// which the structure of verbs `V` is the first member, or without.
pub fn created<T, V>(status: i32, object: Box<T>) -> *mut V {
    match status {
        0 => Box::into_raw(object).cast(),
        number => null(number),
    }
}
