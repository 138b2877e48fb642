// SPDX-License-Identifier: GPL-2.0

//! Modifications of QPs give access to the attributes in their masks, and to no others.

use crate::{
    bindings,
    rdma::qp_attr::{
        QpAttrMask,
        QpModification, //
    },
};
use core::{
    mem::{
        size_of,
        MaybeUninit, //
    },
    slice, //
};

/// Bits of `enum ib_qp_attr_mask` that have an accessor: all but alternate paths, sizes and
/// reserved bits.
const READABLE: u32 = {
    const ALL: u32 = (bindings::ib_qp_attr_mask_IB_QP_RATE_LIMIT << 1) - 1;
    ALL & !(bindings::ib_qp_attr_mask_IB_QP_CAP
        | bindings::ib_qp_attr_mask_IB_QP_ALT_PATH
        | bindings::ib_qp_attr_mask_IB_QP_RESERVED1
        | bindings::ib_qp_attr_mask_IB_QP_RESERVED2
        | bindings::ib_qp_attr_mask_IB_QP_RESERVED3
        | bindings::ib_qp_attr_mask_IB_QP_RESERVED4)
};

/// Attributes of which each byte has the pattern that gcc gives to uninitialized variables.
fn pattern() -> MaybeUninit<bindings::ib_qp_attr> {
    let mut attr = MaybeUninit::<bindings::ib_qp_attr>::uninit();
    let start = attr.as_mut_ptr().cast::<MaybeUninit<u8>>();
    // SAFETY: The bytes are those of `attr`.
    let bytes = unsafe { slice::from_raw_parts_mut(start, size_of::<bindings::ib_qp_attr>()) };
    bytes.fill(MaybeUninit::new(0xfe));
    attr
}

/// The bits of the attributes that a modification gives access to.
fn readable(modification: &QpModification<'_>) -> u32 {
    let mut bits = 0;
    macro_rules! look {
        ($($bit:ident: $field:ident,)*) => {
            $(if modification.$field().is_some() {
                bits |= QpAttrMask::$bit.0;
            })*
        };
    }
    look! {
        STATE: qp_state, CUR_STATE: cur_qp_state, EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify,
        ACCESS_FLAGS: qp_access_flags, PKEY_INDEX: pkey_index, PORT: port_num, QKEY: qkey,
        PATH_MTU: path_mtu, TIMEOUT: timeout, RETRY_CNT: retry_cnt, RNR_RETRY: rnr_retry,
        RQ_PSN: rq_psn, MAX_QP_RD_ATOMIC: max_rd_atomic, MIN_RNR_TIMER: min_rnr_timer,
        SQ_PSN: sq_psn, MAX_DEST_RD_ATOMIC: max_dest_rd_atomic, PATH_MIG_STATE: path_mig_state,
        DEST_QPN: dest_qp_num, RATE_LIMIT: rate_limit,
    }
    // The pattern is not a path, so the accessor fails if it reads the path.
    if !matches!(modification.ah_attr(), Ok(None)) {
        bits |= QpAttrMask::PATH.0;
    }
    bits
}

suite! { rust_rdma_qp_attr {
    fn an_attribute_is_readable_only_if_the_mask_names_it() {
        let attr = pattern();
        for bit in (0..u32::BITS).map(|bit| 1u32 << bit) {
            // SAFETY: All bytes are initialized.
            let modification = unsafe { QpModification::new(&attr, bit) };
            check!(readable(&modification) == bit & READABLE);
        }
    }

    /// Access flags are a signed number in the core's structure.
    fn all_bits_of_access_flags_are_passed_on() {
        let attr = pattern();
        // SAFETY: All bytes are initialized.
        let modification = unsafe { QpModification::new(&attr, QpAttrMask::ACCESS_FLAGS.0) };
        check!(modification.qp_access_flags() == Some(0xfefe_fefe));
    }
} }
