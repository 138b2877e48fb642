// SPDX-License-Identifier: GPL-2.0

//! Data that a verb exchanges with the user space driver in addition to its own parameters.
//!
//! C header: [`include/rdma/uverbs_ioctl.h`](srctree/include/rdma/uverbs_ioctl.h)

use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    error::to_result,
    prelude::*, //
};

/// Request or response of a user space verb. Driver and process may have been built for different
/// lengths of the structure.
///
/// New versions add fields at its end. Drivers and programs of different versions work together by
/// these rules:
///
/// - A shorter request is padded with zeroes. A new field that is zero means the behaviour without
///   the field.
/// - A longer request is refused unless the rest is zero.
/// - A response is truncated, or padded with zeroes, to the length that the process passes.
///
/// [`Udata`] is the only access to driver data, so these rules hold for all verbs.
pub trait DriverData {
    /// The bytes of the structure, in the length that the driver knows.
    type Bytes: AsRef<[u8]> + AsMut<[u8]>;

    /// [`Bytes`](Self::Bytes) that are all zero.
    const ZEROES: Self::Bytes;

    /// Minimum number of bytes of a request that a process passes: the length of the first version
    /// that has the request, or 0 if the request may be left out.
    const MIN_SIZE: usize;

    /// The value that `bytes` encode.
    fn from_driver_data(bytes: &Self::Bytes) -> Self;

    /// The bytes that encode this value.
    fn to_driver_data(&self) -> Self::Bytes;
}

/// The driver's request and response of a user space verb.
///
/// # Examples
///
/// ```
/// use crate::rdma::{udata::DriverData, Udata};
///
/// /// A number, which each process passes.
/// struct Number(u32);
///
/// impl DriverData for Number {
///     type Bytes = [u8; 4];
///     const ZEROES: [u8; 4] = [0; 4];
///     const MIN_SIZE: usize = 4;
///
///     fn from_driver_data(bytes: &[u8; 4]) -> Self {
///         Self(u32::from_le_bytes(*bytes))
///     }
///
///     fn to_driver_data(&self) -> [u8; 4] {
///         self.0.to_le_bytes()
///     }
/// }
///
/// /// Doubles a number for a process.
/// fn double(udata: &Udata<'_>) -> Result {
///     let Number(number) = udata.request()?;
///     udata.respond(&Number(number.wrapping_mul(2)))
/// }
/// ```
///
/// # Invariants
///
/// `raw` is valid for `'a`, which is within the verb's system call.
pub struct Udata<'a> {
    raw: NonNull<bindings::ib_udata>,
    _verb: PhantomData<&'a bindings::ib_udata>,
}

impl Udata<'_> {
    /// The driver data of a verb, or `None` if a kernel client called it.
    ///
    /// Zeroes the response before the verb has any effect. So a verb without a response leaves no
    /// uninitialized bytes, and a response that can't be written is noticed before anything is
    /// lost.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the response can't be written.
    ///
    /// # Safety
    ///
    /// `raw` is null or valid for the lifetime of the result.
    pub(super) unsafe fn from_raw(raw: *mut bindings::ib_udata) -> Result<Option<Self>> {
        let Some(raw) = NonNull::new(raw) else {
            return Ok(None);
        };
        // INVARIANT: `raw` is valid for the lifetime of the result, since it is not null.
        let this = Self {
            raw,
            _verb: PhantomData,
        };
        this.write(&[])?;
        Ok(Some(this))
    }

    /// The driver data of a verb that only processes call.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a kernel client called it; errors of [`from_raw`](Self::from_raw).
    ///
    /// # Safety
    ///
    /// The requirements of [`from_raw`](Self::from_raw).
    pub(super) unsafe fn of_process(raw: *mut bindings::ib_udata) -> Result<Self> {
        // SAFETY: `raw` is as `from_raw` requires it.
        unsafe { Self::from_raw(raw) }?.ok_or(EINVAL)
    }

    /// Reads the request, by the rules of [`DriverData`].
    ///
    /// # Errors
    ///
    /// `EINVAL` if the request is shorter than the minimum, `EOPNOTSUPP` if it has non-zero bytes
    /// that the driver does not know, `EFAULT` if it can't be read.
    pub fn request<T: DriverData>(&self) -> Result<T> {
        let mut request = T::ZEROES;
        let bytes = request.as_mut();
        // SAFETY: `raw` is valid by the type invariants, and `bytes` is writable for its length.
        to_result(unsafe {
            bindings::_ib_copy_validate_udata_in(
                self.raw.as_ptr(),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                T::MIN_SIZE,
            )
        })?;
        Ok(T::from_driver_data(&request))
    }

    /// Checks that there is no request, or that its bytes are all zero.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the request has non-zero bytes, `EFAULT` if it can't be read.
    pub fn no_request(&self) -> Result {
        // SAFETY: `raw` is valid by the type invariants. With length 0, the pointer is not
        // accessed.
        to_result(unsafe {
            bindings::_ib_copy_validate_udata_in(self.raw.as_ptr(), ptr::null_mut(), 0, 0)
        })
    }

    /// Writes the response, by the rules of [`DriverData`].
    ///
    /// # Errors
    ///
    /// `EFAULT` if the response can't be written.
    pub fn respond<T: DriverData>(&self, response: &T) -> Result {
        self.write(response.to_driver_data().as_ref())
    }

    /// Writes a response, truncated or padded with zeroes to the length that user space passed.
    fn write(&self, response: &[u8]) -> Result {
        // SAFETY: `raw` is valid by the type invariants, and `response` is readable for its length.
        to_result(unsafe {
            bindings::_ib_respond_udata(self.raw.as_ptr(), response.as_ptr().cast(), response.len())
        })
    }
}

/// Checks that a process passed no driver data to a verb that takes none, and zeroes the response.
/// Called before the verb has any effect.
///
/// # Safety
///
/// `raw` is null or valid.
pub(super) unsafe fn expect_none(raw: *mut bindings::ib_udata) -> Result {
    // SAFETY: `raw` is null or valid; null is allowed.
    to_result(unsafe { bindings::ib_no_udata_io(raw) })
}
