// SPDX-License-Identifier: GPL-2.0

//! The counters of a port that all RDMA devices have, which sysfs shows in `counters`.
//!
//! The core reads them by management datagrams to the performance management agent (IBTA 16.1). It
//! passes these to the driver without sending them. Datagrams of peers are left to the core.
//!
//! C headers: [`include/rdma/ib_mad.h`](srctree/include/rdma/ib_mad.h),
//! [`include/rdma/ib_pma.h`](srctree/include/rdma/ib_pma.h)

use super::{
    Device,
    Driver, //
};
use crate::bindings;
use kernel::prelude::*;

/// `IB_MGMT_CLASS_PERF_MGMT`.
const CLASS: u8 = 0x04;
/// `IB_MGMT_METHOD_GET` and `IB_MGMT_METHOD_GET_RESP`.
const GET: u8 = 0x01;
const GET_RESPONSE: u8 = 0x81;
/// Attributes: `IB_PMA_CLASS_PORT_INFO`, `IB_PMA_PORT_COUNTERS` and `IB_PMA_PORT_COUNTERS_EXT`.
const CLASS_PORT_INFO: u16 = 0x0001;
const COUNTERS: u16 = 0x0012;
const COUNTERS_64: u16 = 0x001d;
/// `IB_PMA_CLASS_CAP_EXT_WIDTH`: there are counters of 64 bits.
const HAS_COUNTERS_64: u16 = 0x0200;

/// Offset of an attribute in the data of a performance management datagram.
const ATTRIBUTE: usize = 40;

/// Counts of a port. Bytes are those of packets, with their headers.
#[derive(Clone, Copy, Default)]
#[allow(missing_docs)]
pub struct StandardCounts {
    pub xmit_bytes: u64,
    pub rcv_bytes: u64,
    pub xmit_packets: u64,
    pub rcv_packets: u64,
    /// Packets received that were invalid.
    pub rcv_errors: u64,
}

/// A device with the standard counters of its ports.
///
/// # Examples
///
/// ```
/// # crate::rdma::tests::null::null_driver!(MyDriver);
/// use crate::rdma::{
///     pma::{StandardCounters, StandardCounts},
///     Device,
/// };
///
/// impl StandardCounters for MyDriver {
///     fn read_standard(_device: &Device<Self>, _port: u32) -> Result<StandardCounts> {
///         Ok(StandardCounts {
///             xmit_packets: 1000,
///             ..Default::default()
///         })
///     }
/// }
/// ```
pub trait StandardCounters: Driver {
    /// Reads the counters of a port.
    fn read_standard(device: &Device<Self>, port: u32) -> Result<StandardCounts>;
}

/// An attribute that is being written, field by field, in network byte order.
struct Attribute<'a>(&'a mut [u8]);

impl Attribute<'_> {
    /// Writes a field. A field beyond the end is left out.
    fn put(&mut self, offset: usize, field: &[u8]) {
        if let Some(to) = self.0.get_mut(offset..offset.saturating_add(field.len())) {
            to.copy_from_slice(field);
        }
    }
}

/// `value`, or the largest value of a narrower counter: these counters stay at their limit.
fn limited<T: TryFrom<u64>>(value: u64, limit: T) -> T {
    T::try_from(value).unwrap_or(limit)
}

/// Writes an attribute of the agent. Returns `None` if there is no such attribute.
fn answer(
    attribute: u16,
    to: &mut Attribute<'_>,
    read: impl FnOnce() -> Result<StandardCounts>,
) -> Option<()> {
    match attribute {
        CLASS_PORT_INFO => {
            // Base version and class version.
            to.put(0, &[1, 1]);
            to.put(2, &HAS_COUNTERS_64.to_be_bytes());
        }
        COUNTERS => {
            let counts = read().ok()?;
            let narrow = |value| limited(value, u32::MAX).to_be_bytes();
            to.put(8, &limited(counts.rcv_errors, u16::MAX).to_be_bytes());
            // Data counts in units of 4 bytes.
            to.put(24, &narrow(counts.xmit_bytes / 4));
            to.put(28, &narrow(counts.rcv_bytes / 4));
            to.put(32, &narrow(counts.xmit_packets));
            to.put(36, &narrow(counts.rcv_packets));
        }
        COUNTERS_64 => {
            let counts = read().ok()?;
            let values = [
                counts.xmit_bytes / 4,
                counts.rcv_bytes / 4,
                counts.xmit_packets,
                counts.rcv_packets,
                // Unicast packets: multicast packets are not counted apart.
                counts.xmit_packets,
                counts.rcv_packets,
            ];
            for (index, value) in values.into_iter().enumerate() {
                to.put(8 + 8 * index, &value.to_be_bytes());
            }
        }
        _ => return None,
    }
    Some(())
}

/// # Safety
///
/// Called by the core as `process_mad` of a device of `T`: `request` is valid, `response` writable;
/// both have the length of a management datagram.
pub(super) unsafe extern "C" fn process_mad<T: StandardCounters>(
    device: *mut bindings::ib_device,
    _flags: c_int,
    port: u32,
    received: *const bindings::ib_wc,
    _grh: *const bindings::ib_grh,
    request: *const bindings::ib_mad,
    response: *mut bindings::ib_mad,
    _size: *mut usize,
    _pkey_index: *mut u16,
) -> c_int {
    // Only the core's own queries have no completion.
    if !received.is_null() {
        return bindings::ib_mad_result_IB_MAD_RESULT_FAILURE as c_int;
    }
    // SAFETY: `request` is valid and `response` writable, for the length of a management datagram.
    let (header, data) = unsafe { (&(*request).mad_hdr, &mut (*response).data) };
    let attribute = u16::from_be(header.attr_id);
    let to = data.get_mut(ATTRIBUTE..).unwrap_or_default();
    // SAFETY: The core queries counters only of devices that are registered or being registered.
    let read = || T::read_standard(unsafe { Device::from_raw(device) }, port);
    let is_query = header.mgmt_class == CLASS && header.method == GET;
    match is_query.then(|| answer(attribute, &mut Attribute(to), read)) {
        Some(Some(())) => {
            // SAFETY: `response` is writable for the length of a management datagram.
            unsafe {
                (*response).mad_hdr = *header;
                (*response).mad_hdr.method = GET_RESPONSE;
            }
            let result = bindings::ib_mad_result_IB_MAD_RESULT_SUCCESS
                | bindings::ib_mad_result_IB_MAD_RESULT_REPLY;
            result as c_int
        }
        _ => bindings::ib_mad_result_IB_MAD_RESULT_FAILURE as c_int,
    }
}
