// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Error reports to C callers and to the user.

use std::fmt;
use std::io;
use std::io::Write;
use std::ptr;

/// The error number in `error`, or `EIO` if it has none.
pub fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Prints an error to stderr, in one line.
pub fn complain(what: fmt::Arguments<'_>) {
    // The error is lost if stderr is closed.
    let _ = writeln!(io::stderr(), "virtio_rdma: {what}");
}

/// Sets `errno` and returns the number.
pub fn set(number: i32) -> i32 {
    // SAFETY: the pointer is to the calling thread's errno.
    unsafe { *libc::__errno_location() = number };
    number
}

/// Sets `errno` and returns a null pointer: the failure of a verb that creates an object.
pub fn null<T>(number: i32) -> *mut T {
    set(number);
    ptr::null_mut()
}

/// The result of a verb that creates an object by a command: `object` if the command's `status` is
/// 0, else null and `errno`. `V`, libibverbs' structure, is the first member of `T`.
pub fn created<T, V>(status: i32, object: Box<T>) -> *mut V {
    match status {
        0 => Box::into_raw(object).cast(),
        number => null(number),
    }
}

/// The result of a verb that destroys an object by a command: drops `object` if the command's
/// `status` is 0. `V`, libibverbs' structure, is the first member of `T`.
///
/// # Safety
///
/// `object` was made by [`created`] or [`Box::into_raw`] of a `T`. It is not used any more if
/// `status` is 0.
pub unsafe fn destroyed<T, V>(status: i32, object: *mut V) -> i32 {
    if status == 0 {
        // SAFETY: `object` is a box of a `T`, which the caller does not use any more.
        drop(unsafe { Box::from_raw(object.cast::<T>()) });
    }
    status
}
