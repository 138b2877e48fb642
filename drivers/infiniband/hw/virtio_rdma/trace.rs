// SPDX-License-Identifier: GPL-2.0

//! Tracepoints, in `/sys/kernel/tracing/events/virtio_rdma`.
//!
//! Header: [`include/trace/events/virtio_rdma.h`](srctree/include/trace/events/virtio_rdma.h)

use kernel::str::CStr;
#[cfg(not(OUT_OF_TREE))]
use kernel::trace_events;

trace_events! {
    /// The driver gives `command` to the device.
    pub(crate) fn command = virtio_rdma_command(dev: &'a CStr, command: &'a CStr, number: i64);

    /// The device has answered `command`, or no task waits for the answer any more.
    pub(crate) fn answer = virtio_rdma_answer(
        dev: &'a CStr,
        command: &'a CStr,
        number: i64,
        result: &'a CStr,
        us: u64,
    );

    /// The device reports an event.
    pub(crate) fn event = virtio_rdma_event(
        dev: &'a CStr,
        kind: &'a CStr,
        object: &'a CStr,
        number: i64,
        value: u64,
    );
}

/// The number of no object.
pub(crate) const NO_NUMBER: i64 = -1;

/// The number of an object, if there is one.
pub(crate) fn number(number: Option<u32>) -> i64 {
    number.map_or(NO_NUMBER, i64::from)
}
