// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Queues that the kernel serves through uverbs, for devices without rings in user memory: each
//! verb is a system call.
//!
//! The kernel copies work requests and completions. Inline payload is not supported, since uverbs
//! does not pass it on. Extended CQs and QPs are not supported: each of their functions would be a
//! system call. SRQs and resizing of CQs are not supported either.

use std::mem::MaybeUninit;

use libc::c_int;

use crate::allocation::boxed;
use crate::command::command;
use crate::errno;
use crate::ffi;
use crate::ffi::Zeroed;
use crate::verbs_qp::VerbsQp;

unsafe extern "C" fn create_cq(
    context: *mut ffi::ibv_context,
    cqe: c_int,
    channel: *mut ffi::ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ffi::ibv_cq {
    let Ok(mut cq) = boxed(ffi::verbs_cq::zeroed()) else {
        return errno::null(libc::ENOMEM);
    };
    // SAFETY: libibverbs' arguments are passed on, the CQ has a stable address in its box, and
    // command and response are as long as stated.
    let status = unsafe {
        command!(
            ibv_cmd_create_cq(context, cqe, channel, comp_vector, (&raw mut *cq).cast()),
            ibv_create_cq,
            ib_uverbs_create_cq_resp
        )
    };
    errno::created(status, cq)
}

unsafe extern "C" fn create_cq_ex(
    _context: *mut ffi::ibv_context,
    _attr: *mut ffi::ibv_cq_init_attr_ex,
) -> *mut ffi::ibv_cq_ex {
    errno::null(libc::EOPNOTSUPP)
}

/// `cq_event`. Nothing to do: the kernel has armed the CQ itself.
unsafe extern "C" fn cq_event(_cq: *mut ffi::ibv_cq) {}

unsafe extern "C" fn destroy_cq(cq: *mut ffi::ibv_cq) -> c_int {
    // SAFETY: the CQ was made by `create_cq`, and the caller does not use it any more.
    unsafe { errno::destroyed::<ffi::verbs_cq, _>(ffi::ibv_cmd_destroy_cq(cq), cq) }
}

unsafe extern "C" fn create_qp(
    pd: *mut ffi::ibv_pd,
    attr: *mut ffi::ibv_qp_init_attr,
) -> *mut ffi::ibv_qp {
    let Ok(mut qp) = boxed(VerbsQp::zeroed()) else {
        return errno::null(libc::ENOMEM);
    };
    // SAFETY: libibverbs' arguments are passed on, the QP has a stable address in its box, and
    // command and response are as long as stated.
    let status = unsafe {
        command!(
            ibv_cmd_create_qp(pd, (&raw mut *qp).cast(), attr),
            ibv_create_qp,
            ib_uverbs_create_qp_resp
        )
    };
    errno::created(status, qp)
}

unsafe extern "C" fn create_qp_ex(
    _context: *mut ffi::ibv_context,
    _attr: *mut ffi::ibv_qp_init_attr_ex,
) -> *mut ffi::ibv_qp {
    errno::null(libc::EOPNOTSUPP)
}

unsafe extern "C" fn create_srq(
    _pd: *mut ffi::ibv_pd,
    _attr: *mut ffi::ibv_srq_init_attr,
) -> *mut ffi::ibv_srq {
    errno::null(libc::EOPNOTSUPP)
}

unsafe extern "C" fn resize_cq(_cq: *mut ffi::ibv_cq, _cqe: c_int) -> c_int {
    libc::EOPNOTSUPP
}

unsafe extern "C" fn destroy_qp(qp: *mut ffi::ibv_qp) -> c_int {
    // SAFETY: the QP was made by `create_qp`, and the caller does not use it any more.
    unsafe { errno::destroyed::<VerbsQp, _>(ffi::ibv_cmd_destroy_qp(qp), qp) }
}

unsafe extern "C" fn modify_qp(
    qp: *mut ffi::ibv_qp,
    attr: *mut ffi::ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: libibverbs' arguments are passed on.
    unsafe { command!(ibv_cmd_modify_qp(qp, attr, mask), ibv_modify_qp) }
}

unsafe extern "C" fn query_qp(
    qp: *mut ffi::ibv_qp,
    attr: *mut ffi::ibv_qp_attr,
    mask: c_int,
    init_attr: *mut ffi::ibv_qp_init_attr,
) -> c_int {
    // SAFETY: libibverbs' arguments are passed on.
    unsafe { command!(ibv_cmd_query_qp(qp, attr, mask, init_attr), ibv_query_qp) }
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
