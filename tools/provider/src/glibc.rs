// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Functions of glibc 2.33 that Rust's standard library calls. Older versions of glibc lack them,
//! so the provider defines them. These definitions are not exported.

use std::arch::global_asm;
use std::ffi::c_char;
use std::ffi::c_int;
use std::ffi::c_void;

// On x86-64, glibc's `struct stat` has the kernel's layout. libc::syscall sets errno.

unsafe extern "C" fn stat(path: *const c_char, stat: *mut c_void) -> c_int {
    // SAFETY: the caller's path and structure are passed on.
    unsafe { libc::syscall(libc::SYS_stat, path, stat) as c_int }
}

unsafe extern "C" fn fstat(file: c_int, stat: *mut c_void) -> c_int {
    // SAFETY: the caller's structure is passed on.
    unsafe { libc::syscall(libc::SYS_fstat, file, stat) as c_int }
}

global_asm!(
    ".pushsection .text.stat64, \"ax\", @progbits",
    ".globl stat64",
    ".hidden stat64",
    ".type stat64, @function",
    "stat64: jmp {stat}",
    ".globl fstat64",
    ".hidden fstat64",
    ".type fstat64, @function",
    "fstat64: jmp {fstat}",
    ".popsection",
    stat = sym stat,
    fstat = sym fstat,
);
