// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Checks of QPNs and QP attributes.

use super::abi::ib::{AccessFlags, MigState, Mtu, QpState, GSI_QPN, MASK_24};
use super::abi::number::Qpn;
use super::abi::qp::QpAttr;
use super::answer::InvalidResponse;

/// Checks the QPN that the device gave to a new QP.
///
/// # Errors
///
/// [`InvalidResponse`] for an invalid QPN. QPN 1 is valid for the GSI QP only, which must have it.
pub fn check_number(qpn: Qpn, is_gsi: bool) -> Result<(), InvalidResponse> {
    let is_valid = qpn.is_valid() && (qpn == GSI_QPN) == is_gsi;
    is_valid.then_some(()).ok_or(InvalidResponse)
}

/// Checks the attributes of a QP. Limits PSNs and the peer's QPN to 24 bits and masks unknown
/// access flags.
///
/// # Errors
///
/// [`InvalidResponse`] for an unknown state, migration state or MTU. MTU 0 is valid: a QP may have
/// none yet.
pub fn check(attr: &QpAttr) -> Result<QpAttr, InvalidResponse> {
    QpState::try_from(attr.qp_state).map_err(|_| InvalidResponse)?;
    MigState::try_from(attr.path_mig_state).map_err(|_| InvalidResponse)?;
    if attr.path_mtu != 0 {
        Mtu::try_from(attr.path_mtu).map_err(|_| InvalidResponse)?;
    }
    Ok(QpAttr {
        qp_access_flags: AccessFlags(attr.qp_access_flags.0 & AccessFlags::ALL.0),
        rq_psn: attr.rq_psn & MASK_24,
        sq_psn: attr.sq_psn & MASK_24,
        dest_qp_num: attr.dest_qp_num.cut(),
        ..*attr
    })
}
