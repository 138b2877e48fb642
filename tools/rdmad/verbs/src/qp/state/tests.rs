// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Compares the state table with a second table, which has a line for each transition and QP type.

use std::result::Result;

use virtio_rdma_abi::ctrl::Errno;

use super::*;
use crate::error::errno;

/// The transitions: QP type, old state, new state, required attributes, optional attributes. Each
/// letter stands for an attribute (see [`LETTERS`]).
///
/// From IBTA table 91, adjusted to what the Linux verbs permit.
const TABLE: &[(QpType, QpState, QpState, &str, &str)] = &[
    (QpType::Rc, Reset, Init, "Kpf", ""),
    (QpType::Rc, Init, Init, "", "Kpf"),
    (QpType::Rc, Init, Rtr, "vmdrgn", "afK"),
    (QpType::Rc, Rtr, Rts, "tcyse", "uafnML"),
    (QpType::Rc, Rts, Rts, "", "uafnML"),
    (QpType::Rc, Rts, Sqd, "", "q"),
    (QpType::Rc, Sqd, Rts, "", "uafnML"),
    (QpType::Rc, Sqd, Sqd, "", "pvtcyegafKnML"),
    (QpType::Uc, Reset, Init, "Kpf", ""),
    (QpType::Uc, Init, Init, "", "Kpf"),
    (QpType::Uc, Init, Rtr, "vmdr", "afK"),
    (QpType::Uc, Rtr, Rts, "s", "uafML"),
    (QpType::Uc, Rts, Rts, "", "uafML"),
    (QpType::Uc, Rts, Sqd, "", "q"),
    (QpType::Uc, Sqd, Rts, "", "uafML"),
    (QpType::Uc, Sqd, Sqd, "", "vafKML"),
    (QpType::Uc, Sqe, Rts, "", "ufL"),
    (QpType::Ud, Reset, Init, "KpQ", ""),
    (QpType::Ud, Init, Init, "", "KpQ"),
    (QpType::Ud, Init, Rtr, "", "KQ"),
    (QpType::Ud, Rtr, Rts, "s", "uQL"),
    (QpType::Ud, Rts, Rts, "", "uQL"),
    (QpType::Ud, Rts, Sqd, "", "q"),
    (QpType::Ud, Sqd, Rts, "", "uQL"),
    (QpType::Ud, Sqd, Sqd, "", "KQL"),
    (QpType::Ud, Sqe, Rts, "", "uQL"),
    (QpType::Gsi, Reset, Init, "KQ", ""),
    (QpType::Gsi, Init, Init, "", "KQ"),
    (QpType::Gsi, Init, Rtr, "", "KQ"),
    (QpType::Gsi, Rtr, Rts, "s", "uQ"),
    (QpType::Gsi, Rts, Rts, "", "uQ"),
    (QpType::Gsi, Rts, Sqd, "", "q"),
    (QpType::Gsi, Sqd, Rts, "", "uQ"),
    (QpType::Gsi, Sqd, Sqd, "", "KQ"),
    (QpType::Gsi, Sqe, Rts, "", "uQ"),
];

const LETTERS: &[(char, Mask)] = &[
    ('u', Mask::CUR_STATE),
    ('q', Mask::EN_SQD_ASYNC_NOTIFY),
    ('f', Mask::ACCESS_FLAGS),
    ('K', Mask::PKEY_INDEX),
    ('p', Mask::PORT),
    ('Q', Mask::QKEY),
    ('v', Mask::AV),
    ('m', Mask::PATH_MTU),
    ('t', Mask::TIMEOUT),
    ('c', Mask::RETRY_CNT),
    ('y', Mask::RNR_RETRY),
    ('r', Mask::RQ_PSN),
    ('e', Mask::MAX_QP_RD_ATOMIC),
    ('a', Mask::ALT_PATH),
    ('n', Mask::MIN_RNR_TIMER),
    ('s', Mask::SQ_PSN),
    ('g', Mask::MAX_DEST_RD_ATOMIC),
    ('M', Mask::PATH_MIG_STATE),
    ('d', Mask::DEST_QPN),
    ('L', Mask::RATE_LIMIT),
];

/// Attributes that this device does not support in any transition. The last one, the rate limit, is
/// supported if rate limits were negotiated.
const MISSING: &[Mask] = &[
    Mask::ALT_PATH,
    Mask::PATH_MIG_STATE,
    Mask::CAP,
    Mask::RATE_LIMIT,
];

const TYPES: [QpType; 4] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Gsi];

fn bits(letters: &str) -> Vec<Mask> {
    letters
        .chars()
        .map(|letter| LETTERS.iter().find(|entry| entry.0 == letter).unwrap().1)
        .collect()
}

/// The union of some of `masks`: mask n is included if bit n of `subset` is set.
fn subset(masks: &[Mask], subset: usize) -> Mask {
    masks
        .iter()
        .enumerate()
        .filter(|(index, _)| subset & (1 << index) != 0)
        .fold(Mask::NONE, |union, (_, mask)| union | *mask)
}

fn check(
    qp_type: QpType,
    from: QpState,
    to: QpState,
    mask: Mask,
    rate_limits: bool,
) -> Result<(), Errno> {
    errno(super::check(qp_type, from, to, mask, rate_limits))
}

fn expected(
    required: &[Mask],
    optional: &[Mask],
    mask: Mask,
    rate_limits: bool,
) -> Result<(), Errno> {
    let missing = &MISSING[..MISSING.len() - usize::from(rate_limits)];
    let known: Vec<_> = [required, optional, missing].concat();
    let strange = (1..32)
        .map(|n| QpAttrMask(1 << n))
        .any(|bit| mask.contains(bit) && !known.contains(&bit));
    if strange || !required.iter().all(|bit| mask.contains(*bit)) {
        Err(Errno::Einval)
    } else if missing.iter().any(|bit| mask.contains(*bit)) {
        Err(Errno::Eopnotsupp)
    } else {
        Ok(())
    }
}

/// Tests each transition with all subsets of its attributes, alone and with one attribute that the
/// transition does not permit.
// abi
#[test]
fn each_step_takes_its_attributes_and_no_others() {
    for rate_limits in [true, false] {
        for &(qp_type, from, to, required, optional) in TABLE {
            each_step(
                qp_type,
                (from, to),
                &bits(required),
                &bits(optional),
                rate_limits,
            );
        }
    }
}

fn each_step(
    qp_type: QpType,
    (from, to): (QpState, QpState),
    required: &[Mask],
    optional: &[Mask],
    rate_limits: bool,
) {
    let check = |mask| check(qp_type, from, to, mask, rate_limits);
    let expected = |mask| expected(required, optional, mask, rate_limits);
    let known = [required, optional].concat();
    for number in 0..1 << known.len() {
        let base = subset(&known, number) | Mask::STATE;
        assert_eq!(
            check(base),
            expected(base),
            "{qp_type:?} {from:?} to {to:?} with {base:?}"
        );
    }
    let complete = subset(required, usize::MAX) | Mask::STATE;
    assert_eq!(check(complete), Ok(()));
    for bit in (1..32).map(|n| QpAttrMask(1 << n)) {
        for base in [Mask::STATE, complete, complete.without(bit)] {
            assert_eq!(
                check(base | bit),
                expected(base | bit),
                "{qp_type:?} {from:?} to {to:?} with {bit:?}"
            );
        }
    }
}

// abi: R-210
#[test]
fn reset_and_error_are_reached_from_everywhere() {
    for qp_type in TYPES {
        for &from in QpState::ALL {
            for to in [Reset, Failed] {
                assert_eq!(check(qp_type, from, to, Mask::STATE, true), Ok(()));
                for bit in (1..32).map(|n| QpAttrMask(1 << n)) {
                    assert_eq!(
                        check(qp_type, from, to, Mask::STATE | bit, true),
                        Err(Errno::Einval)
                    );
                }
            }
        }
    }
}

// abi
#[test]
fn no_other_steps_than_those_of_the_table() {
    let every_attribute = LETTERS.iter().map(|entry| entry.1);
    let masks: Vec<_> = every_attribute
        .map(|bit| bit | Mask::STATE)
        .chain([Mask::STATE])
        .collect();
    for qp_type in TYPES {
        for &from in QpState::ALL {
            for &to in QpState::ALL {
                let listed = TABLE
                    .iter()
                    .any(|line| (line.0, line.1, line.2) == (qp_type, from, to));
                if listed || matches!(to, Reset | Failed) {
                    continue;
                }
                for &mask in &masks {
                    assert_eq!(
                        check(qp_type, from, to, mask, true),
                        Err(Errno::Einval),
                        "{qp_type:?} {from:?} to {to:?}"
                    );
                }
            }
        }
    }
}
