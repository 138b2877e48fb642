// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Refusals of control commands: each check of a value is one call that names the value.

use std::ops::RangeInclusive;

use dma::DmaError;
pub(crate) use recorder::{QpQueue, Reason, Refusal, What};
use virtio_rdma_abi::number::Number;

/// Result of a control command. The response byte carries the errno of the refusal.
pub(crate) type Result<T> = std::result::Result<T, Refusal>;

fn check(
    valid: bool,
    reason: Reason,
    what: What,
    value: impl Into<u64>,
    limit: impl Into<u64>,
) -> Result<()> {
    if valid {
        return Ok(());
    }
    Err(Refusal {
        limit: limit.into(),
        ..Refusal::new(reason, what, value)
    })
}

/// A refusal whose reason names no limit.
pub(crate) fn refusal(reason: Reason, what: What, value: impl Into<u64>) -> Refusal {
    Refusal::new(reason, what, value)
}

/// Refuses `value` for `reason` unless `valid`.
pub(crate) fn require(
    valid: bool,
    reason: Reason,
    what: What,
    value: impl Into<u64>,
) -> Result<()> {
    check(valid, reason, what, value, 0u8)
}

pub(crate) fn at_most(what: What, value: impl Into<u64>, limit: impl Into<u64>) -> Result<()> {
    let (value, limit) = (value.into(), limit.into());
    check(value <= limit, Reason::TooLarge, what, value, limit)
}

pub(crate) fn at_least(what: What, value: impl Into<u64>, limit: impl Into<u64>) -> Result<()> {
    let (value, limit) = (value.into(), limit.into());
    check(value >= limit, Reason::TooSmall, what, value, limit)
}

pub(crate) fn within<T>(what: What, value: T, range: &RangeInclusive<T>) -> Result<()>
where
    T: Into<u64> + Copy,
{
    at_least(what, value, *range.start())?;
    at_most(what, value, *range.end())
}

/// Refuses a value other than `wanted`.
pub(crate) fn exactly(what: What, value: impl Into<u64>, wanted: impl Into<u64>) -> Result<()> {
    let (value, wanted) = (value.into(), wanted.into());
    check(value == wanted, Reason::Differs, what, value, wanted)
}

/// Refuses reserved bytes that are not zero.
pub(crate) fn reserved(bytes: &[u8]) -> Result<()> {
    let set = bytes.iter().find(|byte| **byte != 0);
    exactly(What::Reserved, *set.unwrap_or(&0), 0u8)
}

/// Refuses bits other than those in `defined`.
pub(crate) fn bits(what: What, value: u32, defined: u32) -> Result<()> {
    let others = value & !defined;
    check(others == 0, Reason::UndefinedBits, what, value, others)
}

/// Refuses a value that lacks some of the bits in `needed`.
pub(crate) fn needs_bits(what: What, value: u32, needed: u32) -> Result<()> {
    let has_all = value & needed == needed;
    check(has_all, Reason::MissingBits, what, value, needed)
}

/// The variant of an enumeration that has this value.
pub(crate) fn defined<T, V>(what: What, value: V) -> Result<T>
where
    T: TryFrom<V>,
    V: Into<u64> + Copy,
{
    T::try_from(value).map_err(|_| refusal(Reason::Undefined, what, value))
}

pub(crate) fn power_of_two(what: What, value: impl Into<u64>) -> Result<()> {
    let value = value.into();
    require(value.is_power_of_two(), Reason::NotPowerOfTwo, what, value)
}

/// Refuses an address that is not a multiple of `unit`, a power of two.
pub(crate) fn aligned(what: What, address: u64, unit: u64) -> Result<()> {
    let is_multiple = address & (unit - 1) == 0;
    check(is_multiple, Reason::Misaligned, what, address, unit)
}

/// `address + len`, or a refusal if the sum exceeds the address space.
pub(crate) fn end(what: What, address: u64, len: u64) -> Result<u64> {
    let sum = address.checked_add(len);
    check(sum.is_some(), Reason::Wraps, what, address, len)?;
    Ok(sum.unwrap_or_default())
}

/// There is no object of this number.
pub(crate) fn no_such(what: What, number: impl Number) -> Refusal {
    refusal(Reason::NoSuch, what, number.get())
}

/// Other objects use the object.
pub(crate) fn in_use(what: What, number: impl Number) -> Refusal {
    refusal(Reason::InUse, what, number.get())
}

/// All `limit` objects that the driver may have exist.
pub(crate) fn full(what: What, limit: impl Into<u64>) -> Refusal {
    Refusal {
        limit: limit.into(),
        ..refusal(Reason::Full, what, 0u8)
    }
}

/// An access to guest memory at `address`, or at the address in the error, failed.
pub(crate) fn fault(what: What, address: u64) -> impl Fn(DmaError) -> Refusal {
    move |error| match error {
        DmaError::ReadOnly { iova } => refusal(Reason::ReadOnly, what, iova),
        DmaError::Unmapped { iova } | DmaError::Crossing { iova, .. } => {
            refusal(Reason::Unmapped, what, iova)
        }
        _ => refusal(Reason::Unmapped, what, address),
    }
}

/// A result with the errno of the refusal.
#[cfg(test)]
pub(crate) fn errno<T>(result: Result<T>) -> std::result::Result<T, virtio_rdma_abi::ctrl::Errno> {
    result.map_err(|refusal| refusal.errno())
}
