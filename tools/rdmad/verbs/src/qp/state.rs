// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The states of a QP, and the attributes of each transition (IBTA 10.3.1, 11.2.5.2 table 91).

#[cfg(test)]
mod tests;

use virtio_rdma_abi::ib::{QpAttrMask, QpState, QpType};

use crate::error::{bits, Reason, Refusal, Result, What};

/// The attributes of a transition, as masks.
#[derive(Clone, Copy)]
struct Attributes {
    required: QpAttrMask,
    optional: QpAttrMask,
}

/// A transition of the state table, with the attributes for each type of QP.
struct Transition {
    from: QpState,
    to: QpState,
    rc: Option<Attributes>,
    uc: Attributes,
    /// Attributes for UD and GSI QPs. For the GSI QP, whose port is fixed, PORT is removed.
    ud: Attributes,
}

type Mask = QpAttrMask;
use QpState::{Err as Failed, Init, Reset, Rtr, Rts, Sqd, Sqe};

const fn all(masks: &[QpAttrMask]) -> QpAttrMask {
    let mut union = QpAttrMask::NONE;
    let mut index = 0;
    while index < masks.len() {
        union = union.union(masks[index]);
        index += 1;
    }
    union
}

const fn attributes(required: &[QpAttrMask], optional: &[QpAttrMask]) -> Attributes {
    Attributes {
        required: all(required),
        optional: all(optional),
    }
}

/// Attributes of an RC or UC QP that are set in INIT: partition, port and access flags.
const PLACE: &[Mask] = &[Mask::PKEY_INDEX, Mask::PORT, Mask::ACCESS_FLAGS];
/// Attributes of a UD QP that are set in INIT: partition, port and Q_Key.
const UD_PLACE: &[Mask] = &[Mask::PKEY_INDEX, Mask::PORT, Mask::QKEY];
/// Optional attributes of the transition that connects a QP.
const CONNECTING: &[Mask] = &[Mask::ALT_PATH, Mask::ACCESS_FLAGS, Mask::PKEY_INDEX];
/// Optional attributes when an RC QP starts to send, and while it sends.
const RC_RUNNING: &[Mask] = &[
    Mask::CUR_STATE,
    Mask::ALT_PATH,
    Mask::ACCESS_FLAGS,
    Mask::MIN_RNR_TIMER,
    Mask::PATH_MIG_STATE,
    Mask::RATE_LIMIT,
];
const UC_RUNNING: &[Mask] = &[
    Mask::CUR_STATE,
    Mask::ALT_PATH,
    Mask::ACCESS_FLAGS,
    Mask::PATH_MIG_STATE,
    Mask::RATE_LIMIT,
];
const UD_RUNNING: &[Mask] = &[Mask::CUR_STATE, Mask::QKEY, Mask::RATE_LIMIT];
const DRAINING: Attributes = attributes(&[], &[Mask::EN_SQD_ASYNC_NOTIFY]);

/// All transitions except those to RESET and ERR, which take no attributes.
const TRANSITIONS: &[Transition] = &[
    Transition {
        from: Reset,
        to: Init,
        rc: Some(attributes(PLACE, &[])),
        uc: attributes(PLACE, &[]),
        ud: attributes(UD_PLACE, &[]),
    },
    Transition {
        from: Init,
        to: Init,
        rc: Some(attributes(&[], PLACE)),
        uc: attributes(&[], PLACE),
        ud: attributes(&[], UD_PLACE),
    },
    Transition {
        from: Init,
        to: Rtr,
        rc: Some(attributes(
            &[
                Mask::AV,
                Mask::PATH_MTU,
                Mask::DEST_QPN,
                Mask::RQ_PSN,
                Mask::MAX_DEST_RD_ATOMIC,
                Mask::MIN_RNR_TIMER,
            ],
            CONNECTING,
        )),
        uc: attributes(
            &[Mask::AV, Mask::PATH_MTU, Mask::DEST_QPN, Mask::RQ_PSN],
            CONNECTING,
        ),
        ud: attributes(&[], &[Mask::PKEY_INDEX, Mask::QKEY]),
    },
    Transition {
        from: Rtr,
        to: Rts,
        rc: Some(attributes(
            &[
                Mask::TIMEOUT,
                Mask::RETRY_CNT,
                Mask::RNR_RETRY,
                Mask::SQ_PSN,
                Mask::MAX_QP_RD_ATOMIC,
            ],
            RC_RUNNING,
        )),
        uc: attributes(&[Mask::SQ_PSN], UC_RUNNING),
        ud: attributes(&[Mask::SQ_PSN], UD_RUNNING),
    },
    Transition {
        from: Rts,
        to: Rts,
        rc: Some(attributes(&[], RC_RUNNING)),
        uc: attributes(&[], UC_RUNNING),
        ud: attributes(&[], UD_RUNNING),
    },
    Transition {
        from: Rts,
        to: Sqd,
        rc: Some(DRAINING),
        uc: DRAINING,
        ud: DRAINING,
    },
    Transition {
        from: Sqd,
        to: Rts,
        rc: Some(attributes(&[], RC_RUNNING)),
        uc: attributes(&[], UC_RUNNING),
        ud: attributes(&[], UD_RUNNING),
    },
    Transition {
        from: Sqd,
        to: Sqd,
        rc: Some(attributes(
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
                Mask::RATE_LIMIT,
            ],
        )),
        uc: attributes(
            &[],
            &[
                Mask::AV,
                Mask::ALT_PATH,
                Mask::ACCESS_FLAGS,
                Mask::PKEY_INDEX,
                Mask::PATH_MIG_STATE,
                Mask::RATE_LIMIT,
            ],
        ),
        ud: attributes(&[], &[Mask::PKEY_INDEX, Mask::QKEY, Mask::RATE_LIMIT]),
    },
    // RC has no such transition: a send error takes an RC QP to ERR.
    Transition {
        from: Sqe,
        to: Rts,
        rc: None,
        uc: attributes(
            &[],
            &[Mask::CUR_STATE, Mask::ACCESS_FLAGS, Mask::RATE_LIMIT],
        ),
        ud: attributes(&[], UD_RUNNING),
    },
];

impl Transition {
    fn attributes(&self, qp_type: QpType) -> Option<Attributes> {
        match qp_type {
            QpType::Rc => self.rc,
            QpType::Uc => Some(self.uc),
            QpType::Ud => Some(self.ud),
            QpType::Gsi => Some(Attributes {
                required: self.ud.required.without(Mask::PORT),
                // Management packets are not rate limited.
                optional: self
                    .ud
                    .optional
                    .without(Mask::PORT)
                    .without(Mask::RATE_LIMIT),
            }),
            QpType::Smi => None,
        }
    }
}

/// Attributes that the table permits but this device does not support.
const UNSUPPORTED: QpAttrMask = all(&[Mask::ALT_PATH, Mask::PATH_MIG_STATE, Mask::CAP]);

/// Checks that a QP in state `from` may go to `to` with the attributes in `mask`. `rate_limits` is
/// true if rate limits were negotiated.
///
/// # Errors
///
/// The table has no such transition, a required attribute is missing, or an attribute is not
/// permitted or not supported by this device.
pub(crate) fn check(
    qp_type: QpType,
    from: QpState,
    to: QpState,
    mask: QpAttrMask,
    rate_limits: bool,
) -> Result<()> {
    let refuse = |reason, what| Refusal {
        limit: to.value().into(),
        ..Refusal::new(reason, what, from.value())
    };
    let unsupported = if rate_limits {
        UNSUPPORTED
    } else {
        UNSUPPORTED.union(Mask::RATE_LIMIT)
    };
    let given = mask.without(QpAttrMask::STATE);
    if matches!(to, Reset | Failed) {
        return match first(given) {
            Some(what) => Err(refuse(Reason::ExtraAttribute, what)),
            None => bits(What::AttrMask, given.0, 0),
        };
    }
    let transition = TRANSITIONS
        .iter()
        .find(|transition| transition.from == from && transition.to == to)
        .and_then(|transition| transition.attributes(qp_type))
        .ok_or(refuse(Reason::NoTransition, What::QpState))?;
    if let Some(what) = first(transition.required.without(given)) {
        return Err(refuse(Reason::MissingAttribute, what));
    }
    let extra = given
        .without(transition.required)
        .without(transition.optional);
    let extra = extra.without(unsupported);
    if let Some(what) = first(extra) {
        return Err(refuse(Reason::ExtraAttribute, what));
    }
    bits(What::AttrMask, given.0, !extra.0)?;
    let unsupported = QpAttrMask(given.0 & unsupported.0);
    match first(unsupported) {
        Some(what) => Err(refuse(Reason::UnsupportedAttribute, what)),
        None => Ok(()),
    }
}

/// The first attribute in a mask.
fn first(mask: QpAttrMask) -> Option<What> {
    let mut attributes = ATTRIBUTES.iter();
    let found = attributes.find(|(bit, _)| mask.contains(*bit));
    found.map(|(_, what)| *what)
}

const ATTRIBUTES: &[(QpAttrMask, What)] = &[
    (Mask::STATE, What::QpState),
    (Mask::CUR_STATE, What::CurQpState),
    (Mask::EN_SQD_ASYNC_NOTIFY, What::EnSqdAsyncNotify),
    (Mask::ACCESS_FLAGS, What::QpAccessFlags),
    (Mask::PKEY_INDEX, What::PkeyIndex),
    (Mask::PORT, What::PortNum),
    (Mask::QKEY, What::Qkey),
    (Mask::AV, What::AhAttr),
    (Mask::PATH_MTU, What::PathMtu),
    (Mask::TIMEOUT, What::Timeout),
    (Mask::RETRY_CNT, What::RetryCnt),
    (Mask::RNR_RETRY, What::RnrRetry),
    (Mask::RQ_PSN, What::RqPsn),
    (Mask::MAX_QP_RD_ATOMIC, What::MaxRdAtomic),
    (Mask::ALT_PATH, What::AltAhAttr),
    (Mask::MIN_RNR_TIMER, What::MinRnrTimer),
    (Mask::SQ_PSN, What::SqPsn),
    (Mask::MAX_DEST_RD_ATOMIC, What::MaxDestRdAtomic),
    (Mask::PATH_MIG_STATE, What::PathMigState),
    (Mask::CAP, What::Cap),
    (Mask::DEST_QPN, What::DestQpNum),
    (Mask::RATE_LIMIT, What::RateLimit),
];
