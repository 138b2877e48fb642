// SPDX-License-Identifier: GPL-2.0

//! Counters of ports.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    Device,
    Driver, //
};
use crate::bindings;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// The name of a counter.
///
/// # Invariants
///
/// The name is valid forever.
#[repr(transparent)]
pub struct Counter(bindings::rdma_stat_desc);

impl Counter {
    /// A counter with this name, which is also the name of a file in sysfs.
    pub const fn new(name: &'static CStr) -> Self {
        // INVARIANT: The argument is a static reference.
        Self(bindings::rdma_stat_desc {
            name: name.to_bytes_with_nul().as_ptr(),
            flags: 0,
            priv_: core::ptr::null(),
        })
    }
}

// SAFETY: The name is never written.
unsafe impl Sync for Counter {}

/// Time in milliseconds for which the core caches values.
const LIFESPAN: c_ulong = bindings::RDMA_HW_STATS_DEFAULT_LIFESPAN as c_ulong;

/// A device with port counters.
///
/// # Examples
///
/// ```
/// # crate::rdma::tests::null::null_driver!(MyDriver);
/// use crate::rdma::{
///     stats::{Counter, PortCounters},
///     Device,
/// };
///
/// static COUNTERS: [Counter; 2] = [Counter::new(c"sent_packets"), Counter::new(c"lost_packets")];
///
/// impl PortCounters for MyDriver {
///     const COUNTERS: &'static [Counter] = &COUNTERS;
///
///     fn read_counters(_device: &Device<Self>, _port: u32, values: &mut [u64]) -> Result {
///         for (value, read) in values.iter_mut().zip([1000, 2]) {
///             *value = read;
///         }
///         Ok(())
///     }
/// }
/// ```
pub trait PortCounters: Driver {
    /// The counters, at least one. All ports have the same counters.
    const COUNTERS: &'static [Counter];

    /// Reads the counters of a port into `values`, which has an element for each of
    /// [`COUNTERS`](Self::COUNTERS), in this order. Also called while the device is being
    /// registered.
    fn read_counters(device: &Device<Self>, port: u32, values: &mut [u64]) -> Result;
}

/// # Safety
///
/// Called by the core as `alloc_hw_port_stats` of a device of `T`.
pub(super) unsafe extern "C" fn alloc<T: PortCounters>(
    _device: *mut bindings::ib_device,
    _port: u32,
) -> *mut bindings::rdma_hw_stats {
    allocate::<T>()
}

/// Allocates a structure with a value for each counter, for the core, which frees it. Returns null
/// if there is no memory.
pub(super) fn allocate<T: PortCounters>() -> *mut bindings::rdma_hw_stats {
    let Ok(count) = i32::try_from(T::COUNTERS.len()) else {
        return core::ptr::null_mut();
    };
    // SAFETY: A `Counter` is transparent over the C structure, and `count` is the number of
    // counters.
    unsafe { bindings::rdma_alloc_hw_stats_struct(T::COUNTERS.as_ptr().cast(), count, LIFESPAN) }
}

/// # Safety
///
/// Called by the core as `get_hw_stats` of a device of `T`: `stats` was made by [`alloc`] and its
/// lock is held, or nothing else refers to it.
pub(super) unsafe extern "C" fn read<T: PortCounters>(
    device: *mut bindings::ib_device,
    stats: *mut bindings::rdma_hw_stats,
    port: u32,
    _index: c_int,
) -> c_int {
    from_result(|| {
        // SAFETY: The core reads counters only of devices that are registered or being registered.
        let device = unsafe { Device::from_raw(device) };
        // SAFETY: By the function's safety requirements the structure has a value for each counter,
        // and nothing else accesses the values.
        let values = unsafe { (*stats).value.as_mut_slice(T::COUNTERS.len()) };
        T::read_counters(device, port, values)?;
        // All counters were read, whatever the core requested.
        Ok(i32::try_from(T::COUNTERS.len())?)
    })
}
