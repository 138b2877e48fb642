// SPDX-License-Identifier: GPL-2.0

//! Limits of the rate at which a QP sends.

use super::qp::Qp;
use crate::{
    abi::{
        config::QpTypes,
        ctrl::CmdSetRateLimit,
        uverbs::ModifyQpReq, //
    },
    rdma::{
        qp::QpType,
        qp_attr::QpState, //
    }, //
};
use kernel::prelude::*;

/// The set that contains only this QP type.
fn set_of(qp_type: QpType) -> QpTypes {
    match qp_type {
        QpType::Rc => QpTypes::RC,
        QpType::Uc => QpTypes::UC,
        QpType::Ud => QpTypes::UD,
        // Management datagrams have no rate limit.
        QpType::Gsi => QpTypes::NONE,
    }
}

/// Checks whether a QP may have this rate limit (in kb/s, 0 for none) after a transition between
/// two states. `ib_core` allows rate limits in all states.
///
/// # Errors
///
/// `EOPNOTSUPP` if the device has no rate limits for QPs of this type. `EINVAL` for a state in
/// which the QP does not send, for a rate or burst out of range, and for a shape without a rate.
pub(super) fn check(
    qp: &Qp,
    rate: u32,
    shape: &ModifyQpReq,
    (from, to): (QpState, QpState),
) -> Result {
    let limits = qp.device().limits().rate_limits.ok_or(EOPNOTSUPP)?;
    let types = set_of(qp.qp_type());
    if types == QpTypes::NONE || !limits.qp_types.contains(types) {
        return Err(EOPNOTSUPP);
    }
    let sends = to == QpState::Rts || (from, to) == (QpState::Sqd, QpState::Sqd);
    let in_range = rate == 0 || (limits.min_rate..=limits.max_rate).contains(&rate);
    let has_shape = shape.max_burst_size != 0 || shape.typical_packet_size != 0;
    let valid = sends
        && in_range
        && shape.max_burst_size <= limits.max_burst_size
        && shape.reserved == [0; 2]
        && (rate != 0 || !has_shape);
    valid.then_some(()).ok_or(EINVAL)
}

/// Sets the rate limit of a QP, after it was [checked](check).
pub(super) fn set(qp: &Qp, rate_limit: u32, shape: &ModifyQpReq) -> Result {
    qp.device().ctrl().exec(&CmdSetRateLimit {
        qpn: qp.number(),
        rate_limit,
        max_burst_size: shape.max_burst_size,
        typical_packet_size: shape.typical_packet_size,
        reserved: [0; 2],
    })?;
    qp.set_rate_limit(rate_limit);
    Ok(())
}
