// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Protection domains.

use std::mem::size_of_val;

use libc::c_int;

use crate::errno;
use crate::ffi;
use crate::ffi::Zeroed;

/// `alloc_pd`.
///
/// # Safety
///
/// As libibverbs calls it: with objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn alloc_pd(context: *mut ffi::ibv_context) -> *mut ffi::ibv_pd {
    let mut pd = Box::new(ffi::ibv_pd::zeroed());
    let mut command = ffi::ibv_alloc_pd::zeroed();
    let mut response = ffi::ib_uverbs_alloc_pd_resp::zeroed();
    // SAFETY: the context is libibverbs', and command and response are as long as stated.
    let status = unsafe {
        ffi::ibv_cmd_alloc_pd(
            context,
            &mut *pd,
            &mut command,
            size_of_val(&command),
            &mut response,
            size_of_val(&response),
        )
    };
    if status != 0 {
        return errno::null(status);
    }
    Box::into_raw(pd)
}

/// `dealloc_pd`.
///
/// # Safety
///
/// As libibverbs calls it: with objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn dealloc_pd(pd: *mut ffi::ibv_pd) -> c_int {
    // SAFETY: the PD was made by `alloc_pd`.
    let status = unsafe { ffi::ibv_cmd_dealloc_pd(pd) };
    if status == 0 {
        // SAFETY: as above, and the caller does not use it any more.
        drop(unsafe { Box::from_raw(pd) });
    }
    status
}
