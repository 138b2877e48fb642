// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Extended CQs, as programs poll them.

use virtio_rdma_provider::cq::Cq;
use virtio_rdma_provider::cq_ex;
use virtio_rdma_provider::ffi;

/// Calls a function of an extended CQ.
macro_rules! call {
    ($cq:ident . $function:ident ( $($argument:expr),* )) => {
        // SAFETY: the CQ is this provider's and has this function; the arguments are valid for the
        // call.
        unsafe { (*$cq).$function.unwrap()($cq $(, $argument)*) }
    };
}

pub(crate) use call;

/// `cq` with the functions of an extended CQ.
pub fn extended(cq: &Cq) -> *mut ffi::ibv_cq_ex {
    let cq: *mut ffi::ibv_cq_ex = cq.as_ibv().cast();
    // SAFETY: the CQ is the test's alone.
    cq_ex::install(unsafe { &mut *cq });
    cq
}

/// No attributes.
pub const ATTR: ffi::ibv_poll_cq_attr = ffi::ibv_poll_cq_attr { comp_mask: 0 };
