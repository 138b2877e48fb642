// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Memory regions.

use libc::c_int;
use libc::c_void;

use crate::allocation::boxed;
use crate::command::command;
use crate::errno;
use crate::ffi;
use crate::ffi::Zeroed;
use crate::libibverbs;

/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn reg_mr(
    pd: *mut ffi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ffi::ibv_mr {
    let Ok(mut mr) = boxed(ffi::verbs_mr::zeroed()) else {
        return errno::null(libc::ENOMEM);
    };
    // SAFETY: libibverbs' arguments are passed on.
    let status = unsafe {
        command!(
            ibv_cmd_reg_mr(pd, addr, length, iova, access, &mut *mr),
            ibv_reg_mr,
            ib_uverbs_reg_mr_resp
        )
    };
    errno::created(status, mr)
}

/// `reg_dmabuf_mr`. The exporter may revoke the buffer; then every access with the MR's keys fails.
///
/// # Safety
///
/// The arguments are objects of this provider.
pub unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ffi::ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ffi::ibv_mr {
    let Ok(mut mr) = boxed(ffi::verbs_mr::zeroed()) else {
        return errno::null(libc::ENOMEM);
    };
    // SAFETY: libibverbs' arguments are passed on, without attributes of this provider.
    let status =
        unsafe { libibverbs::reg_dmabuf_mr(pd, offset, length, iova, fd, access, &mut *mr) };
    errno::created(status, mr)
}

/// `rereg_mr`. The MR keeps its keys.
///
/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn rereg_mr(
    mr: *mut ffi::verbs_mr,
    flags: c_int,
    pd: *mut ffi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    // SAFETY: libibverbs' arguments are passed on.
    unsafe {
        command!(
            ibv_cmd_rereg_mr(mr, flags as u32, addr, length, addr as u64, access, pd),
            ibv_rereg_mr,
            ib_uverbs_rereg_mr_resp
        )
    }
}

/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn dereg_mr(mr: *mut ffi::verbs_mr) -> c_int {
    // SAFETY: the MR was made by `reg_mr` or `reg_dmabuf_mr`, and the caller does not use it any
    // more.
    unsafe { errno::destroyed::<ffi::verbs_mr, _>(ffi::ibv_cmd_dereg_mr(mr), mr) }
}
