// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Which states a QP goes through, and which attributes each step takes (IBTA 10.3.1, 11.2.5.2 table 91).

use virtio_rdma_abi::ib::{QpAttrMask, QpState, QpType};

use crate::error::{require, Errno, Result};

/// One step of the state table for QPs of one type.
struct Step {
    from: QpState,
    to: QpState,
    required: QpAttrMask,
    optional: QpAttrMask,
}

const fn all(masks: &[QpAttrMask]) -> QpAttrMask {
    let mut union = QpAttrMask::NONE;
    let mut index = 0;
    while index < masks.len() {
        union = union.union(masks[index]);
        index += 1;
    }
    union
}

const fn step(
    from: QpState,
    to: QpState,
    required: &[QpAttrMask],
    optional: &[QpAttrMask],
) -> Step {
    Step {
        from,
        to,
        required: all(required),
        optional: all(optional),
    }
}

type Mask = QpAttrMask;
use QpState::{Err as Failed, Init, Reset, Rtr, Rts, Sqd};

/// Steps of a reliable connection. Steps to RESET and ERR take no attributes and are the same for all types.
const RC: &[Step] = &[
    step(
        Reset,
        Init,
        &[Mask::PKEY_INDEX, Mask::PORT, Mask::ACCESS_FLAGS],
        &[],
    ),
    step(
        Init,
        Init,
        &[],
        &[Mask::PKEY_INDEX, Mask::PORT, Mask::ACCESS_FLAGS],
    ),
    step(
        Init,
        Rtr,
        &[
            Mask::AV,
            Mask::PATH_MTU,
            Mask::DEST_QPN,
            Mask::RQ_PSN,
            Mask::MAX_DEST_RD_ATOMIC,
            Mask::MIN_RNR_TIMER,
        ],
        &[Mask::ALT_PATH, Mask::ACCESS_FLAGS, Mask::PKEY_INDEX],
    ),
    step(
        Rtr,
        Rts,
        &[
            Mask::TIMEOUT,
            Mask::RETRY_CNT,
            Mask::RNR_RETRY,
            Mask::SQ_PSN,
            Mask::MAX_QP_RD_ATOMIC,
        ],
        RC_RUNNING,
    ),
    step(Rts, Rts, &[], RC_RUNNING),
    step(Rts, Sqd, &[], &[Mask::EN_SQD_ASYNC_NOTIFY]),
    step(Sqd, Rts, &[], RC_RUNNING),
    step(
        Sqd,
        Sqd,
        &[],
        &[
            Mask::PORT,
            Mask::AV,
            Mask::TIMEOUT,
            Mask::RETRY_CNT,
            Mask::RNR_RETRY,
            Mask::MAX_QP_RD_ATOMIC,
            Mask::MAX_DEST_RD_ATOMIC,
            Mask::ALT_PATH,
            Mask::ACCESS_FLAGS,
            Mask::PKEY_INDEX,
            Mask::MIN_RNR_TIMER,
            Mask::PATH_MIG_STATE,
        ],
    ),
];

/// What may change when a connection starts to send or while it does.
const RC_RUNNING: &[Mask] = &[
    Mask::CUR_STATE,
    Mask::ALT_PATH,
    Mask::ACCESS_FLAGS,
    Mask::MIN_RNR_TIMER,
    Mask::PATH_MIG_STATE,
];

/// Alternate paths and rate limits are optional in the table but not offered by this device.
const UNSUPPORTED: QpAttrMask = all(&[
    Mask::ALT_PATH,
    Mask::PATH_MIG_STATE,
    Mask::RATE_LIMIT,
    Mask::CAP,
]);

/// The steps for QPs of `qp_type`, or `None` for a type that this device does not have.
fn steps(qp_type: QpType) -> Option<&'static [Step]> {
    match qp_type {
        QpType::Rc => Some(RC),
        QpType::Smi | QpType::Gsi | QpType::Uc | QpType::Ud => None,
    }
}

/// Whether this device has QPs of `qp_type`.
pub(crate) fn is_supported(qp_type: QpType) -> bool {
    steps(qp_type).is_some()
}

/// Checks that a QP in state `from` may go to `to` with the attributes in `mask`.
///
/// # Errors
///
/// `EINVAL` if the table has no such step, a required attribute is missing, or one is not permitted; `EOPNOTSUPP` for
/// attributes that this device does not have.
pub(crate) fn check(qp_type: QpType, from: QpState, to: QpState, mask: QpAttrMask) -> Result<()> {
    let attributes = mask.without(QpAttrMask::STATE);
    if matches!(to, Reset | Failed) {
        return require(attributes == QpAttrMask::NONE);
    }
    let step = steps(qp_type)
        .ok_or(Errno::OPNOTSUPP)?
        .iter()
        .find(|step| step.from == from && step.to == to)
        .ok_or(Errno::INVAL)?;
    require(attributes.contains(step.required))?;
    let extra = attributes.without(step.required).without(step.optional);
    if attributes.intersects(UNSUPPORTED) && !extra.without(UNSUPPORTED).has_any() {
        return Err(Errno::OPNOTSUPP);
    }
    require(!extra.has_any())
}

/// Whether the mask has a bit at all.
trait HasAny {
    fn has_any(self) -> bool;
}

impl HasAny for QpAttrMask {
    fn has_any(self) -> bool {
        self != QpAttrMask::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO_INIT: Mask = all(&[
        Mask::STATE,
        Mask::PKEY_INDEX,
        Mask::PORT,
        Mask::ACCESS_FLAGS,
    ]);
    const TO_RTS: Mask = all(&[
        Mask::STATE,
        Mask::TIMEOUT,
        Mask::RETRY_CNT,
        Mask::RNR_RETRY,
        Mask::SQ_PSN,
        Mask::MAX_QP_RD_ATOMIC,
    ]);

    fn rc(from: QpState, to: QpState, mask: Mask) -> Result<()> {
        check(QpType::Rc, from, to, mask)
    }

    #[test]
    fn reset_and_error_are_reached_from_everywhere() {
        for &from in QpState::ALL {
            for to in [Reset, Failed] {
                assert_eq!(rc(from, to, Mask::STATE), Ok(()));
                assert_eq!(rc(from, to, Mask::STATE | Mask::PORT), Err(Errno::INVAL));
            }
        }
    }

    #[test]
    fn no_other_steps_than_those_of_the_table() {
        let listed: Vec<_> = RC.iter().map(|step| (step.from, step.to)).collect();
        for &from in QpState::ALL {
            for &to in QpState::ALL {
                if matches!(to, Reset | Failed) {
                    continue;
                }
                let step = RC.iter().find(|step| (step.from, step.to) == (from, to));
                let mask = step.map_or(Mask::STATE, |step| step.required | Mask::STATE);
                assert_eq!(
                    rc(from, to, mask).is_ok(),
                    listed.contains(&(from, to)),
                    "{from:?} to {to:?}"
                );
            }
        }
    }

    #[test]
    fn each_required_attribute_is_required() {
        for (from, to, mask) in [(Reset, Init, TO_INIT), (Rtr, Rts, TO_RTS)] {
            assert_eq!(rc(from, to, mask), Ok(()));
            for bit in (1..32)
                .map(|n| QpAttrMask(1 << n))
                .filter(|bit| mask.contains(*bit))
            {
                assert_eq!(
                    rc(from, to, mask.without(bit)),
                    Err(Errno::INVAL),
                    "{bit:?}"
                );
            }
        }
    }

    #[test]
    fn what_is_not_optional_is_refused() {
        assert_eq!(rc(Rtr, Rts, TO_RTS | Mask::MIN_RNR_TIMER), Ok(()));
        assert_eq!(rc(Rtr, Rts, TO_RTS | Mask::QKEY), Err(Errno::INVAL));
        assert_eq!(
            rc(Rtr, Rts, TO_RTS | QpAttrMask(1 << 31)),
            Err(Errno::INVAL)
        );
        assert_eq!(rc(Rtr, Rts, TO_RTS | Mask::ALT_PATH), Err(Errno::OPNOTSUPP));
        assert_eq!(rc(Rts, Rts, Mask::RATE_LIMIT), Err(Errno::OPNOTSUPP));
    }
}
