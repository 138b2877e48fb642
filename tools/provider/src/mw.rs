// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Memory windows.

use std::ptr;

use libc::c_int;

use crate::allocation::boxed;
use crate::command::command;
use crate::errno;
use crate::ffi;
use crate::ffi::Zeroed;
use crate::send;

/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn alloc_mw(
    pd: *mut ffi::ibv_pd,
    mw_type: ffi::ibv_mw_type,
) -> *mut ffi::ibv_mw {
    let Ok(mut mw) = boxed(ffi::ibv_mw::zeroed()) else {
        return errno::null(libc::ENOMEM);
    };
    // SAFETY: libibverbs' arguments are passed on.
    let status = unsafe {
        command!(
            ibv_cmd_alloc_mw(pd, mw_type, &mut *mw),
            ibv_alloc_mw,
            ib_uverbs_alloc_mw_resp
        )
    };
    errno::created(status, mw)
}

/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn dealloc_mw(mw: *mut ffi::ibv_mw) -> c_int {
    // SAFETY: the window was made by `alloc_mw`, and the caller does not use it any more.
    unsafe { errno::destroyed::<ffi::ibv_mw, _>(ffi::ibv_cmd_dealloc_mw(mw), mw) }
}

/// `bind_mw`: posts a work request that binds a window of type 1 under its next key. The window has
/// this key as soon as the work request is posted. If the work request completes with an error, the
/// caller has to restore the old key.
///
/// # Safety
///
/// The arguments are objects of this provider, and pointers that are valid for the call.
pub unsafe extern "C" fn bind_mw(
    qp: *mut ffi::ibv_qp,
    mw: *mut ffi::ibv_mw,
    bind: *mut ffi::ibv_mw_bind,
) -> c_int {
    let mut wr = ffi::ibv_send_wr::zeroed();
    // SAFETY: the caller passes a valid window and a valid binding.
    let rkey = unsafe {
        let rkey = next_key((*mw).rkey);
        wr.wr_id = (*bind).wr_id;
        wr.send_flags = (*bind).send_flags;
        wr.__bindgen_anon_2.bind_mw = ffi::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
            mw,
            rkey,
            bind_info: (*bind).bind_info,
        };
        rkey
    };
    wr.opcode = ffi::IBV_WR_BIND_MW;
    let mut bad = ptr::null_mut();
    // SAFETY: the caller passes a QP of this provider; the work request names the caller's objects.
    let status = unsafe { send::post_send(qp, &mut wr, &mut bad) };
    if status != 0 {
        return errno::set(status);
    }
    // SAFETY: the caller passes a valid window.
    unsafe { (*mw).rkey = rkey };
    0
}

/// The key with its low 8 bits incremented, as in `ibv_inc_rkey`.
fn next_key(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}
