// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Bindings of libibverbs' provider interface, generated at build time from rdma-core's
//! `infiniband/driver.h`.
#![allow(
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unsafe_op_in_unsafe_fn,
    unused_qualifications,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// C structures whose all-zero bytes are a valid value.
///
/// # Safety
///
/// The structure consists of integers, raw pointers, optional function pointers and unions of
/// these.
pub unsafe trait Zeroed: Sized {
    /// The value with all bytes zero.
    fn zeroed() -> Self {
        // SAFETY: by the trait's safety requirements.
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! zeroed {
    ($($ty:ty),* $(,)?) => {$(
        // SAFETY: the type is a C structure of integers, raw pointers, function pointers and unions
        // of these.
        unsafe impl Zeroed for $ty {}
    )*};
}

zeroed!(
    ib_uverbs_alloc_mw_resp,
    ib_uverbs_alloc_pd_resp,
    ib_uverbs_create_ah_resp,
    ib_uverbs_create_cq_resp,
    ib_uverbs_create_qp_resp,
    ib_uverbs_create_srq_resp,
    ib_uverbs_ex_create_cq_resp,
    ib_uverbs_ex_create_qp_resp,
    ib_uverbs_ex_modify_qp_resp,
    ib_uverbs_ex_query_device_resp,
    ib_uverbs_get_context_resp,
    ib_uverbs_reg_mr_resp,
    ib_uverbs_rereg_mr_resp,
    ib_uverbs_resize_cq_resp,
    ibv_ah,
    ibv_alloc_mw,
    ibv_alloc_pd,
    ibv_cq_init_attr_ex,
    ibv_create_cq,
    ibv_create_cq_ex,
    ibv_create_qp,
    ibv_create_qp_ex,
    ibv_create_srq,
    ibv_get_context,
    ibv_modify_cq,
    ibv_modify_qp,
    ibv_modify_qp_ex,
    ibv_modify_srq,
    ibv_mw,
    ibv_parent_domain_init_attr,
    ibv_pd,
    ibv_qp_attr,
    ibv_qp_init_attr_ex,
    ibv_query_port,
    ibv_query_qp,
    ibv_query_srq,
    ibv_recv_wr,
    ibv_reg_mr,
    ibv_rereg_mr,
    ibv_resize_cq,
    ibv_send_wr,
    verbs_cq,
    verbs_device,
    verbs_mr,
    verbs_srq,
);
