// SPDX-License-Identifier: GPL-2.0

//! Counters of queue pairs.
//!
//! C header: [`include/rdma/rdma_counter.h`](srctree/include/rdma/rdma_counter.h)

use super::{
    qp::{
        Qp,
        QueuePairs, //
    },
    stats::{
        self,
        PortCounters, //
    },
    Device, //
};
use crate::bindings;
use core::num::NonZeroU32;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A device that can count the events of some QPs apart from those of others.
///
/// A counter here is a set of values, with the names of the [port's
/// counters](PortCounters::COUNTERS). The core shows the sum of all counters of a port, and of the
/// values that [`PortCounters::read_counters`] reads, as counters of the port. So an event must
/// occur in only one of them.
///
/// The core serializes the calls for one counter. A counter belongs to the port for which it was
/// created.
///
/// # Examples
///
/// ```
/// use crate::rdma::{counter::QpCounters, qp::Qp};
/// use core::num::NonZeroU32;
///
/// /// Moves a QP from its counter to another one.
/// fn move_to<T: QpCounters>(qp: &Qp<T>, counter: NonZeroU32) -> Result {
///     T::unbind_qp(qp);
///     T::bind_qp(qp, counter)
/// }
///
/// /// The first value of a counter.
/// fn first<T: QpCounters>(qp: &Qp<T>, counter: NonZeroU32) -> Result<Option<u64>> {
///     Ok(T::read_counter(qp.device(), counter)?.next())
/// }
/// ```
pub trait QpCounters: PortCounters + QueuePairs {
    /// Creates a counter and returns its number, which no other counter of the device has.
    fn create_counter(device: &Device<Self>, port: u32) -> Result<NonZeroU32>;

    /// Destroys a counter to which no QP is bound.
    fn destroy_counter(device: &Device<Self>, counter: NonZeroU32);

    /// Binds a QP that has no counter to a counter.
    fn bind_qp(qp: &Qp<Self>, counter: NonZeroU32) -> Result;

    /// Unbinds a QP from its counter. The core also calls this before it destroys the QP. It can't
    /// fail: the core may destroy the counter next.
    fn unbind_qp(qp: &Qp<Self>);

    /// Reads a counter: a value for each of [`COUNTERS`](PortCounters::COUNTERS), in this order.
    fn read_counter(
        device: &Device<Self>,
        counter: NonZeroU32,
    ) -> Result<impl Iterator<Item = u64>>;
}

/// Size in bytes of a counter. It has no part of the driver: if the first QP can't be bound, the
/// core frees a counter without a callback.
pub(super) const SIZE: usize = size_of::<bindings::rdma_counter>();

/// # Safety
///
/// Called by the core as `counter_init`. There is nothing to initialize.
pub(super) unsafe extern "C" fn init(_counter: *mut bindings::rdma_counter) {}

/// The device and the number of a counter. A counter to which no QP was ever bound has no number.
///
/// # Safety
///
/// `counter` is a counter of a device of `T` that is valid during `'a`, and its lock is held, or
/// nothing else refers to it.
unsafe fn parts<'a, T: QpCounters>(
    counter: *mut bindings::rdma_counter,
) -> (&'a Device<T>, Option<NonZeroU32>) {
    // SAFETY: `counter` is valid. The core sets the device of each counter, and destroys all
    // counters before the device goes away. Only `bind` writes the number, under the lock, which is
    // held unless nothing else refers to the counter.
    unsafe {
        let device = Device::from_raw((*counter).device);
        (device, NonZeroU32::new((*counter).id))
    }
}

/// # Safety
///
/// Called by the core as `counter_alloc_stats` of a device of `T`.
pub(super) unsafe extern "C" fn alloc_stats<T: QpCounters>(
    _counter: *mut bindings::rdma_counter,
) -> *mut bindings::rdma_hw_stats {
    // The core adds values of counters to values of the port by index, so both have the same names.
    stats::allocate::<T>()
}

/// # Safety
///
/// Called by the core as `counter_bind_qp` of a device of `T`: `counter` is valid and its lock
/// held, `qp` is created and has no counter.
pub(super) unsafe extern "C" fn bind<T: QpCounters>(
    counter: *mut bindings::rdma_counter,
    qp: *mut bindings::ib_qp,
    port: u32,
) -> c_int {
    from_result(|| {
        // SAFETY: `counter` is valid, and its lock is held.
        let (device, existing) = unsafe { parts::<T>(counter) };
        // SAFETY: `qp` is created.
        let bound = unsafe { Qp::<T>::from_raw(qp) };
        let number = existing.map_or_else(|| T::create_counter(device, port), Ok)?;
        T::bind_qp(bound, number).inspect_err(|_| {
            // The core frees a counter whose first QP can't be bound, without a callback.
            if existing.is_none() {
                T::destroy_counter(device, number);
            }
        })?;
        // SAFETY: `counter` and `qp` are valid. The core leaves both fields to the driver, and does
        // not change them during the call.
        unsafe {
            (*counter).id = number.get();
            (*qp).counter = counter;
        }
        Ok(0)
    })
}

/// # Safety
///
/// Called by the core as `counter_unbind_qp` of a device of `T`: `qp` is created and has a counter,
/// whose lock is held.
pub(super) unsafe extern "C" fn unbind<T: QpCounters>(
    qp: *mut bindings::ib_qp,
    _port: u32,
) -> c_int {
    // SAFETY: `qp` is created.
    T::unbind_qp(unsafe { Qp::<T>::from_raw(qp) });
    // The QP may outlive the counter, so the pointer must not stay.
    // SAFETY: `qp` is created. The core leaves the field to the driver.
    unsafe { (*qp).counter = core::ptr::null_mut() };
    0
}

/// # Safety
///
/// Called by the core as `counter_dealloc` of a device of `T`: `counter` is valid, and nothing else
/// refers to it.
pub(super) unsafe extern "C" fn dealloc<T: QpCounters>(
    counter: *mut bindings::rdma_counter,
) -> c_int {
    // SAFETY: `counter` is valid, and nothing else refers to it.
    if let (device, Some(number)) = unsafe { parts::<T>(counter) } {
        T::destroy_counter(device, number);
    }
    0
}

/// # Safety
///
/// Called by the core as `counter_update_stats` of a device of `T`: `counter` is valid, its lock is
/// held, and its `stats` were made by [`alloc_stats`].
pub(super) unsafe extern "C" fn update<T: QpCounters>(
    counter: *mut bindings::rdma_counter,
) -> c_int {
    from_result(|| {
        // SAFETY: `counter` is valid, and its lock is held.
        let (device, number) = unsafe { parts::<T>(counter) };
        let values = T::read_counter(device, number.ok_or(EINVAL)?)?;
        // SAFETY: `counter` and its `stats` are valid.
        let to = unsafe { (&raw mut (*(*counter).stats).value).cast::<u64>() };
        for (index, value) in values.take(T::COUNTERS.len()).enumerate() {
            // The core reads values without the counter's lock.
            // SAFETY: `alloc_stats` made a value for each of `COUNTERS`. Under the counter's lock,
            // nothing else writes the values.
            unsafe { to.add(index).write_volatile(value) };
        }
        Ok(0)
    })
}
