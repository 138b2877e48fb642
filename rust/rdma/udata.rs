// SPDX-License-Identifier: GPL-2.0

//! Data that a verb exchanges with the user space driver beside its own parameters.
//!
//! C header: [`include/rdma/uverbs_ioctl.h`](srctree/include/rdma/uverbs_ioctl.h)

use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    error::to_result,
    prelude::*, //
};

/// Driver's request and response of a user space verb.
///
/// # Invariants
///
/// `raw` is valid for `'a`, within which the verb's system call runs.
pub struct Udata<'a> {
    raw: NonNull<bindings::ib_udata>,
    _verb: PhantomData<&'a bindings::ib_udata>,
}

impl Udata<'_> {
    /// The driver data of a verb, or `None` if a kernel client called it.
    ///
    /// The response is filled with zeroes before the verb has any effect, so a verb without
    /// response leaves none of the caller's bytes there, and a response that can't be written loses
    /// nothing.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the response can't be written.
    ///
    /// # Safety
    ///
    /// `raw` is null or valid for the life that the caller chooses.
    pub(super) unsafe fn from_raw(raw: *mut bindings::ib_udata) -> Result<Option<Self>> {
        let Some(raw) = NonNull::new(raw) else {
            return Ok(None);
        };
        // INVARIANT: By the safety requirements.
        let this = Self {
            raw,
            _verb: PhantomData,
        };
        this.respond(&[])?;
        Ok(Some(this))
    }

    /// The driver data of a verb that only processes call.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a kernel client called it, and those of [`from_raw`](Self::from_raw).
    ///
    /// # Safety
    ///
    /// That of [`from_raw`](Self::from_raw).
    pub(super) unsafe fn of_process(raw: *mut bindings::ib_udata) -> Result<Self> {
        // SAFETY: By the safety requirements.
        unsafe { Self::from_raw(raw) }?.ok_or(EINVAL)
    }

    /// Reads the request: `N` bytes at least, and any more are zero.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is shorter, `EOPNOTSUPP` if it asks for more than `N` bytes can say, `EFAULT`
    /// if it can't be read.
    pub fn read<const N: usize>(&self) -> Result<[u8; N]> {
        let mut request = [0; N];
        // SAFETY: `raw` is valid by the type invariants, and `request` is writable for `N` bytes.
        to_result(unsafe {
            bindings::_ib_copy_validate_udata_in(
                self.raw.as_ptr(),
                request.as_mut_ptr().cast(),
                N,
                N,
            )
        })?;
        Ok(request)
    }

    /// Reads the request, filled up with zeroes to `N` bytes: one that does not need to be there.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if it asks for more than `N` bytes can say, `EFAULT` if it can't be read.
    pub fn read_optional<const N: usize>(&self) -> Result<[u8; N]> {
        let mut request = [0; N];
        // SAFETY: `raw` is valid by the type invariants, and `request` is writable for `N` bytes.
        to_result(unsafe {
            bindings::_ib_copy_validate_udata_in(
                self.raw.as_ptr(),
                request.as_mut_ptr().cast(),
                N,
                0,
            )
        })?;
        Ok(request)
    }

    /// Writes the response, cut off or filled up with zeroes to the length that user space gave.
    pub fn respond(&self, response: &[u8]) -> Result {
        // SAFETY: `raw` is valid by the type invariants, and `response` is readable for its length.
        to_result(unsafe {
            bindings::_ib_respond_udata(self.raw.as_ptr(), response.as_ptr().cast(), response.len())
        })
    }
}

/// Checks that a verb without driver data was given none, and fills the response with zeroes. To be
/// called before the verb has any effect.
///
/// # Safety
///
/// `raw` is null or valid.
pub(super) unsafe fn expect_none(raw: *mut bindings::ib_udata) -> Result {
    // SAFETY: By the safety requirements; null is allowed.
    to_result(unsafe { bindings::ib_no_udata_io(raw) })
}
