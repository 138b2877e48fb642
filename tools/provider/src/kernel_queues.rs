// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Queues in the kernel, for devices without rings in user memory: each verb is a system call.
//!
//! The kernel copies work requests and completions. Inline payload is not supported, since uverbs
//! does not pass it on. Extended CQs and QPs are not supported: each of their functions would be a
//! system call. SRQs and resizing of CQs are not supported either.

use std::mem::size_of_val;
use std::mem::MaybeUninit;

use libc::c_int;

use crate::allocation::boxed;
use crate::errno;
use crate::ffi;
use crate::ffi::Zeroed;
use crate::verbs_qp::VerbsQp;

/// `create_cq`.
unsafe extern "C" fn create_cq(
    context: *mut ffi::ibv_context,
    cqe: c_int,
    channel: *mut ffi::ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ffi::ibv_cq {
    let Ok(mut cq) = boxed(ffi::verbs_cq::zeroed()) else {
        return errno::null(libc::ENOMEM);
    };
    let mut command = ffi::ibv_create_cq::zeroed();
    let mut response = ffi::ib_uverbs_create_cq_resp::zeroed();
    // SAFETY: libibverbs' arguments are passed on, the CQ has a stable address in its box, and
    // command and response are as long as stated.
    let status = unsafe {
        ffi::ibv_cmd_create_cq(
            context,
            cqe,
            channel,
            comp_vector,
            (&raw mut *cq).cast(),
            &mut command,
            size_of_val(&command),
            &mut response,
            size_of_val(&response),
        )
    };
    errno::created(status, cq)
}

/// `create_cq_ex`.
unsafe extern "C" fn create_cq_ex(
    _context: *mut ffi::ibv_context,
    _attr: *mut ffi::ibv_cq_init_attr_ex,
) -> *mut ffi::ibv_cq_ex {
    errno::null(libc::EOPNOTSUPP)
}

/// `cq_event`. Nothing to do: the kernel has armed the CQ itself.
unsafe extern "C" fn cq_event(_cq: *mut ffi::ibv_cq) {}

/// `destroy_cq`.
unsafe extern "C" fn destroy_cq(cq: *mut ffi::ibv_cq) -> c_int {
    // SAFETY: libibverbs passes a CQ of this provider.
    let status = unsafe { ffi::ibv_cmd_destroy_cq(cq) };
    if status == 0 {
        // SAFETY: the CQ was made by `create_cq`, and the caller does not use it any more.
        drop(unsafe { Box::from_raw(cq.cast::<ffi::verbs_cq>()) });
    }
    status
}

/// `create_qp`.
unsafe extern "C" fn create_qp(
    pd: *mut ffi::ibv_pd,
    attr: *mut ffi::ibv_qp_init_attr,
) -> *mut ffi::ibv_qp {
    let Ok(mut qp) = boxed(VerbsQp::zeroed()) else {
        return errno::null(libc::ENOMEM);
    };
    let mut command = ffi::ibv_create_qp::zeroed();
    let mut response = ffi::ib_uverbs_create_qp_resp::zeroed();
    // SAFETY: libibverbs' arguments are passed on, the QP has a stable address in its box, and
    // command and response are as long as stated.
    let status = unsafe {
        ffi::ibv_cmd_create_qp(
            pd,
            (&raw mut *qp).cast(),
            attr,
            &mut command,
            size_of_val(&command),
            &mut response,
            size_of_val(&response),
        )
    };
    errno::created(status, qp)
}

/// `create_qp_ex`.
unsafe extern "C" fn create_qp_ex(
    _context: *mut ffi::ibv_context,
    _attr: *mut ffi::ibv_qp_init_attr_ex,
) -> *mut ffi::ibv_qp {
    errno::null(libc::EOPNOTSUPP)
}

/// `create_srq`.
unsafe extern "C" fn create_srq(
    _pd: *mut ffi::ibv_pd,
    _attr: *mut ffi::ibv_srq_init_attr,
) -> *mut ffi::ibv_srq {
    errno::null(libc::EOPNOTSUPP)
}

/// `resize_cq`.
unsafe extern "C" fn resize_cq(_cq: *mut ffi::ibv_cq, _cqe: c_int) -> c_int {
    libc::EOPNOTSUPP
}

/// `destroy_qp`.
unsafe extern "C" fn destroy_qp(qp: *mut ffi::ibv_qp) -> c_int {
    // SAFETY: libibverbs passes a QP of this provider.
    let status = unsafe { ffi::ibv_cmd_destroy_qp(qp) };
    if status == 0 {
        // SAFETY: the QP was made by `create_qp`, and the caller does not use it any more.
        drop(unsafe { Box::from_raw(qp.cast::<VerbsQp>()) });
    }
    status
}

/// `modify_qp`.
unsafe extern "C" fn modify_qp(
    qp: *mut ffi::ibv_qp,
    attr: *mut ffi::ibv_qp_attr,
    mask: c_int,
) -> c_int {
    let mut command = ffi::ibv_modify_qp::zeroed();
    // SAFETY: libibverbs' arguments are passed on, with a command as long as stated.
    unsafe { ffi::ibv_cmd_modify_qp(qp, attr, mask, &mut command, size_of_val(&command)) }
}

/// `query_qp`.
unsafe extern "C" fn query_qp(
    qp: *mut ffi::ibv_qp,
    attr: *mut ffi::ibv_qp_attr,
    mask: c_int,
    init_attr: *mut ffi::ibv_qp_init_attr,
) -> c_int {
    let mut command = ffi::ibv_query_qp::zeroed();
    let size = size_of_val(&command);
    // SAFETY: libibverbs' arguments are passed on, with a command as long as stated.
    unsafe { ffi::ibv_cmd_query_qp(qp, attr, mask, init_attr, &mut command, size) }
}

/// `bind_mw`: not supported without rings.
unsafe extern "C" fn bind_mw(
    _qp: *mut ffi::ibv_qp,
    _mw: *mut ffi::ibv_mw,
    _bind: *mut ffi::ibv_mw_bind,
) -> c_int {
    errno::set(libc::EOPNOTSUPP)
}

/// The verbs of queues in the kernel. They replace the verbs of rings.
pub static OPERATIONS: ffi::verbs_context_ops = ffi::verbs_context_ops {
    bind_mw: Some(bind_mw),
    cq_event: Some(cq_event),
    create_cq: Some(create_cq),
    create_cq_ex: Some(create_cq_ex),
    create_qp: Some(create_qp),
    create_qp_ex: Some(create_qp_ex),
    create_srq: Some(create_srq),
    destroy_cq: Some(destroy_cq),
    destroy_qp: Some(destroy_qp),
    modify_qp: Some(modify_qp),
    poll_cq: Some(ffi::ibv_cmd_poll_cq),
    post_recv: Some(ffi::ibv_cmd_post_recv),
    post_send: Some(ffi::ibv_cmd_post_send),
    query_qp: Some(query_qp),
    req_notify_cq: Some(ffi::ibv_cmd_req_notify_cq),
    resize_cq: Some(resize_cq),
    // SAFETY: all members are optional function pointers, and a zero pointer is None.
    ..unsafe { MaybeUninit::zeroed().assume_init() }
};
