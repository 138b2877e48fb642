// SPDX-License-Identifier: GPL-2.0

//! Details of a driver's objects, which `rdma -dd resource show` prints after the core's details.
//!
//! C headers: [`include/rdma/restrack.h`](srctree/include/rdma/restrack.h),
//! [`include/net/netlink.h`](srctree/include/net/netlink.h)

use super::{
    cq::Cq,
    mr::{
        MemoryRegions,
        Mr, //
    },
    qp::{
        Qp,
        QueuePairs, //
    },
    srq::{
        SharedReceiveQueues,
        Srq, //
    }, //
};
use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    error::{
        from_result,
        to_result, //
    },
    prelude::*, //
};

/// A message to which a driver adds details of an object.
///
/// # Examples
///
/// ```
/// use crate::rdma::restrack::Details;
///
/// /// Adds the kind of memory and the length of a queue.
/// fn tell(details: &mut Details<'_>, length: u32) -> Result {
///     details.text(c"memory", c"ring")?;
///     details.number(c"length", length)
/// }
/// ```
///
/// # Invariants
///
/// `message` is valid for `'a`, and a nest of attributes of the driver is open in it.
pub struct Details<'a> {
    message: NonNull<bindings::sk_buff>,
    _call: PhantomData<&'a mut bindings::sk_buff>,
}

impl Details<'_> {
    /// Adds a number.
    ///
    /// # Errors
    ///
    /// `EMSGSIZE` if the message is full; the caller returns this error.
    pub fn number(&mut self, name: &CStr, value: u32) -> Result {
        let message = self.message.as_ptr();
        // SAFETY: The message is valid by the type invariants, and the core copies the name.
        to_result(unsafe { bindings::rdma_nl_put_driver_u32(message, name.as_char_ptr(), value) })
    }

    /// Adds a text. Errors are those of [`number`](Self::number).
    pub fn text(&mut self, name: &CStr, value: &CStr) -> Result {
        let message = self.message.as_ptr();
        // SAFETY: The message is valid by the type invariants, and the core copies name and text.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_string(message, name.as_char_ptr(), value.as_char_ptr())
        })
    }
}

/// A device whose driver adds details to the core's descriptions of objects.
///
/// The core does not destroy the object during the call.
///
/// # Examples
///
/// ```
/// use crate::rdma::{
///     qp::Qp,
///     restrack::{Details, ResourceDetails},
/// };
///
/// /// Adds details of a QP, and whether it is the last one.
/// fn tell<T: ResourceDetails>(qp: &Qp<T>, is_last: bool, details: &mut Details<'_>) -> Result {
///     T::qp_details(qp, details)?;
///     details.number(c"last", is_last.into())
/// }
/// ```
pub trait ResourceDetails: QueuePairs + SharedReceiveQueues + MemoryRegions {
    /// Adds details of a QP.
    fn qp_details(qp: &Qp<Self>, details: &mut Details<'_>) -> Result;

    /// Adds details of a CQ.
    fn cq_details(cq: &Cq<Self>, details: &mut Details<'_>) -> Result;

    /// Adds details of an MR.
    fn mr_details(mr: &Mr<Self>, details: &mut Details<'_>) -> Result;

    /// Adds details of an SRQ.
    fn srq_details(srq: &Srq<Self>, details: &mut Details<'_>) -> Result;
}

/// Adds a nest of attributes to a message. `tell` writes the details into the nest.
///
/// # Safety
///
/// `message` is valid, and only the caller uses it.
unsafe fn fill(
    message: *mut bindings::sk_buff,
    tell: impl FnOnce(&mut Details<'_>) -> Result,
) -> c_int {
    from_result(|| {
        let message = NonNull::new(message).ok_or(EINVAL)?;
        let kind = i32::try_from(bindings::rdma_nldev_attr_RDMA_NLDEV_ATTR_DRIVER)?;
        // SAFETY: `message` is valid, and nothing else uses it.
        let nest = unsafe { bindings::nla_nest_start(message.as_ptr(), kind) };
        if nest.is_null() {
            return Err(EMSGSIZE);
        }
        // INVARIANT: `message` is valid, and the nest was just opened.
        let mut details = Details {
            message,
            _call: PhantomData,
        };
        let told = tell(&mut details);
        // SAFETY: The nest is open in this message.
        unsafe {
            match told {
                Ok(()) => bindings::nla_nest_end(message.as_ptr(), nest),
                Err(_) => bindings::nla_nest_cancel(message.as_ptr(), nest),
            }
        }
        told.map(|()| 0)
    })
}

/// # Safety
///
/// Called by the core as `fill_res_qp_entry` of a device of `T`: `message` and `qp` are valid.
pub(super) unsafe extern "C" fn fill_qp<T: ResourceDetails>(
    message: *mut bindings::sk_buff,
    qp: *mut bindings::ib_qp,
) -> c_int {
    // SAFETY: `message` and `qp` are valid; the core describes only objects that are created.
    unsafe {
        fill(message, |details| {
            T::qp_details(Qp::<T>::from_raw(qp), details)
        })
    }
}

/// # Safety
///
/// Called by the core as `fill_res_cq_entry` of a device of `T`: `message` and `cq` are valid.
pub(super) unsafe extern "C" fn fill_cq<T: ResourceDetails>(
    message: *mut bindings::sk_buff,
    cq: *mut bindings::ib_cq,
) -> c_int {
    // SAFETY: `message` and `cq` are valid; the core describes only objects that are created.
    unsafe {
        fill(message, |details| {
            T::cq_details(Cq::<T>::from_raw(cq), details)
        })
    }
}

/// # Safety
///
/// Called by the core as `fill_res_mr_entry` of a device of `T`: `message` and `mr` are valid.
pub(super) unsafe extern "C" fn fill_mr<T: ResourceDetails>(
    message: *mut bindings::sk_buff,
    mr: *mut bindings::ib_mr,
) -> c_int {
    // SAFETY: `message` and `mr` are valid; the core describes only objects that are created.
    unsafe {
        fill(message, |details| {
            T::mr_details(Mr::<T>::from_raw(mr), details)
        })
    }
}

/// # Safety
///
/// Called by the core as `fill_res_srq_entry` of a device of `T`: `message` and `srq` are valid.
pub(super) unsafe extern "C" fn fill_srq<T: ResourceDetails>(
    message: *mut bindings::sk_buff,
    srq: *mut bindings::ib_srq,
) -> c_int {
    // SAFETY: `message` and `srq` are valid; the core describes only objects that are created.
    unsafe {
        fill(message, |details| {
            T::srq_details(Srq::<T>::from_raw(srq), details)
        })
    }
}
